"""Blocks of patches (BEiT, Bao et al. 2021, algorithm 1)."""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key, UInt32
from pydantic import Field

from mlmjax.core.errors import UserError
from mlmjax.core.types import Mask
from mlmjax.masking.base import Ratio, Step, as_mask, random_bits
from mlmjax.masking.patches import Budget, Grid, PatchSelection, smallest_scores

ASPECT_BITS = 12
"""Of the random number that chooses the aspect of a block."""

WORDS = 4
"""Random ones that a block takes."""

ROUNDS = 256
"""Blocks that are tried before single patches fill up; 95 % of 16 by 16 patches rarely take more than 120."""


class BlockPatches(PatchSelection):
    """Rectangular blocks, one over the other (BEiT, Bao et al. 2021, algorithm 1)."""

    smallest: Annotated[int, Field(gt=0)] = 16
    """Patches in a block at least; what is over when the count is reached is cut off."""
    aspect: Annotated[float, Field(gt=0, le=1)] = 0.3
    """Height by width of a block lies between this and its inverse, up to whole patches."""

    def __call__(
        self,
        key: Key[Array, ""],
        grid: Grid,
        *,
        ratio: Ratio | None = None,
        capacity: int | None = None,
        step: Step = 0,
    ) -> Mask:
        """The mask of one example (:func:`select_patch_blocks`)."""
        del step
        return select_patch_blocks(
            key,
            grid,
            ratio=self.ratio if ratio is None else ratio,
            capacity=capacity,
            smallest=self.smallest,
            aspect=self.aspect,
        )


def select_patch_blocks(
    key: Key[Array, ""],
    grid: Grid,
    *,
    ratio: Ratio,
    capacity: int | None = None,
    smallest: int = 16,
    aspect: float = 0.3,
) -> Mask:
    """Mask round(ratio * patches) patches in blocks, one after the other, which may overlap.

    The size of a block is uniform between ``smallest`` and what is missing, its aspect log-uniform (so that high
    and wide ones are alike; algorithm 1 as printed draws it uniformly, the published code does not), its place
    uniform among those inside the grid. Of the block that reaches the count only as many patches are masked as are
    missing, line by line from a random corner. If the count is smaller than ``smallest``, so are blocks; if the
    grid is too narrow for an aspect, the nearest takes its place. What :data:`ROUNDS` blocks leave open, single
    patches fill.

    Args:
        key: the example's own.
        grid: rows and columns of patches.
        ratio: share of the patches, in [0, 1]; may be traced.
        capacity: places in the mask. Where it is less than the count, no more are masked. Default: the count.
        smallest: patches in a block at least.
        aspect: least height by width of a block, and least width by height; in (0, 1].

    Raises:
        UserError: the ratio is traced and no capacity is given, or one of the numbers is out of range.
    """
    if smallest < 1 or not 0 < aspect <= 1:
        raise UserError(
            f"smallest is {smallest} and aspect {aspect}: a block has at least 1 patch, and an aspect in (0, 1]."
        )
    budget = Budget.of(grid, ratio, capacity)
    bits = random_bits(key, budget.patches + ROUNDS * WORDS)
    chance, draws = bits[: budget.patches] >> 2, bits[budget.patches :].reshape(ROUNDS, WORDS)
    least = jnp.minimum(smallest, budget.count)

    def unfinished(state: _Blocks) -> Bool[Array, ""]:
        return (state.masked.sum() < budget.count) & (state.number < ROUNDS)

    def add(state: _Blocks) -> _Blocks:
        most = jnp.maximum(least, budget.count - state.masked.sum())
        block = _block(draws[state.number], grid, least=least, most=most, aspect=aspect)
        return _Blocks(state.masked | block, state.masked, state.number + 1)

    nothing = jnp.zeros(grid, bool)
    blocks = jax.lax.while_loop(unfinished, add, _Blocks(nothing, nothing, jnp.int32(0)))
    masked, before = blocks.masked.ravel(), blocks.before.ravel()
    # What the last block adds is cut, or by chance added to.
    cut = 1 + _line_by_line(draws[blocks.number - 1, 1], grid).ravel()
    scores = jnp.where(before, 0, jnp.where(masked, cut, chance | (1 << 30)))
    return as_mask(smallest_scores(scores, budget.count), budget.capacity)


class _Blocks(NamedTuple):
    """What blocks mask: all so far, and all but the last; and their number."""

    masked: Bool[Array, "rows columns"]
    before: Bool[Array, "rows columns"]
    number: Int[Array, ""]


def _block(
    words: UInt32[Array, " words"],
    grid: Grid,
    *,
    least: Int[Array, ""],
    most: Int[Array, ""],
    aspect: float,
) -> Bool[Array, "rows columns"]:
    """A random block.

    No root, quotient or logarithm is rounded on the device: another might round it otherwise.

    Args:
        words: random.
        grid: rows and columns.
        least: patches in the block at least.
        most: at most, but for the rounding of its sides.
        aspect: shorter by longer side, at least.
    """
    size = least + (words[0] % (most - least + 1).astype(jnp.uint32)).astype(jnp.int32)
    wide = (words[1] >> (31 - ASPECT_BITS)) & 1
    height_room, width_room = grid
    room = jnp.where(wide, height_room, width_room), jnp.where(wide, width_room, height_room)
    # The shorter side is the root of size times aspect, rounded.
    area = size.astype(jnp.float32) * jnp.asarray(_aspects(aspect))[words[1] >> (32 - ASPECT_BITS)]
    halves = np.arange(1, max(grid) + 1, dtype=np.float32) - np.float32(0.5)
    short = (np.square(halves) <= area).sum(dtype=jnp.int32)
    short = jnp.clip(short, -(-size // room[1]), room[0])
    long = -(-size // short)
    inside = []
    for side, count, word in (
        (jnp.where(wide, short, long), grid[0], words[2]),
        (jnp.where(wide, long, short), grid[1], words[3]),
    ):
        start = (word % (count - side + 1).astype(jnp.uint32)).astype(jnp.int32)
        line = jnp.arange(count)
        inside.append((line >= start) & (line < start + side))
    return inside[0][:, None] & inside[1]


def _line_by_line(word: UInt32[Array, ""], grid: Grid) -> UInt32[Array, "rows columns"]:
    """An order of all patches, row by row or column by column, from a random corner."""
    by_column, upwards, leftwards = ((word >> at) & 1 for at in range(3))
    rows, columns = (jnp.arange(count, dtype=jnp.uint32) for count in grid)
    row = jnp.where(upwards, rows[::-1], rows)[:, None]
    column = jnp.where(leftwards, columns[::-1], columns)
    return jnp.where(by_column, column * grid[0] + row, row * grid[1] + column)


def _aspects(least: float) -> np.ndarray:
    """Shorter by longer side, log-uniform from the least to 1: one for each number of that many bits."""
    share = (np.arange(2**ASPECT_BITS) + 0.5) / 2**ASPECT_BITS
    return np.asarray(np.exp(np.log(least) * share), np.float32)
