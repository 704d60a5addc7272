"""Processes that take turns on the same cores, so that a machine whose speed drifts favours none of them.

A benchmark with ``--serve=NAME`` calls :func:`serve`; without, it starts one :class:`Worker` a side.
"""

import contextlib
import json
import resource
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


def process_peak() -> int:
    """Most bytes that this process had in memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Side(NamedTuple):
    """One of those that are compared.

    Attributes:
        step: makes one step and returns the loss; the device may still be at it.
        multiply: makes products of ``operations`` in all, and waits for them.
        operations: floating-point operations of these products.
        flops: those of all products in a step.
        peak: most bytes in use so far.
    """

    step: Callable[[], Any]
    multiply: Callable[[], object]
    operations: float
    flops: float
    peak: Callable[[], int] = process_peak


def serve(side: Side) -> None:
    """Make as many steps as each line of standard input says; answer with time, rates and peak memory.

    ``seconds`` are those of the clock; ``processor`` counts each core's, which other processes disturb less.
    """
    for line in sys.stdin:
        start, used = time.perf_counter(), time.process_time()
        losses = [side.step() for _ in range(int(line))]
        loss = float(losses[-1])
        seconds, used = time.perf_counter() - start, time.process_time() - used
        answer = {
            "seconds": seconds,
            "processor": used,
            "rate": side.flops * len(losses) / seconds,
            "product_rate": side.operations / min(seconds_of(side.multiply) for _ in range(10)),
            "peak": side.peak(),
            "loss": loss,
        }
        print(json.dumps(answer), flush=True)


def seconds_of(function: Callable[[], object]) -> float:
    """Wall-clock time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


class Worker:
    """A side in its own process; it waits while another works."""

    def __init__(self, script: str, arguments: Sequence[str]):
        self._process = subprocess.Popen(
            [sys.executable, script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, steps: int, *, limit: float | None = None) -> dict[str, Any]:
        """Make steps and wait for them, so many seconds at most.

        Raises:
            RuntimeError: the process has ended, or gives no answer in time and is ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            print(steps, file=self._process.stdin, flush=True)
        if not select.select([self._process.stdout], [], [], limit)[0]:
            self._process.kill()
            raise RuntimeError(f"a side gave no answer for {limit:.0f} s")
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"a side ended with status {self._process.wait()}")
        return json.loads(answer)

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
