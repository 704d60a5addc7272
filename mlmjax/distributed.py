"""Several processes as one run: they find each other, agree, stop at the same step, and end together.

The engine is JAX's own runtime of many controllers (``jax.distributed``); with one process all of this is nothing.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from mlmjax.core.errors import UserError
from mlmjax.sharding import AnyMesh, replicated

HEARTBEAT = 20
"""Seconds after which the runtime takes a process that does not answer for dead, and ends the others."""
LAG = 2
"""Steps between a vote and its answer, so that no step waits for one."""

_POLL = 0.5
_LINGER = 3 * _POLL
_END = "mlmjax/end"


@dataclass(frozen=True)
class Peers:
    """Where the processes of a run meet; all None where the launcher tells, or there is one process.

    Attributes:
        coordinator: host and port of process 0.
        processes: how many there are.
        process_id: which of them this one is, from 0.
    """

    coordinator: str | None = None
    processes: int | None = None
    process_id: int | None = None

    def check(self) -> None:
        """Refuse what no process can be found with.

        Raises:
            UserError: naming the option.
        """
        given = {
            "coordinator": self.coordinator,
            "processes": self.processes,
            "process-id": self.process_id,
        }
        missing = [f"--distributed.{name}" for name, value in given.items() if value is None]
        if len(missing) == len(given):
            return
        if self.coordinator is None or self.processes is None or self.process_id is None:
            raise UserError(
                f"Of several processes each is told all: give {', '.join(missing)} too."
            )
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise UserError(
                f"--distributed.coordinator {self.coordinator}: give the host and a free port of process 0, "
                "such as 10.0.0.1:8476."
            )
        if self.processes < 1:
            raise UserError(f"--distributed.processes {self.processes}: there is at least one.")
        if not 0 <= self.process_id < self.processes:
            raise UserError(
                f"--distributed.process-id {self.process_id}: the {self.processes} processes are numbered "
                f"from 0 to {self.processes - 1}."
            )


def connect(peers: Peers, *, seconds: int = 300) -> None:
    """Find the other processes, before anything is computed.

    On TPU pods and under SLURM, Open MPI and Kubernetes JAX finds them by itself.

    Args:
        peers: where to meet, where the launcher does not tell.
        seconds: how long to wait for them.

    Raises:
        UserError: the peers are not told properly. Where they do not come, the process ends with status 2.
    """
    peers.check()
    alone = peers.coordinator is None
    if alone and jax.distributed.is_initialized():
        return
    _check_port(peers)
    # Its handler of SIGTERM would take the place of the training loop's, which agrees on the step by a vote.
    jax.config.update("jax_enable_preemption_service", False)
    where = peers.coordinator or "the first of them"
    late = (
        f"The processes did not meet at {where} within {seconds} s: start all of them, each with a number of "
        "its own (--distributed.process-id), and see that each reaches that address (--distributed.coordinator)."
    )
    # The runtime would abort with a stack trace.
    clock = threading.Timer(seconds, _go, [{"process": None, "status": 2, "cause": late}])
    clock.daemon = True
    clock.start()
    try:
        with _ctrl_c_ends():
            jax.distributed.initialize(
                peers.coordinator,
                peers.processes,
                peers.process_id,
                cluster_detection_method=None if alone and _may_be_launched() else "deactivate",
                initialization_timeout=seconds + HEARTBEAT,
                heartbeat_timeout_seconds=HEARTBEAT,
            )
    except (ValueError, RuntimeError) as error:
        # No launcher tells of others, or something was computed before, as in a notebook: there are none.
        if not alone or not ("be defined" in str(error) or "must be called before" in str(error)):
            raise
    finally:
        clock.cancel()


def _check_port(peers: Peers) -> None:
    """Refuse a port that process 0 cannot have. The runtime would share it with another run, and end that."""
    if peers.coordinator is None or peers.process_id != 0:
        return
    with socket.socket() as mine:
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one just left is free
        try:
            mine.bind(("", int(peers.coordinator.rpartition(":")[2])))
        except OSError as error:
            raise UserError(
                f"--distributed.coordinator {peers.coordinator}: process 0 cannot have this port: "
                f"{error.strerror}. Give another on all processes."
            ) from error


@contextmanager
def _ctrl_c_ends() -> Iterator[None]:
    """In here Ctrl-C ends the process at once: Python's own handler waits for the runtime to come back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _may_be_launched() -> bool:
    """Whether a launcher may have started this process as one of several; a lone pod of Kubernetes is none."""
    numbered = ("JOB_COMPLETION_INDEX", "TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES")
    return "KUBERNETES_SERVICE_HOST" not in os.environ or any(
        name in os.environ for name in numbered
    )


@contextmanager
def together(
    peers: Peers, told: Callable[[BaseException], tuple[int, str]], *, seconds: int = 300
) -> Iterator[None]:
    """In here this process is one of a run: what ends one of them ends all, with the cause of the first.

    Args:
        peers: where to meet.
        told: exit status and sentence of an error.
        seconds: how long to wait for the others.

    Raises:
        UserError: see :func:`connect`.
    """
    connect(peers, seconds=seconds)
    if (
        not jax.distributed.is_initialized()
    ):  # which asks for no device, so that --help does not either
        yield
        return
    watch = _Watch()
    watch.start()
    try:
        yield
        everyone("the end")
    except BaseException as error:
        watch.over.set()
        _leave(error, told)
    watch.over.set()


def first() -> bool:
    """Whether this is the process that writes logs and files."""
    return jax.process_index() == 0


def everyone(name: str) -> None:
    """Wait here until all processes are here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def everywhere(tree: Any) -> Any:
    """The whole of arrays that lie on several processes, on each of them."""
    return tree if jax.process_count() == 1 else multihost_utils.process_allgather(tree, tiled=True)


def agree(what: str, values: Mapping[str, Any]) -> None:
    """See that all processes were given the same.

    Args:
        what: they were given; the beginning of a sentence.
        values: JSON, by name.

    Raises:
        UserError: on every process, where they differ; with the differences.
    """
    if jax.process_count() == 1:
        return
    _check_devices()
    all_of_them = [json.loads(each) for each in _gathered(json.dumps(values, sort_keys=True))]
    lines = []
    for number, other in enumerate(all_of_them[1:], 1):
        for name in sorted({*all_of_them[0], *other}):
            ours, theirs = (each.get(name) for each in (all_of_them[0], other))
            if ours != theirs:
                lines.append(f"\n  {name}: {ours!r} on process 0, {theirs!r} on process {number}")
    if lines:
        raise UserError(
            f"{what} must be the same on all processes, and differs:{''.join(lines)}\n"
            "Start all of them with the same config, options and packages, and a run folder that all of them see."
        )


def _check_devices() -> None:
    """Refuse processes of different sizes, which the runtime's own gathering trips over."""
    held = Counter(device.process_index for device in jax.devices())
    if len(set(held.values())) > 1:
        each = ", ".join(f"{count} on process {number}" for number, count in sorted(held.items()))
        raise UserError(f"All processes must have as many devices, and they have {each}.")


class Vote:
    """Whether any process wants something, asked by all of them at every step.

    With one process the answer is its wish. Of several, each hears of a wish :data:`LAG` steps later, at the same
    step: the question goes to the devices behind the step before, and no step waits for it.
    """

    def __init__(self, mesh: AnyMesh):
        self._alone = jax.process_count() == 1
        self._sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self._any = jax.jit(jnp.any, out_shardings=replicated(mesh))
        self._open: deque[jax.Array] = deque()

    def __call__(self, wish: bool) -> bool:
        """The answer to the wishes of :data:`LAG` calls ago."""
        if self._alone:
            return wish
        count = self._sharding.mesh.size
        mine = lambda index: np.full(len(range(count)[index[0]]), wish)  # noqa: E731
        self._open.append(self._any(jax.make_array_from_callback((count,), self._sharding, mine)))
        return len(self._open) > LAG and bool(self._open.popleft())


class _Watch(threading.Thread):
    """Ends this process when another says that it ends."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(_POLL):
            said = _said()
            if said is not None and not self.over.is_set():
                _go(said)


def _leave(error: BaseException, told: Callable[[BaseException], tuple[int, str]]) -> None:
    """End this process, and tell the others why; where they have said so before, for their reason.

    Args:
        error: what ends it. One of the runtime may be that another process is gone: whoever knows more has the
            word first.
        told: exit status and sentence of an error, of which nothing is printed where another's reason is.
    """
    if isinstance(error, jax.errors.JaxRuntimeError):
        print(
            "mlmjax: the runtime failed; seeing whether another process says why.", file=sys.stderr
        )
        until = time.monotonic() + HEARTBEAT + 10
        while time.monotonic() < until:
            said = _said()
            if said is not None:
                _go(said)
            time.sleep(_POLL)
    status, cause = told(error)
    said = {"process": jax.process_index(), "status": status, "cause": cause}
    try:
        _store().key_value_set(_END, json.dumps(said))
        said["process"] = None  # it is this one
    except jax.errors.JaxRuntimeError:  # another was first
        said = _said() or said
    if first():
        time.sleep(_LINGER)  # it holds what the others read
    _go(said)


def _store() -> Any:
    """The key-value store of the runtime, which has no public name."""
    from jax._src import distributed as runtime

    return runtime.global_state.client


def _said() -> dict[str, Any] | None:
    """What the process that ended first said."""
    try:
        return json.loads(_store().key_value_try_get(_END))
    except (jax.errors.JaxRuntimeError, ValueError):
        return None


def _go(said: Mapping[str, Any]) -> None:
    """Exit at once: what is left to do at an exit would wait for the other processes."""
    whose = f"process {said['process']} ended: " if said["process"] is not None else ""
    sys.stdout.flush()
    print(f"mlmjax: {whose}{said['cause']}", file=sys.stderr, flush=True)
    os._exit(said["status"])


def _gathered(text: str) -> list[str]:
    """The text of each process, by its number."""
    mine = np.frombuffer(text.encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.array([len(mine)])).reshape(-1)
    padded = np.pad(mine, (0, int(sizes.max()) - len(mine)))
    found = multihost_utils.process_allgather(padded[None]).reshape(len(sizes), -1)
    return [
        bytes(row[:size].astype(np.uint8)).decode() for row, size in zip(found, sizes, strict=True)
    ]
