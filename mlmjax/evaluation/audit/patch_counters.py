"""Counting where masked patches lie, and how they hang together; on the host."""

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import ndimage, stats

from mlmjax.evaluation.audit.counters import Histogram
from mlmjax.evaluation.audit.patch_figures import HeatMap, Parts
from mlmjax.masking import Grid

NEIGHBOURS = np.pad(ndimage.generate_binary_structure(2, 1)[None], ((1, 1), (0, 0), (0, 0)))
"""Of a patch: those that share a side with it, in the same example."""


def heat_map(at: Int[np.ndarray, "rows columns"], examples: int) -> HeatMap:
    """Where masked patches lie, and how far that is from what chance gives.

    Args:
        at: how often each patch is masked.
        examples: of how many.
    """
    share = at.mean() / max(examples, 1)
    spread = np.sqrt(examples * share * (1 - share))
    sigmas = (at - at.mean()) / spread if spread else np.zeros(at.shape)
    row, column = np.unravel_index(np.abs(sigmas).argmax(), at.shape)
    largest = float(sigmas[row, column])
    # Of one patch, and then of the largest of all.
    alone = min(float(2 * stats.norm.sf(abs(largest))), 1 - 1e-16)
    return HeatMap(
        masked=_rows(at / max(examples, 1)),
        sigmas=_rows(sigmas),
        examples=examples,
        largest=largest,
        row=int(row),
        column=int(column),
        p=float(-np.expm1(at.size * np.log1p(-alone))),
    )


def _rows(values: Float[np.ndarray, "rows columns"]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in values.tolist())


class PartTally:
    """Connected parts of masks of patches; neighbours lie above, below, left or right."""

    def __init__(self, grid: Grid):
        """Nothing is counted yet."""
        self._grid, self._sizes, self._examples, self._largest = grid, Histogram(), 0, 0

    def add(self, masked: Bool[np.ndarray, "examples patches"]) -> None:
        """Count the parts of some masks."""
        number, count = ndimage.label(masked.reshape(-1, *self._grid), structure=NEIGHBOURS)
        sizes = np.bincount(number.ravel(), minlength=count + 1)
        sizes[0] = 0
        self._sizes.add(sizes[1:])
        self._largest += int(sizes[number].max(axis=(1, 2)).sum())
        self._examples += len(masked)

    def figures(self, what: str) -> Parts:
        """What was counted.

        Args:
            what: whose parts they are.
        """
        counts, examples = self._sizes.counts, max(self._examples, 1)
        size = np.arange(counts.size)
        patches = int(counts @ size)
        return Parts(
            what=what,
            of_an_example=self._sizes.total / examples,
            mean=self._sizes.mean,
            around=float(counts @ size**2 / max(patches, 1)),
            largest=self._largest / examples,
            counts=tuple(counts[1:].tolist()),
        )
