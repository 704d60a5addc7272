"""The panels of the picture of an audit of masks of patches."""

from typing import TYPE_CHECKING

import numpy as np

from mlmjax.evaluation.audit.patch_figures import PatchFigures
from mlmjax.report.audit_common import percent
from mlmjax.report.audit_style import ASKED, FOUND, INK, heading, legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def _shares(axes: "Axes", figures: PatchFigures) -> None:
    """Where masked patches lie."""
    masked = figures.masked
    _grid(axes, 100 * np.array(figures.heat_map.masked), "% of examples", "viridis", None)
    spread = (
        f"{masked.least} to {masked.most}" if masked.least != masked.most else f"{masked.least}"
    )
    heading(
        axes,
        "Masked by patch",
        f"{percent(masked.ratio)} of all, {percent(masked.asked)} asked; {spread} of an example",
    )


def _sigmas(axes: "Axes", figures: PatchFigures) -> None:
    """How far that is from what chance gives."""
    found = figures.heat_map
    reach = max(3.0, abs(found.largest))
    _grid(axes, np.array(found.sigmas), "sigmas", "RdBu_r", reach)
    axes.plot(found.column, found.row, "o", ms=9, mfc="none", mec=ASKED, mew=2)
    heading(
        axes,
        "Deviation from all patches alike",
        f"largest {found.largest:+.1f} sigmas (marked); p = {found.p:.2g}",
    )


def _grid(axes: "Axes", values: np.ndarray, label: str, colours: str, reach: float | None) -> None:
    """A colour a patch; with a reach, colours are centred on 0."""
    from matplotlib.ticker import MaxNLocator

    least = None if reach is None else -reach
    image = axes.imshow(values, cmap=colours, interpolation="nearest", vmin=least, vmax=reach)
    axes.grid(False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        axis.set_major_formatter(lambda place, _: f"{place + 1:.0f}")
    axes.set_xlabel("column", fontsize=9, color=INK)
    axes.set_ylabel("row", fontsize=9, color=INK)
    assert axes.figure is not None
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.85, label=label)
    bar.ax.tick_params(labelsize=8, length=0)


def _parts(axes: "Axes", figures: PatchFigures) -> None:
    """Sizes of connected parts: how many masked patches lie in parts of each."""
    largest = max(len(parts.counts) for parts in figures.parts)
    edges = np.unique(np.ceil(2.0 ** np.arange(0, np.log2(max(largest, 1)) + 1.5, 0.5)))
    for parts, colour in zip(figures.parts, (FOUND, ASKED), strict=True):
        size = np.arange(1, len(parts.counts) + 1)
        patches = np.array(parts.counts) * size
        shares, _ = np.histogram(size, bins=edges, weights=patches / max(patches.sum(), 1))
        named = {"selection": "the selection", "random": "as many at random"}[parts.what]
        axes.stairs(
            100 * shares,
            edges,
            fill=parts.what == "selection",
            color=colour,
            lw=1.6,
            label=f"{named}: mean {parts.mean:.1f}",
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda place, _: f"{place:.0f}")
    axes.set_xlabel("patches in a connected part", fontsize=9, color=INK)
    axes.set_ylabel("% of masked patches", fontsize=9, color=INK)
    axes.set_ylim(0, 1.3 * axes.get_ylim()[1])
    axes.set_yticks([tick for tick in axes.get_yticks() if tick <= 100])
    chosen, random = figures.parts
    heading(
        axes,
        "Sizes of connected parts",
        f"{chosen.of_an_example:.1f} parts of an example; at random {random.of_an_example:.1f}",
    )
    legend(axes)


PATCH_PANELS = (_shares, _sigmas, _parts)
