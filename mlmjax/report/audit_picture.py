"""The audit of masks as a picture: six panels for tokens, three for patches."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mlmjax.core.errors import UserError
from mlmjax.evaluation.audit.figures import Figures, Findings, Group
from mlmjax.evaluation.audit.patch_figures import PatchFigures
from mlmjax.report.audit_common import summary
from mlmjax.report.audit_patch_panels import PATCH_PANELS
from mlmjax.report.audit_style import ALARM, ASKED, FAINT, FOUND, INK, OTHER, dress, heading, legend
from mlmjax.report.places import check_place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIGMAS = 3
"""Half the width of the band of chance, in standard deviations."""


def check_picture(path: Path) -> None:
    """Refuse a place where no picture can be written, before any work is done.

    Raises:
        UserError: it cannot be written.
    """
    check_place(path, option="--png")


def write_picture(figures: Findings, path: Path, *, title: str) -> None:
    """Draw an audit into a PNG.

    Args:
        figures: of the audit.
        path: the file; written over where there is one.
        title: what stands above, such as the config's name.

    Raises:
        UserError: it cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = 2 if isinstance(figures, Figures) else 1
    figure = Figure(figsize=(15, 0.6 + 4 * rows), dpi=120, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    broken = "".join(f"\nbroken: {must}" for must in figures.broken)
    figure.suptitle(
        f"{title}: {summary(figures)}{broken}",
        x=0.006,
        ha="left",
        fontsize=13,
        fontweight="bold",
        color=ALARM if broken else INK,
    )
    axes = figure.subplots(rows, 3).ravel()
    for one in axes:
        dress(one)
    if isinstance(figures, Figures):
        for draw, one in zip(PANELS, axes, strict=True):
            draw(one, figures)
    elif isinstance(figures, PatchFigures):
        for draw_patches, one in zip(PATCH_PANELS, axes, strict=True):
            draw_patches(one, figures)
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise UserError(f"--png {path} cannot be written: {error.strerror or error}.") from error


def _positions(axes: "Axes", figures: Figures) -> None:
    where, mean = figures.positions, 100 * figures.selected.of_eligible
    shares = 100 * np.array([np.nan if one is None else one for one in where.selected])
    place = np.arange(shares.size)
    seen = np.maximum(np.array(where.eligible), 1)
    spread = SIGMAS * np.sqrt(mean * (100 - mean) / seen)
    known = np.array(where.eligible) > 0
    band = np.where(known, spread, np.nan)
    axes.fill_between(
        place, mean - band, mean + band, color=FAINT, lw=0, label=f"mean ± {SIGMAS} sigma"
    )
    axes.plot(place, shares, color=FOUND, lw=1.2, label="selected")
    reach = max(np.nanmax(np.abs(shares - mean), initial=0), np.nanmax(band, initial=0), 0.1)
    limits = mean - 1.6 * reach, mean + 1.5 * reach  # the strip lies below
    axes.set_ylim(*limits)
    axes.set_yticks([tick for tick in axes.get_yticks() if max(0, limits[0]) <= tick <= limits[1]])
    axes.set_xlim(-0.5, shares.size - 0.5)
    strip = axes.inset_axes((0, 0.02, 1, 0.08))
    strip.imshow(shares[None], aspect="auto", cmap="viridis", interpolation="nearest")
    strip.set_axis_off()
    axes.set_ylabel("% of eligible tokens", fontsize=9, color=INK)
    axes.set_xlabel("position in the row", fontsize=9, color=INK)
    judged = (
        "too few rows for a test"
        if where.p is None
        else f"alike over {where.bins} parts: p = {where.p:.2g}"
    )
    heading(axes, "Selected by position", judged)
    legend(axes)


def _targets(axes: "Axes", figures: Figures) -> None:
    targets, documents = figures.targets, figures.documents
    counts = np.array(targets.histogram)
    axes.bar(
        range(counts.size),
        100 * counts / max(counts.sum(), 1),
        width=0.9,
        color=FOUND,
        label="examples",
    )
    if documents:
        inside = np.array(documents.histogram)
        axes.step(
            range(inside.size),
            100 * inside / max(inside.sum(), 1),
            where="mid",
            color=ASKED,
            label="documents",
        )
    axes.axvline(figures.capacity, color=INK, lw=1, ls=":", label=f"places: {figures.capacity}")
    first = 0 if documents else max(targets.least - max(2, figures.capacity // 10), -1)
    axes.set_xlim(first - 0.5, figures.capacity + max(2, figures.capacity // 20))
    axes.set_ylabel("%", fontsize=9, color=INK)
    axes.set_xlabel("targets", fontsize=9, color=INK)
    empty = f"{targets.without} examples"
    if documents:
        empty += f", {documents.without} of {documents.examples} documents"
    heading(
        axes,
        "Targets of an example",
        f"{targets.least} to {targets.most}, mean {targets.mean:.1f}; none: {empty}",
    )
    legend(axes, "best")


def _lengths(axes: "Axes", figures: Figures) -> None:
    spans = [one for one in figures.lengths if one.asked is not None and any(one.counts)]
    shown = spans or list(figures.lengths)
    longest = max(8, *(_reach(one.counts) for one in shown))
    width = 0.8 / len(shown)
    for number, one in enumerate(shown):
        counts = np.array(one.counts[:longest], float)
        place = np.arange(1, counts.size + 1) + (number - (len(shown) - 1) / 2) * width
        axes.bar(
            place,
            100 * counts / max(sum(one.counts), 1),
            width=width,
            color=(FOUND, OTHER)[number % 2],
            label=f"{one.what} in {one.unit}, mean {one.mean:.2f}",
        )
        if one.asked is not None and number == len(shown) - 1:
            asked = np.array(one.asked[:longest])
            axes.plot(range(1, asked.size + 1), 100 * asked, "o", ms=5, color=ASKED, label="asked")
    axes.set_xlim(0.4, longest + 0.6)
    axes.set_xticks(range(1, longest + 1, -(-longest // 12)))
    axes.set_ylabel("%", fontsize=9, color=INK)
    axes.set_xlabel("length", fontsize=9, color=INK)
    judged = [f"whole spans as asked: p = {one.p:.2g}" for one in spans if one.p is not None]
    heading(
        axes,
        "Lengths of spans" if spans else "Runs of neighbouring targets",
        judged[0]
        if judged
        else "too few for a test"
        if spans
        else "the selection asks for no lengths",
    )
    legend(axes)


def _reach(counts: Sequence[int]) -> int:
    """The length that all but one in a thousand do not exceed."""
    upto = np.cumsum(counts)
    return int(np.searchsorted(upto, 0.999 * upto[-1])) + 1 if upto.size else 1


def _fates(axes: "Axes", figures: Figures) -> None:
    fates, selected = figures.corruption.fates, figures.selected
    share = selected.asked * selected.eligible / max(selected.valid, 1)
    place, width = np.arange(len(fates)), 0.38
    for shift, color, whole, found, asked in (
        (
            -width / 2,
            FOUND,
            "of the selected",
            [f.of_targets for f in fates],
            [f.asked for f in fates],
        ),
        (
            width / 2,
            OTHER,
            "of all tokens",
            [f.of_valid for f in fates],
            [f.asked * share for f in fates],
        ),
    ):
        bars = axes.bar(place + shift, 100 * np.array(found), width=width, color=color, label=whole)
        axes.bar_label(
            bars, [f"{100 * one:.1f}" for one in found], fontsize=8.5, color=INK, padding=3
        )
        last = shift > 0
        axes.hlines(
            100 * np.array(asked),
            place + shift - width / 2,
            place + shift + width / 2,
            color=ASKED,
            lw=1.6,
            label="asked" if last else "",
        )
    axes.set_xticks(place, [fate.name for fate in fates])
    axes.set_ylabel("%", fontsize=9, color=INK)
    p = figures.corruption.p
    heading(
        axes,
        "What the encoder sees at targets",
        f"{100 * selected.of_eligible:.2f} % of eligible tokens are targets"
        + ("" if p is None else f"; shares as asked: p = {p:.2g}"),
    )
    legend(axes)


def _groups(axes: "Axes", groups: Sequence[Group], figures: Figures) -> None:
    """How much of each group is selected."""
    place = np.arange(len(groups))
    found = [100 * (group.selected or 0) for group in groups]
    mean = 100 * figures.selected.of_eligible
    bars = axes.bar(place, found, width=0.7, color=FOUND)
    axes.bar_label(
        bars, [f"{one:.1f}" for one in found], label_type="center", fontsize=8.5, color="white"
    )
    axes.axhline(mean, color=ASKED, lw=1.4, label=f"of all: {mean:.1f} %")
    axes.set_ylim(0, 1.3 * max(*found, mean, 0.1))
    axes.set_ylabel("% of eligible tokens", fontsize=9, color=INK)
    legend(axes)


def _bands(axes: "Axes", figures: Figures) -> None:
    _groups(axes, figures.frequency, figures)
    names = [group.name.removesuffix(" %") for group in figures.frequency]
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_xlabel("% of the training text, from frequent to rare tokens", fontsize=9, color=INK)
    heading(axes, "Selected by frequency", "each band is about a tenth of the text")


def _kinds(axes: "Axes", figures: Figures) -> None:
    _groups(axes, figures.kinds, figures)
    names = [
        f"{group.name}\n{100 * group.of_eligible:.0f} % of text\n{100 * group.of_targets:.0f} % of targets"
        for group in figures.kinds
    ]
    axes.set_xticks(range(len(names)), names, fontsize=8.5)
    words = figures.words
    heading(
        axes,
        "Selected by kind of token",
        f"{words.split} of {words.longer} selected words of several tokens are split",
    )


PANELS = (_positions, _targets, _lengths, _fates, _bands, _kinds)
