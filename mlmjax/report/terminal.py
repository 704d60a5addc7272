"""Progress and tables in the terminal."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from mlmjax.training.metrics import Record

SHOWN = {
    "train/loss": "loss",
    "train/mask_accuracy": "accuracy",
    "train/class_accuracy": "accuracy",
}
"""Figures beside the bar, and how they are called there."""


class Terminal:
    """Bars for preparation and training; a line where the output is not a terminal."""

    def __init__(self, console: Console | None = None):
        self.console = console or Console()
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._figures = ""

    @contextmanager
    def live(self) -> Iterator[None]:
        """While in here, bars are drawn."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.fields[figures]}"),
        )
        disabled = not self.console.is_terminal
        with Progress(*columns, console=self.console, disable=disabled) as self._progress:
            yield
        self._progress, self._tasks = None, {}

    def report(self, stage: str, done: int, total: int) -> None:
        """Move the bar of a stage; a total of 0 is not known."""
        if self._progress is None:
            return
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, figures="")
        figures = self._figures if stage == "train" else ""
        self._progress.update(
            self._tasks[stage], completed=done, total=total or None, figures=figures
        )

    def write(self, record: Record) -> None:
        """Show a record: beside the bar, or as a line where there is no terminal."""
        shown = [f"{short} {record[name]:.3f}" for name, short in SHOWN.items() if name in record]
        for name, value in record.items():
            if name.endswith("_per_second") and "flops" not in name:
                unit = name.removeprefix("train/").removesuffix("_per_second")
                shown.append(f"{value:.0f} {unit}/s")
        self._figures = "  ".join(shown)
        if not self.console.is_terminal:
            self.say(f"step {record['step']}  {self._figures}")

    def close(self) -> None:
        """Nothing is held open."""

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table; its first column is text, the others are figures."""
        table = Table(title=title, title_justify="left")
        for index, column in enumerate(columns):
            table.add_column(column, justify="left" if index == 0 else "right")
        for row in rows:
            table.add_row(*row)
        self.console.print(table)

    def say(self, text: str) -> None:
        """Print a text as it is."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
