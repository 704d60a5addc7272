"""The audit of masks as tables; as a picture, see ``audit_picture``."""

from collections.abc import Iterator, Sequence

import numpy as np
from rich.markup import escape

from mlmjax.evaluation.audit.figures import Figures, Findings, Group, Lengths, Targets
from mlmjax.evaluation.audit.patch_figures import PatchFigures
from mlmjax.report.audit_common import percent, show_musts, summary
from mlmjax.report.audit_patches import show_patches
from mlmjax.report.terminal import Terminal

SPARKS = "▁▂▃▄▅▆▇█"
CELLS = 32
"""Parts of a row that have a cell of their own in the table."""
LENGTHS = ((1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (7, 10), (11, None))
"""First and last of the lengths that share a column."""


def show(figures: Findings, terminal: Terminal) -> None:
    """Print the tables of an audit."""
    terminal.say(f"Audit of {summary(figures)}")
    if isinstance(figures, Figures):
        _show_text(figures, terminal)
    elif isinstance(figures, PatchFigures):
        show_patches(figures, terminal)
    show_musts(figures, terminal)


def _show_text(figures: Figures, terminal: Terminal) -> None:
    selected, eligible = (
        figures.selected,
        figures.selected.eligible / max(figures.selected.valid, 1),
    )
    asked = selected.asked
    terminal.table(
        "Selected",
        ("", "found", "asked"),
        [
            ("of eligible tokens", percent(selected.of_eligible), percent(asked)),
            ("of all tokens", percent(selected.of_valid), percent(asked * eligible)),
            *_highest(figures),
        ],
    )
    terminal.table(
        "What the encoder sees there",
        ("", "of selected", "asked", "of all tokens", "asked"),
        [
            (
                fate.name,
                percent(fate.of_targets),
                percent(fate.asked),
                percent(fate.of_valid),
                percent(fate.asked * asked * eligible),
            )
            for fate in figures.corruption.fates
        ],
    )
    terminal.say(
        f"{figures.corruption.random_right} random tokens are the right one by chance{_p(figures.corruption.p)}."
    )
    _show_targets(figures, terminal)
    terminal.say(f"{sparkline(figures)}\n")
    columns = ("", "mean", *_columns(), "p")
    terminal.table("Lengths, in % of each", columns, list(_lengths(figures.lengths)))
    for title, groups in (
        ("Tokens by frequency in the training text", figures.frequency),
        ("Tokens by kind", figures.kinds),
    ):
        columns = ("", "ids", "of eligible", "of targets", "selected", "such as")
        terminal.table(title, columns, [_group(group) for group in groups])
    _show_tokens(figures, terminal)


def sparkline(figures: Figures) -> str:
    """Share selected over the row, from none to twice the mean, and whether chance spreads it so."""
    shares = cells(figures)
    mean = figures.selected.of_eligible
    steps = [0 if one is None else int(min(one / (2 * mean or 1), 0.999) * 8) for one in shares]
    line = "".join(
        " " if one is None else SPARKS[step] for one, step in zip(shares, steps, strict=True)
    )
    known = [one for one in shares if one is not None]
    low, high = (percent(one) for one in (min(known, default=None), max(known, default=None)))
    judged = (
        "too few rows for a test"
        if figures.positions.p is None
        else f"p = {figures.positions.p:.2g}"
    )
    return f"Selected by position, start to end: {line}\n{low} to {high} in {len(shares)} parts; {judged}"


def cells(figures: Figures) -> list[float | None]:
    """Share selected of the eligible tokens in each part of the row."""
    where, eligible = figures.positions, np.array(figures.positions.eligible)
    selected = np.array([one or 0.0 for one in where.selected]) * eligible
    starts = np.unique(np.arange(CELLS) * figures.length // CELLS)
    pairs = zip(np.add.reduceat(selected, starts), np.add.reduceat(eligible, starts), strict=True)
    return [float(chosen / total) if total else None for chosen, total in pairs]


def _highest(figures: Figures) -> Iterator[tuple[str, str, str]]:
    if not np.isclose(figures.selected.highest, figures.selected.asked):
        yield "highest ratio of all steps", "", percent(figures.selected.highest)


def _p(p: float | None) -> str:
    return "" if p is None else f"; the shares differ from those asked with p = {p:.2g}"


def _show_targets(figures: Figures, terminal: Terminal) -> None:
    def row(name: str, targets: Targets, *places: str) -> tuple[str, ...]:
        numbers = targets.least, f"{targets.mean:.2f}", targets.most, targets.without
        return (name, str(targets.examples), *map(str, numbers), *places)

    rows = [row("example", figures.targets, str(figures.capacity), str(figures.full))]
    if figures.documents:
        rows.append(row("document", figures.documents, "", ""))
    columns = ("of one", "counted", "least", "mean", "most", "none", "places", "all used")
    terminal.table("Targets", columns, rows)


def _columns() -> list[str]:
    return [
        f"{low}+" if high is None else str(low) if low == high else f"{low}-{high}"
        for low, high in LENGTHS
    ]


def _lengths(lengths: Sequence[Lengths]) -> Iterator[tuple[str, ...]]:
    def spread(shares: np.ndarray) -> list[str]:
        return [f"{100 * shares[low - 1 : high].sum():.1f}" for low, high in LENGTHS]

    for one in lengths:
        counts = np.array(one.counts, float)
        shares, p = spread(counts / max(counts.sum(), 1)), "" if one.p is None else f"{one.p:.2g}"
        yield f"{one.what} in {one.unit}", f"{one.mean:.2f}", *shares, p
        if one.asked is not None:
            asked = np.array(one.asked)
            mean = asked @ np.arange(1, asked.size + 1)
            yield "  asked", f"{mean:.2f}", *spread(asked), ""


def _group(group: Group) -> tuple[str, ...]:
    shares = group.of_eligible, group.of_targets, group.selected
    return group.name, str(group.types), *map(percent, shares), escape(" ".join(group.examples))


def _show_tokens(figures: Figures, terminal: Terminal) -> None:
    for title, tokens in (
        ("Most selected", figures.most_selected),
        ("Selected above the share of all", figures.over_selected),
    ):
        terminal.table(
            title,
            ("token", "selected", "of eligible", "z"),
            [
                (escape(one.token), str(one.targets), percent(one.selected), f"{one.z:.1f}")
                for one in tokens
            ],
        )
