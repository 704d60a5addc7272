"""Work spread over processes, so that what comes out does not depend on their number.

This process works too, and each other one is a bare Python that is given one task after the other: so
that many of them take little memory, need no guard around the user's script, and end when this one does.
"""

import json
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

import cloudpickle

from mlmjax.core.errors import UserError

Task = TypeVar("Task")
Result = TypeVar("Result")

_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {module} import serve; serve()"
)
# One thread a process, since there is a process a core; and memory that is free is given back.
_ALONE = {
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "131072",
}


def processes(asked: int) -> int:
    """The number of processes to use: what was asked for, or all cores of this process where 0."""
    if asked:
        return asked
    known = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


@contextmanager
def workers_alive(workers: int) -> Iterator[None]:
    """Say in a sentence that one was killed; to stand outside of what removes the work on bad input."""
    try:
        yield
    except EndedError as error:
        raise UserError(
            f"A process that prepares the data {error}, perhaps for want of memory: use fewer "
            f"(--data.workers {max(1, workers // 2)}). The same command goes on with what is finished."
        ) from error


def spread(
    function: Callable[[Task], Result], tasks: Sequence[Task], *, workers: int
) -> Iterator[tuple[Task, Result]]:
    """Each task and its result, as they are done.

    The function and the tasks are pickled, by value what is of the user's script. If the caller stops
    early, or a task fails, the other processes are killed.

    Args:
        function: what is done with each.
        tasks: what it is called with.
        workers: processes to use, this one included.

    Raises:
        EndedError: a process was killed, for instance for want of memory.
        Exception: what the function raises.
    """
    todo: SimpleQueue[Task] = SimpleQueue()
    done: SimpleQueue[tuple[Task, Result] | BaseException] = SimpleQueue()
    for task in tasks:
        todo.put(task)
    helpers: list[_Helper] = []
    left = len(tasks)
    try:
        for _ in range(1, min(workers, len(tasks))):
            helpers.append(_Helper(function, todo, done))
        while left:
            found = [_own(function, todo) or done.get()]
            while not done.empty():
                found.append(done.get())
            for one in found:
                if isinstance(one, BaseException):
                    raise one
                yield one
            left -= len(found)
    finally:
        for helper in helpers:
            helper.kill()


def _own(
    function: Callable[[Task], Result], todo: "SimpleQueue[Task]"
) -> tuple[Task, Result] | None:
    """Do a task here, if one is left."""
    try:
        task = todo.get_nowait()
    except Empty:
        return None
    return task, function(task)


class EndedError(Exception):
    """A process ended that should not have."""


class _Helper(Generic[Task, Result]):
    """Another process, and the thread that gives it tasks."""

    def __init__(
        self,
        function: Callable[[Task], Result],
        todo: "SimpleQueue[Task]",
        done: "SimpleQueue[tuple[Task, Result] | BaseException]",
    ) -> None:
        command = [sys.executable, "-c", _CODE.format(module=__name__), json.dumps(sys.path)]
        # In a group of its own, so that Ctrl-C interrupts this process alone, which then kills it.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **_ALONE},
            process_group=0,
        )
        self._thread = Thread(target=self._lead, args=(function, todo, done), daemon=True)
        self._thread.start()

    def kill(self) -> None:
        """End the process, and wait for it."""
        self._process.kill()
        self._thread.join()
        self._process.communicate()

    def _lead(self, function: Any, todo: Any, done: Any) -> None:
        try:
            while True:
                task = todo.get_nowait()
                done.put((task, self._result(function, task)))
        except Empty:
            pass
        except BaseException as error:
            done.put(error)

    def _result(self, function: Callable[[Task], Result], task: Task) -> Any:
        to, back = self._process.stdin, self._process.stdout
        assert to is not None
        assert back is not None
        try:
            to.write(cloudpickle.dumps((function, task)))
            to.flush()
            raised, result = pickle.load(back)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
            status = self._process.wait()
            what = "was killed" if status < 0 else f"ended with status {status}"
            raise EndedError(what) from error
        if raised:
            raise result
        return result


def serve() -> None:
    """Do the tasks that come by standard input, and answer each, until there are no more."""
    with os.fdopen(os.dup(0), "rb") as tasks, os.fdopen(os.dup(1), "wb") as answers:
        # What the work prints is not an answer.
        os.dup2(2, 1)
        while (answer := _answer(tasks)) is not None:
            try:
                answers.write(answer)
                answers.flush()
            except BrokenPipeError:  # nobody waits for it
                os._exit(1)


def _answer(tasks: Any) -> bytes | None:
    """Whether the next task failed, and its result or error; none where there are no more tasks."""
    try:
        function, task = pickle.load(tasks)
    except EOFError:
        return None
    except BaseException as error:
        return _failure(error)
    try:
        return pickle.dumps((False, function(task)))
    except BaseException as error:
        return _failure(error)


def _failure(error: BaseException) -> bytes:
    told = "".join(traceback.format_exception(error))
    error.add_note(told)
    try:
        answer = pickle.dumps((True, error))
        pickle.loads(answer)  # what can be written cannot always be read
    except Exception:
        answer = pickle.dumps((True, RuntimeError(told)))
    return answer
