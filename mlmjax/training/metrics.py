"""Where the metrics of a run go: JSON lines, TensorBoard, Weights & Biases; and what is measured by the clock."""

import json
import math
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax

from mlmjax.core.errors import UserError
from mlmjax.objectives.base import Work

Record = dict[str, int | float]
"""One logged step: ``step`` and flat names such as ``train/mask_loss``."""


@runtime_checkable
class Sink(Protocol):
    """Something that takes records."""

    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """``metrics.jsonl``: one object a logged step.

    A run that goes on from a checkpoint drops what was logged after it, and a line that was cut off,
    so that the file is what an uninterrupted run writes.
    """

    def __init__(self, path: Path, *, resumed_at: int):
        kept = [record for record in read_records(path) if record["step"] <= resumed_at]
        partial = path.with_name(path.name + ".partial")
        partial.write_text("".join(json.dumps(each) + "\n" for each in kept), encoding="utf-8")
        partial.replace(path)
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: Record) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_records(path: Path) -> list[Record]:
    """The records of a ``metrics.jsonl``; none where it does not exist; a cut-off last line is left out.

    Raises:
        UserError: another line is damaged; the message names it.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    records: list[Record] = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            record = json.loads(line)
            record["step"] += 0
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}:{number} is not a record of metrics: remove that line to go on."
            ) from error
        records.append(record)
    return records


class TensorBoard:
    """Event files for TensorBoard."""

    def __init__(self, folder: Path, *, resumed_at: int):
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=resumed_at + 1 if resumed_at else None)

    def write(self, record: Record) -> None:
        for name, value in record.items():
            if name != "step":
                self._writer.add_scalar(name, value, int(record["step"]))

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run in a Weights & Biases project, named as its folder is."""

    def __init__(self, project: str, *, folder: Path, config: dict[str, Any]):
        import wandb

        self._run = wandb.init(
            project=project, name=folder.name, dir=str(folder), config=config, resume="allow"
        )

    def write(self, record: Record) -> None:
        self._run.log({k: v for k, v in record.items() if k != "step"}, step=int(record["step"]))

    def close(self) -> None:
        self._run.finish()


class Clock:
    """Throughput between two logged steps."""

    def __init__(self, work: Work):
        self._work = work
        self._since, self._waited, self._steps = time.perf_counter(), 0.0, 0

    def step(self) -> None:
        """Count one step that has ended."""
        self._steps += 1

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time in here is spent waiting for data."""
        start = time.perf_counter()
        yield
        self._waited += time.perf_counter() - start

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time in here is not spent training."""
        start = time.perf_counter()
        yield
        self._since += time.perf_counter() - start

    def lap(self) -> Record:
        """The figures of the steps that ended since the last lap; of none, the memory alone."""
        if not self._steps:
            return {"peak_memory_bytes": float(peak_memory())}
        now = time.perf_counter()
        seconds, steps = max(now - self._since, 1e-9), self._steps
        figures = {
            f"{self._work.unit}_per_second": self._work.units * steps / seconds,
            "step_seconds": seconds / steps,
            "data_wait_seconds": self._waited / steps,
            "model_flops_per_second": self._work.flops * steps / seconds,
            "peak_memory_bytes": float(peak_memory()),
        }
        self._since, self._waited, self._steps = now, 0.0, 0
        return figures


class Log:
    """Records on their way to the sinks: kept back until the device has made them, so nobody waits.

    A figure for which nothing was counted, or that is not finite, is left out: JSON has no such numbers.
    """

    def __init__(self, sinks: Sequence[Sink]):
        self._sinks = sinks
        self._pending: dict[int, dict[str, Any]] = {}

    def add(self, step: int, figures: Mapping[str, Any], *, prefix: str = "") -> None:
        """Add figures, numbers or arrays that are still being computed, to the record of a step."""
        record = self._pending.setdefault(step, {})
        record.update({prefix + name: value for name, value in figures.items()})

    def write(self, *, upto: int) -> None:
        """Write the records of all steps up to this one; waits for what is not computed yet."""
        for step in sorted(each for each in self._pending if each <= upto):
            record = jax.device_get(self._pending.pop(step))
            floats = {name: float(value) for name, value in record.items()}
            finite = {name: value for name, value in floats.items() if math.isfinite(value)}
            numbers = {"step": step, **finite}
            for sink in self._sinks:
                sink.write(numbers)


def peak_memory() -> int:
    """Most bytes used so far on this process's fullest device; of the process where devices do not tell."""
    peak = device_peak_memory()
    if peak is not None:
        return peak
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def device_peak_memory() -> int | None:
    """Most bytes used so far on this process's fullest device; None where devices do not tell."""
    stats = [device.memory_stats() for device in jax.local_devices()]
    peaks = [each["peak_bytes_in_use"] for each in stats if each and "peak_bytes_in_use" in each]
    return max(peaks, default=None)
