"""The same experiment with several seeds: a run each, and the mean and spread of their held-out figures."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from mlmjax import distributed
from mlmjax.core.errors import UserError
from mlmjax.experiment import Experiment
from mlmjax.pretraining import pretrain
from mlmjax.report import classification_run, image_run, text_run
from mlmjax.report.terminal import Terminal
from mlmjax.training.folder import RunFolder
from mlmjax.training.metrics import read_records

SUMMARY = "seeds.json"
"""File beside the runs."""
SHOWN = (
    *classification_run.HELD_OUT,
    *text_run.HELD_OUT,
    *image_run.HELD_OUT,
    *(f"{method}_accuracy" for method in image_run.METHODS),
)
"""Figures that the table shows where they are there; in the file are all."""


@dataclass(frozen=True)
class Spread:
    """One held-out figure over the seeds.

    Attributes:
        values: of each seed, in order.
        mean: of the values.
        std: their sample standard deviation, with n - 1 in the denominator; None of one value.
    """

    values: tuple[float, ...]
    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of at least one value."""
        std = statistics.stdev(values) if len(values) > 1 else None
        return cls(tuple(values), statistics.fmean(values), std)


def train_seeds(
    experiment: Experiment,
    count: int,
    *,
    source: Path | None = None,
    trust_code: bool = False,
    terminal: Terminal | None = None,
) -> dict[str, Spread] | None:
    """Train with the seeds ``run.seed``, ``run.seed + 1``, ..., in folders ``seed-<seed>`` of the run's folder.

    Runs that are finished already are only read, and one that was cut off goes on, so the same call goes on with
    what is missing. The seed decides of everything that is drawn: initial parameters, the order of examples, masks,
    dropout. The split into training and held-out part is the same for all, as it is a function of the data alone.

    Args:
        experiment: with a ``run.folder``, in which the runs and a ``seeds.json`` are written.
        count: of seeds.
        source: as :func:`mlmjax.pretraining.pretrain`.
        trust_code: likewise.
        terminal: where progress and results go.

    Returns:
        Each held-out figure that all runs have; None where training was interrupted.

    Raises:
        UserError: as pretraining; or the folder is itself a run's.
        DivergedError: the gradient of a run stayed not finite.
    """
    run = experiment.run
    if run.folder is None:
        raise UserError("The run has no folder: set run.folder.")
    parent = RunFolder(run.folder)
    if parent.exists():
        raise UserError(
            f"{run.folder} holds one run, and --seeds writes a folder of several: choose another --run.folder."
        )
    seeds = list(range(run.seed, run.seed + count))
    runs = [run.updated(seed=seed, folder=str(parent.path / f"seed-{seed}")) for seed in seeds]
    terminal = terminal or Terminal()
    if not distributed.first():
        terminal = Terminal(Console(quiet=True))
    for number, each in enumerate(runs, 1):
        terminal.say(f"Seed {each.seed}, run {number} of {count}:")
        outcome = pretrain(
            experiment.updated(run=each), source=source, trust_code=trust_code, terminal=terminal
        )
        if outcome is not None and outcome.ended == "interrupted":
            terminal.say(
                f"The same command with --seeds {count} goes on with this run and the {count - number} after it."
            )
            return None
    if not distributed.first():
        return {}
    figures = [_figures(RunFolder(str(each.folder)), each.steps) for each in runs]
    names = [name for name in figures[0] if all(name in each for each in figures)]
    found = {name: Spread.of([each[name] for each in figures]) for name in names}
    _write(Path(parent.path / SUMMARY), seeds, found)
    _show(seeds, found, terminal)
    terminal.say(f"All held-out figures of all seeds are in {parent.path / SUMMARY}.")
    return found


def _figures(files: RunFolder, steps: int) -> dict[str, float]:
    """The held-out figures of a finished run."""
    records = [record for record in read_records(Path(files.metrics)) if record["step"] == steps]
    figures = {
        name.removeprefix("heldout/"): float(value)
        for record in records
        for name, value in record.items()
        if name.startswith("heldout/")
    }
    if not figures:
        raise UserError(
            f"{files.metrics} has no held-out figures of the last step, {steps}: remove {files.path} to train that "
            "seed again."
        )
    return figures


def _write(path: Path, seeds: Sequence[int], found: dict[str, Spread]) -> None:
    content = {
        "seeds": list(seeds),
        "n": len(seeds),
        "figures": {
            name: {"values": each.values, "mean": each.mean, "std": each.std}
            for name, each in found.items()
        },
    }
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def _show(seeds: Sequence[int], found: dict[str, Spread], terminal: Terminal) -> None:
    """A row a seed, then mean and standard deviation; a column a figure."""
    names = [name for name in dict.fromkeys(SHOWN) if name in found] or sorted(found)
    rows = [
        (str(seed), *(f"{found[name].values[place]:.4f}" for name in names))
        for place, seed in enumerate(seeds)
    ]
    rows.append(("mean", *(f"{found[name].mean:.4f}" for name in names)))
    if len(seeds) > 1:
        rows.append(("standard deviation", *(f"{found[name].std:.4f}" for name in names)))
    columns = ("seed", *(name.replace("_", " ") for name in names))
    terminal.table(f"Held-out results of {len(seeds)} seeds", columns, rows)
