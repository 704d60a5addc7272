"""What a training step costs on the devices that are here, measured."""

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, Literal

import jax
from jax.sharding import Mesh

from mlmjax.data.base import Batches
from mlmjax.objectives.base import Work
from mlmjax.training.ceiling import product_rate
from mlmjax.training.loop import IN_FLIGHT, advance
from mlmjax.training.metrics import Clock, Record, device_peak_memory
from mlmjax.training.step import Program, Report

Part = Callable[[int, int], Batches]
"""Batches from a step on, up to another."""

_LEAST_SECONDS = 0.5
_MOST_BATCHES = 100_000


@dataclass(frozen=True)
class Allotted:
    """Bytes of one device that the compiled step takes, as XLA allots them.

    Attributes:
        arguments: the state and a batch.
        results: those that do not lie where an argument did.
        temporaries: what is computed in between.
        code: the program.
    """

    arguments: int
    results: int
    temporaries: int
    code: int

    @classmethod
    def of(cls, compiled: Any) -> "Allotted | None":
        """Of a compiled function; None where the device's compiler does not tell."""
        found = compiled.memory_analysis()
        if found is None:
            return None
        return cls(
            arguments=found.argument_size_in_bytes,
            results=found.output_size_in_bytes - found.alias_size_in_bytes,
            temporaries=found.temp_size_in_bytes,
            code=found.generated_code_size_in_bytes,
        )

    @property
    def total(self) -> int:
        """All of it."""
        return self.arguments + self.results + self.temporaries + self.code


@dataclass(frozen=True)
class Speed:
    """What was measured.

    Attributes:
        device: what the devices call themselves.
        mesh: devices along each axis.
        dtype: in which the model computes.
        batch: rows of a step.
        work: what a step computes and reads, by the model's formula.
        steps: how many were measured.
        skipped: those of them and before whose gradient was not finite; they cost less.
        trace_seconds: from Python to the compiler's input.
        compile_seconds: of the compiler.
        cache: where compiled programs are kept, so that the compiler may not have run.
        step_seconds: mean time of a step, waiting included.
        wait_seconds: mean time in which a step waits for data.
        pipeline: rows a second that the data pipeline gives while nothing is trained.
        ceiling: operations a second of a matrix product on all devices at once.
        allotted: bytes that the step takes on one device; None where the compiler does not tell.
        peak: most bytes in use until the last step.
        peak_of: the fullest device, or the process where devices do not tell.
    """

    device: str
    mesh: dict[str, int]
    dtype: str
    batch: int
    work: Work
    steps: int
    skipped: int
    trace_seconds: float
    compile_seconds: float
    cache: str | None
    step_seconds: float
    wait_seconds: float
    pipeline: float
    ceiling: float
    allotted: Allotted | None
    peak: int
    peak_of: Literal["device", "process"]

    @property
    def devices(self) -> int:
        """How many there are."""
        return math.prod(self.mesh.values())

    @property
    def flops(self) -> float:
        """Operations of the model a second, all devices together."""
        return self.work.flops / self.step_seconds

    @property
    def utilisation(self) -> float:
        """The share of the ceiling that the model's own operations reach."""
        return self.flops / self.ceiling

    @property
    def wait_share(self) -> float:
        """The share of a step in which it waits for data."""
        return self.wait_seconds / self.step_seconds

    def per_second(self, rows: float) -> float:
        """What so many rows a second are in the unit of the work."""
        return rows * self.work.units / self.batch

    def as_json(self) -> dict[str, Any]:
        """Flat figures; seconds, bytes and operations."""
        unit, rows = self.work.unit, self.batch / self.step_seconds
        allotted = None
        if self.allotted is not None:
            allotted = {**asdict(self.allotted), "total": self.allotted.total}
        return {
            "device": self.device,
            "devices": self.devices,
            "mesh": self.mesh,
            "dtype": self.dtype,
            "batch": self.batch,
            "steps": self.steps,
            "skipped": self.skipped,
            "steps_per_second": 1 / self.step_seconds,
            "rows_per_second": rows,
            f"{unit}_per_second": self.per_second(rows),
            "step_seconds": self.step_seconds,
            "data_wait_seconds": self.wait_seconds,
            "data_wait_share": self.wait_share,
            "pipeline_rows_per_second": self.pipeline,
            "trace_seconds": self.trace_seconds,
            "compile_seconds": self.compile_seconds,
            "compilation_cache": self.cache,
            "model_flops": self.work.flops,
            "model_flops_per_second": self.flops,
            "ceiling_flops_per_second": self.ceiling,
            "utilisation": self.utilisation,
            "bytes_per_device": allotted,
            "peak_bytes": self.peak,
            "peak_of": self.peak_of,
        }


def measure(
    program: Program,
    part: Part,
    *,
    steps: int,
    warmup: int = 3,
    on_step: Callable[[int], None] = lambda step: None,
) -> Speed:
    """Make some first steps of a run, as training makes them, and measure; nothing is written.

    Args:
        program: on devices that are here.
        part: its batches.
        steps: how many are measured.
        warmup: steps before these.
        on_step: told of every step that was handed to the devices.
    """
    mesh = program.mesh
    assert isinstance(mesh, Mesh)
    experiment = program.experiment
    started = time.perf_counter()
    lowered = program.step().lower(program.state, program.batch)
    traced = time.perf_counter()
    compiled = lowered.compile()
    ended = time.perf_counter()
    figures, last = _timed(program, compiled, part, steps=steps, warmup=warmup, on_step=on_step)
    dtype = getattr(experiment.model, "dtype", "float32")
    return Speed(
        device=mesh.devices.flat[0].device_kind,
        mesh=dict(mesh.shape),
        dtype=dtype,
        batch=experiment.data.batch,
        work=program.work,
        steps=steps,
        skipped=int(last["skipped"]),
        trace_seconds=traced - started,
        compile_seconds=ended - traced,
        cache=jax.config.jax_compilation_cache_dir,  # type: ignore[attr-defined]
        step_seconds=figures["step_seconds"],
        wait_seconds=figures["data_wait_seconds"],
        pipeline=pipeline_rate(
            part, batch=experiment.data.batch, start=warmup + steps, count=steps
        ),
        ceiling=product_rate(mesh, dtype),
        allotted=Allotted.of(compiled),
        peak=int(figures["peak_memory_bytes"]),
        peak_of="process" if device_peak_memory() is None else "device",
    )


def pipeline_rate(part: Part, *, batch: int, start: int, count: int) -> float:
    """Rows a second that the data pipeline gives by itself.

    Every batch that is begun is counted, so what was read ahead neither adds nor takes away.

    Args:
        part: batches.
        batch: rows in each, over all processes.
        start: the first step whose batch is read.
        count: how many are read at least; more where they come too fast to be timed.
    """
    while True:
        began = time.perf_counter()
        with closing(part(start, start + count)) as batches:
            read = sum(1 for _ in batches)
        seconds = time.perf_counter() - began
        if seconds >= _LEAST_SECONDS or count >= _MOST_BATCHES:
            return batch * read / seconds
        start, count = start + count, 4 * count


def _timed(
    program: Program,
    compiled: Any,
    part: Part,
    *,
    steps: int,
    warmup: int,
    on_step: Callable[[int], None],
) -> tuple[Record, Report]:
    """The clock's figures of the steps after the warm-up, and the last step's report."""
    state, clock, running = program.initial_state(), Clock(program.work), deque[Report]()

    def end(upto: int) -> None:
        while len(running) > upto:
            jax.block_until_ready(running.popleft())
            clock.step()

    jax.block_until_ready(state)
    with closing(part(0, warmup + steps)) as batches:
        for step in range(1, warmup + steps + 1):
            state, report = advance(program, compiled, state, batches, clock)
            running.append(report)
            end(IN_FLIGHT)
            if step == warmup:
                end(0)
                clock.lap()
            on_step(step)
        end(0)
        return clock.lap(), report
