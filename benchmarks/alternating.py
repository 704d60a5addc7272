"""Processes that take turns on the same cores, so that a machine whose speed drifts favours none of them.

A benchmark with ``--serve=NAME`` calls :func:`serve`; without, it starts one :class:`Worker` a side.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Side(NamedTuple):
    """One of those that are compared.

    Attributes:
        step: makes one step and returns the loss.
        multiply: makes one product of the size of ``operations``.
        operations: floating-point operations of that product.
        flops: those of all products in a step.
    """

    step: Callable[[], float]
    multiply: Callable[[], object]
    operations: float
    flops: float


def serve(side: Side) -> None:
    """Make as many steps as each line of standard input says; answer with time, rates and peak memory.

    ``seconds`` are those of the clock; ``processor`` counts each core's, which other processes disturb less.
    """
    for line in sys.stdin:
        start, used = time.perf_counter(), time.process_time()
        losses = [side.step() for _ in range(int(line))]
        seconds, used = time.perf_counter() - start, time.process_time() - used
        answer = {
            "seconds": seconds,
            "processor": used,
            "rate": side.flops * len(losses) / seconds,
            "product_rate": side.operations / min(seconds_of(side.multiply) for _ in range(10)),
            "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "loss": losses[-1],
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

    def run(self, steps: int) -> dict[str, float]:
        """Make steps and wait for them."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(steps, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
