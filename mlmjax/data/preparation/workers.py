"""Work spread over processes, so that what comes out does not depend on their number."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from typing import TypeVar

from mlmjax.core.errors import UserError

Task = TypeVar("Task")
Result = TypeVar("Result")

_IDLE = 10
"""Seconds after which a process without work ends, also where the one that started it was killed."""


def processes(asked: int) -> int:
    """The number of processes to use: what was asked for, or all cores of this process where 0."""
    if asked:
        return asked
    known = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


def spread(
    function: Callable[[Task], Result], tasks: Sequence[Task], *, workers: int
) -> Iterator[tuple[Task, Result]]:
    """Each task and its result, as they are done.

    The function and the tasks are pickled; one task, or one worker, is done in this process. If the
    caller stops early, or a task fails, the processes are killed.

    Args:
        function: a function of a module.
        tasks: what it is called with.
        workers: processes to use.

    Raises:
        UserError: a process was killed, for instance for want of memory; or what the function raises.
    """
    workers = min(workers, len(tasks))
    if workers < 2:
        for task in tasks:
            yield task, function(task)
        return
    # Not of the standard library: its processes run the user's script once more.
    from loky.process_executor import ProcessPoolExecutor, TerminatedWorkerError

    # One thread a process, since there is a process a core.
    alone = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    pool = ProcessPoolExecutor(workers, timeout=_IDLE, env=alone)
    done = False
    try:
        futures = {pool.submit(function, task): task for task in tasks}
        for future in as_completed(futures):
            yield futures[future], future.result()
        done = True
    except TerminatedWorkerError as error:
        raise UserError(
            f"A process that prepares the data was killed, perhaps for want of memory: use fewer "
            f"(--data.workers {max(1, workers // 2)}). What is finished is kept."
        ) from error
    finally:
        pool.shutdown(wait=True, kill_workers=not done)
