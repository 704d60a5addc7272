"""What a run shows beside the loop's records: at its evaluations and at its end. One class a modality."""

from pathlib import Path
from typing import Any

from mlmjax.data.base import Prepared
from mlmjax.report.terminal import Terminal
from mlmjax.training.folder import RunFolder
from mlmjax.training.metrics import read_records
from mlmjax.training.state import Parameters
from mlmjax.training.step import Program


class RunReport:
    """What a run of any data shows: its held-out figures. Text and images derive from it and show more.

    Args:
        program: what is trained.
        prepared: its data.
        files: the run folder.
        terminal: where tables and texts go.
    """

    def __init__(
        self, program: Program, prepared: Prepared, *, files: RunFolder, terminal: Terminal
    ):
        self.program = program
        self.prepared = prepared
        self.files = files
        self.terminal = terminal

    def evaluated(self, step: int, parameters: Parameters) -> dict[str, float]:
        """Show what there is at an evaluation; further held-out figures by name."""
        return {}

    def ended(self, parameters: Parameters) -> None:
        """Print the results of a run that has all its steps."""
        figures = self.figures()
        rows = [(name.replace("_", " "), f"{figures[name]:.4f}") for name in sorted(figures)]
        self.terminal.table("Held-out results", ("", "model"), rows)

    def close(self) -> None:
        """End what is held open."""

    def figures(self) -> dict[str, float]:
        """The held-out figures of the last record."""
        record = read_records(Path(self.files.metrics))[-1]
        return {
            name.removeprefix("heldout/"): value
            for name, value in record.items()
            if "heldout/" in name
        }

    def settings(self) -> dict[str, Any]:
        """How batches are asked for."""
        data, seed = self.program.experiment.data, self.program.experiment.run.seed
        return {"seed": seed, "batch": data.batch, "threads": data.threads}
