"""The audit of masks of patches as tables."""

from collections.abc import Iterator

import numpy as np

from mlmjax.evaluation.audit.patch_figures import HeatMap, Parts, PatchFigures
from mlmjax.report.audit_common import percent
from mlmjax.report.terminal import Terminal

SHADES = "░▒▓█"
"""From a patch that is masked less often than chance has it to one that is masked more often."""
LINES = 32
"""Rows and columns of a grid that are shown at most."""
SIGMAS = 2
"""Deviation from which on a patch is shown as masked more or less often than others."""
SIZES = ((1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 32), (33, 64), (65, None))
"""First and last of the sizes of parts that share a column."""


def show_patches(figures: PatchFigures, terminal: Terminal) -> None:
    """Print the tables of an audit of masks of patches, all but what has to hold."""
    masked = figures.masked
    patches = figures.grid[0] * figures.grid[1]
    terminal.table(
        "Masked",
        ("", "found", "asked"),
        [
            ("of all patches", percent(masked.ratio), percent(masked.asked)),
            ("of an example", _range(masked.least, masked.most), f"{masked.count} of {patches}"),
            *_stages(figures),
        ],
    )
    terminal.say(f"{heat_map(figures.heat_map)}\n")
    terminal.table(
        "Connected parts", ("", "found", "as many at random"), list(_parts(*figures.parts))
    )


def heat_map(found: HeatMap) -> str:
    """The grid with a shade a patch, and the largest deviation."""
    shares = [one for row in found.masked for one in row]
    said = (
        f"Masked by patch: {percent(min(shares))} to {percent(max(shares))}; largest deviation "
        f"{found.largest:+.1f} sigmas, at row {found.row + 1}, column {found.column + 1} "
        f"(p = {found.p:.2g} if all are alike)"
    )
    sigmas = np.array(found.sigmas)
    if max(sigmas.shape) > LINES:
        return said
    bounds = -SIGMAS, 0, SIGMAS
    lines = ["".join(2 * SHADES[step] for step in row) for row in np.digitize(sigmas, bounds)]
    shades = f"{SHADES[0]} below -{SIGMAS} sigmas, {SHADES[-1]} above {SIGMAS}"
    return "\n".join([said, *lines, shades])


def _stages(figures: PatchFigures) -> Iterator[tuple[str, str, str]]:
    masked = figures.masked
    if not np.isclose(masked.lowest, masked.highest):
        yield "ratio of all steps", "", f"{percent(masked.lowest)} to {percent(masked.highest)}"


def _range(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"


def _parts(found: Parts, random: Parts) -> Iterator[tuple[str, str, str]]:
    def row(name: str, *values: float, unit: str = "") -> tuple[str, str, str]:
        first, second = (f"{one:.1f}{unit}" for one in values)
        return name, first, second

    both = found, random
    yield row("parts of an example", *(one.of_an_example for one in both))
    yield row("patches in a part", *(one.mean for one in both))
    yield row("patches in the part around a patch", *(one.around for one in both))
    yield row("patches in the largest of an example", *(one.largest for one in both))
    for low, high in SIZES:
        shares = [100 * sum(one.counts[low - 1 : high]) / max(sum(one.counts), 1) for one in both]
        if any(shares):
            size = f"{low} or more" if high is None else _range(low, high)
            yield row(f"parts of {size}", *shares, unit=" %")
