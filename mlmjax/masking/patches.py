"""Patches of a grid: at random, or all but a regular few; in blocks, see ``patch_blocks``.

A mask numbers the patches of a grid of rows and columns row by row. The count is exact, so that with a fixed ratio
the masked and the visible patches of all examples have the same, static, shape.
"""

import numbers
from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key, UInt32
from pydantic import Field

from mlmjax.core.config import Config
from mlmjax.core.errors import UserError
from mlmjax.core.types import Mask
from mlmjax.masking.base import Ratio, Step, as_mask, random_bits
from mlmjax.masking.units import prefix

Grid = tuple[int, int]
"""Rows and columns of patches."""


class PatchSelection(Config):
    """q(M given x): which patches of an image are predicted. Subclasses say how."""

    ratio: Annotated[float, Field(gt=0, lt=1)] = 0.75
    """Share of the patches that is masked, in (0, 1)."""

    def count(self, patches: int, ratio: float | None = None) -> int:
        """The exact number of masked patches: round(ratio * patches), halves to even; it may be 0 or all.

        Args:
            patches: of an image.
            ratio: in place of the selection's own, such as the highest that a schedule reaches.
        """
        return patch_count(patches, self.ratio if ratio is None else ratio)

    @abstractmethod
    def __call__(
        self,
        key: Key[Array, ""],
        grid: Grid,
        *,
        ratio: Ratio | None = None,
        capacity: int | None = None,
        step: Step = 0,
    ) -> Mask:
        """The mask of one example; ``vmap`` it over keys.

        Args:
            key: the example's own.
            grid: rows and columns of patches.
            ratio: in place of the selection's own; may be traced.
            capacity: places in the mask; by default :meth:`count` of the grid and the ratio.
            step: the number of updates made so far; may be traced.

        Raises:
            UserError: the ratio is traced, and no capacity is given.
        """


class RandomPatches(PatchSelection):
    """Single patches, uniformly (MAE, He et al. 2022, section 3)."""

    def __call__(
        self,
        key: Key[Array, ""],
        grid: Grid,
        *,
        ratio: Ratio | None = None,
        capacity: int | None = None,
        step: Step = 0,
    ) -> Mask:
        """The mask of one example (:func:`select_patches`)."""
        del step
        ratio = self.ratio if ratio is None else ratio
        return select_patches(key, grid, ratio=ratio, capacity=capacity)


class GridPatches(PatchSelection):
    """All but a regular lattice (He et al. 2022, section 4.1, "grid")."""

    def __call__(
        self,
        key: Key[Array, ""],
        grid: Grid,
        *,
        ratio: Ratio | None = None,
        capacity: int | None = None,
        step: Step = 0,
    ) -> Mask:
        """The mask of one example (:func:`select_patch_grid`)."""
        del step
        ratio = self.ratio if ratio is None else ratio
        return select_patch_grid(key, grid, ratio=ratio, capacity=capacity)


def select_patches(
    key: Key[Array, ""], grid: Grid, *, ratio: Ratio, capacity: int | None = None
) -> Mask:
    """Mask round(ratio * patches) patches uniformly: one random score a patch, the smallest are masked.

    Args:
        key: the example's own.
        grid: rows and columns of patches.
        ratio: share of the patches, in [0, 1]; may be traced.
        capacity: places in the mask. Where it is less than the count, no more are masked. Default: the count.

    Raises:
        UserError: the ratio is traced and no capacity is given, or one of them is out of range.
    """
    budget = Budget.of(grid, ratio, capacity)
    return as_mask(
        smallest_scores(random_bits(key, budget.patches) >> 1, budget.count), budget.capacity
    )


def select_patch_grid(
    key: Key[Array, ""], grid: Grid, *, ratio: Ratio, capacity: int | None = None
) -> Mask:
    """Mask round(ratio * patches) patches: all but a lattice of random phase, as regular as the count allows.

    The lattice holds every k-th patch in both directions, with the k of at least 2 whose square is nearest to the
    patches per visible patch: at a ratio of 0.75 every second one. Where it holds more than are to remain in sight,
    chance takes some away; where it holds fewer, patches farthest from it are added, so that a ratio of one half
    gives a chequerboard.

    Args:
        key: the example's own.
        grid: rows and columns of patches.
        ratio: share of the patches, in [0, 1]; may be traced.
        capacity: places in the mask. Where it is less than the count, no more are masked. Default: the count.

    Raises:
        UserError: the ratio is traced and no capacity is given, or one of them is out of range.
    """
    budget = Budget.of(grid, ratio, capacity)
    bits = random_bits(key, budget.patches + 2)
    left = budget.patches - budget.count
    # k is as near to the root of patches / left as k + 1 where k (k + 1) left is the patches.
    strides = np.arange(2, int(np.sqrt(budget.patches)) + 2)
    stride = 2 + (left <= (budget.patches - 1) // (strides * (strides + 1))).sum()
    rows, columns = (
        _distances(count, stride, word) for count, word in zip(grid, bits[-2:], strict=True)
    )
    distance = jnp.square(rows)[:, None] + jnp.square(columns)
    # The lattice first, then what is farthest from it; of equals, chance decides.
    farthest = 2 * int(strides[-1] + 1) ** 2
    order = jnp.where(distance == 0, 0, farthest - distance).astype(jnp.uint32).ravel()
    chance = 31 - farthest.bit_length()
    scores = (order << chance) | (bits[:-2] >> (32 - chance))
    return as_mask(~smallest_scores(scores, left), budget.capacity)


def complement(mask: Mask, length: int, *, capacity: int) -> Mask:
    """The positions that a mask does not hold, ascending: of masked patches, the visible ones.

    Args:
        mask: of one example.
        length: number of positions.
        capacity: places for the others; what is beyond is left out.
    """
    places = jnp.where(mask.weight > 0, mask.positions, length)
    return as_mask(jnp.ones(length, bool).at[places].set(False, mode="drop"), capacity)


def patch_count(patches: int, ratio: float) -> int:
    """round(ratio * patches), halves to even.

    Computed in float32 as a traced ratio's count is, lest the two round a half to different sides.
    """
    return int(np.round(np.float32(ratio) * np.float32(patches)))


@dataclass(frozen=True)
class Budget:
    """How many patches are masked.

    Attributes:
        patches: of the grid.
        count: those that are masked; traced where the ratio is.
        capacity: places in the mask.
    """

    patches: int
    count: Int[Array, ""]
    capacity: int

    @classmethod
    def of(cls, grid: Grid, ratio: Ratio, capacity: int | None) -> "Budget":
        patches = grid[0] * grid[1]
        if isinstance(ratio, numbers.Real):
            if not 0 <= ratio <= 1:
                raise UserError(f"ratio is {ratio}, but a share of the patches lies in [0, 1].")
            capacity = patch_count(patches, float(ratio)) if capacity is None else capacity
        if capacity is None:
            raise UserError(
                "A ratio that is an array does not say how large a mask is. Give the capacity too: "
                "selection.count(patches, highest), with the highest ratio of the schedule."
            )
        if capacity < 0:
            raise UserError(f"capacity is {capacity}, but a mask cannot have less than 0 places.")
        count = jnp.round(jnp.float32(ratio) * jnp.float32(patches)).astype(jnp.int32)
        return cls(patches, jnp.clip(count, 0, capacity), capacity)


def smallest_scores(
    scores: UInt32[Array, " patches"], count: Int[Array, ""]
) -> Bool[Array, " patches"]:
    """The patches with the ``count`` smallest scores of 31 bits; of equal ones, the first comes first."""
    return prefix(scores, jnp.ones(scores.size, jnp.int32), count)


def _distances(
    count: int, stride: Int[Array, ""], word: UInt32[Array, ""]
) -> Int[Array, " {count}"]:
    """Of each line of a grid from the nearest of every ``stride``-th, begun at random."""
    phase = (word % stride.astype(jnp.uint32)).astype(jnp.int32)
    steps = (jnp.arange(count) + phase) % stride
    return jnp.minimum(steps, stride - steps)
