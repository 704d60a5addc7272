"""What all selections share: which tokens may be selected, how many, and the form of the result."""

import numbers
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, UInt32
from pydantic import Field

from mlmjax.core.config import Config
from mlmjax.core.errors import UserError
from mlmjax.core.types import Mask

Step = Int[Array, ""] | int
"""Number of updates made so far; may be traced."""

Ratio = float | Float[Array, ""]
"""Share of the eligible tokens; a scheduled ratio is traced."""

Count = Literal["exact", "bernoulli"]
"""``exact``: a fixed share of each row. ``bernoulli``: each unit by itself, a random count."""

LAST = np.uint32(2**32 - 1)
"""A score above all that are drawn."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Row:
    """What a selection may look at: one row, or one document of a packed row.

    Attributes:
        eligible: the tokens that may be selected (:func:`eligible_tokens`).
        word_starts: the tokens that begin a word.
        sentence_starts: the tokens that begin a sentence.
        frequency: share of the corpus' training tokens that are this token; 0 for special tokens
            and padding.
    """

    eligible: Bool[Array, "*batch length"]
    word_starts: Bool[Array, "*batch length"]
    sentence_starts: Bool[Array, "*batch length"]
    frequency: Float[Array, "*batch length"]


class Selection(Config):
    """q(M given x): which positions of an example are predicted. Subclasses say how."""

    ratio: Annotated[float, Field(gt=0, le=1)] = 0.15
    """Share of the eligible tokens that is selected, in (0, 1]."""

    def capacity(self, length: int, ratio: float | None = None) -> int:
        """The number of places that a mask of a row of ``length`` tokens has.

        Args:
            length: tokens in a row.
            ratio: the highest that a schedule reaches; by default the selection's own.
        """
        return exact_capacity(length, self.ratio if ratio is None else ratio)

    @property
    def whole_words(self) -> bool:
        """Whether all tokens of a word are selected, or none; an audit holds the selection to it."""
        return False

    @abstractmethod
    def __call__(
        self,
        key: Key[Array, ""],
        row: Row,
        *,
        ratio: Ratio | None = None,
        capacity: int | None = None,
        step: Step = 0,
    ) -> Mask:
        """The mask of one example; ``vmap`` it over keys and rows.

        Args:
            key: the example's own.
            row: its tokens.
            ratio: in place of the selection's own; may be traced.
            capacity: places in the mask; by default :meth:`capacity` of the row and the ratio.
            step: the number of updates made so far; may be traced.

        Raises:
            UserError: the ratio is traced, and no capacity is given.
        """


def eligible_tokens(
    tokens: Int[Array, "*batch length"],
    valid: Bool[Array, "*batch length"],
    *,
    special: Sequence[int],
) -> Bool[Array, "*batch length"]:
    """The tokens that may be selected: neither padding nor special.

    Args:
        tokens: token ids.
        valid: False where a row is padded.
        special: the ids that are never selected (``Vocabulary.special``).
    """
    return valid & ~jnp.isin(tokens, jnp.asarray(special, tokens.dtype))


def exact_capacity(length: int, ratio: float) -> int:
    """The budget of a row in which every token is eligible, which is the largest of any row.

    Computed in float32 as :func:`exact_count` is, lest the two round a half to different sides.
    """
    return max(1, int(np.round(np.float32(ratio) * np.float32(length))))


def bernoulli_capacity(length: int, ratio: float, *, block: int = 1) -> int:
    """Mean plus six standard deviations of the count when each block of tokens is a trial.

    Args:
        length: tokens in a row.
        ratio: the probability that a block is selected.
        block: tokens in a block; the spread of the count grows with its root.
    """
    spread = np.sqrt(ratio * (1 - ratio) * length * block)
    return min(length, int(np.ceil(ratio * length + 6 * spread)))


def resolve_capacity(
    capacity: int | None, length: int, ratio: Ratio, bound: Callable[[int, float], int]
) -> int:
    """The capacity that was given or, without one, the bound for a ratio known before compilation.

    Raises:
        UserError: the capacity or the ratio is out of range, or neither is known.
    """
    if isinstance(ratio, numbers.Real) and not 0 < ratio <= 1:
        raise UserError(f"ratio is {ratio}, but a share of the eligible tokens lies in (0, 1].")
    if capacity is not None and capacity < 1:
        raise UserError(f"capacity is {capacity}, but a mask has at least one place.")
    if capacity is not None:
        return capacity
    if isinstance(ratio, numbers.Real):
        return bound(length, float(ratio))
    raise UserError(
        "A ratio that is an array does not say how large a mask is. Give the capacity too: "
        "selection.capacity(length, highest), with the highest ratio of the schedule."
    )


def exact_count(total: Int[Array, ""], ratio: Ratio) -> Int[Array, ""]:
    """max(1, round(ratio * total)), halves to even; 0 where the total is 0."""
    count = jnp.round(jnp.float32(ratio) * total.astype(jnp.float32)).astype(jnp.int32)
    return jnp.minimum(jnp.maximum(count, 1), total.astype(jnp.int32))


def random_bits(key: Key[Array, ""], count: int) -> UInt32[Array, " {count}"]:
    """Independent words of 32 random bits."""
    # Without the barrier XLA copies the generator into each fusion that reads the bits: slower to
    # compile and to run.
    return jax.lax.optimization_barrier(jax.random.bits(key, (count,), jnp.uint32))


def random_scores(
    bits: UInt32[Array, " units"], present: Bool[Array, " units"]
) -> UInt32[Array, " units"]:
    """31 random bits a unit; :data:`LAST` where there is none. The smallest are selected first."""
    return jnp.where(present, bits >> 1, LAST)


def below(scores: UInt32[Array, " units"], ratio: Ratio) -> Bool[Array, " units"]:
    """Whether each unit is selected when each is selected by itself, with probability ``ratio``.

    A function of the scores, so that where a capacity overflows the largest scores fall out.
    """
    share = (scores >> 7).astype(jnp.float32) * 2.0**-24
    return (scores != LAST) & (share < ratio)


def rounded(share: Ratio, total: Int[Array, ""], bits: UInt32[Array, ""]) -> Int[Array, ""]:
    """``share`` of a total, up or down by chance: right in the mean, also of a total of 1.

    Args:
        share: in [0, 1], in steps of 2^-14; may be traced.
        total: less than 2^17.
        bits: random; the same bits for a larger share never give less.
    """
    parts = jnp.round(jnp.float32(share) * 2.0**14).astype(jnp.uint32)
    return ((parts * total.astype(jnp.uint32) + (bits >> 18)) >> 14).astype(jnp.int32)


def as_mask(selected: Bool[Array, " length"], capacity: int) -> Mask:
    """The selected positions in ascending order; beyond ``capacity`` they are left out."""
    length = selected.size
    positions = jnp.flatnonzero(selected, size=capacity, fill_value=length).astype(jnp.int32)
    used = positions < length
    return Mask(positions=jnp.where(used, positions, 0), weight=used.astype(jnp.float32))
