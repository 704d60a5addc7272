"""Whole words: all tokens of a word are selected, or none."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from mlmjax.core.types import Mask
from mlmjax.masking.base import (
    Count,
    Ratio,
    Selection,
    as_mask,
    below,
    bernoulli_capacity,
    exact_capacity,
    exact_count,
    random_bits,
    random_scores,
    resolve_capacity,
)

WORD_TOKENS = 4
"""Size of the word of a mean token, for which a Bernoulli capacity allows; text has less."""


class WordSelection(Selection):
    """Whole words in random order ("whole word masking", google-research/bert, May 2019)."""

    count: Count = "exact"
    """``exact``: as many words as fit max(1, round(ratio * eligible)) tokens. ``bernoulli``: each
    word with probability ``ratio``."""

    def capacity(self, length: int, ratio: float | None = None) -> int:
        """The number of places that a mask of a row of ``length`` tokens has.

        With the Bernoulli count, the mean and six standard deviations for words of four tokens.
        """
        return word_capacity(length, self.ratio if ratio is None else ratio, count=self.count)

    def __call__(
        self,
        key: Key[Array, ""],
        eligible: Bool[Array, " length"],
        word_starts: Bool[Array, " length"],
        *,
        ratio: Ratio | None = None,
        capacity: int | None = None,
    ) -> Mask:
        """The mask of one example (:func:`select_words`)."""
        return select_words(
            key,
            eligible,
            word_starts=word_starts,
            ratio=self.ratio if ratio is None else ratio,
            capacity=capacity,
            count=self.count,
        )


def word_capacity(length: int, ratio: float, *, count: Count) -> int:
    """Places enough for :func:`select_words` in a row of ``length`` tokens of ordinary text."""
    if count == "exact":
        return exact_capacity(length, ratio)
    return bernoulli_capacity(length, ratio, block=WORD_TOKENS)


def select_words(
    key: Key[Array, ""],
    eligible: Bool[Array, " length"],
    *,
    word_starts: Bool[Array, " length"],
    ratio: Ratio,
    capacity: int | None = None,
    count: Count = "exact",
) -> Mask:
    """Select whole words of one row (see :func:`word_numbers` for what is a word).

    With the exact count, words are taken in random order until max(1, round(ratio * eligible))
    tokens are; a word that does not fit in what is left is skipped, and smaller ones after it may
    fit. So at the end of the budget short words are likelier than long ones; words of one size are
    equally likely. Where every word is larger than the budget, one of the smallest is selected, if
    the capacity holds it.

    Args:
        key: the example's own.
        eligible: the tokens that may be selected.
        word_starts: the tokens that begin a word.
        ratio: share of the eligible tokens, in (0, 1]; may be traced.
        capacity: places in the mask. Where Bernoulli selects more tokens, whole words with the
            largest scores fall out. Default: :func:`word_capacity`.
        count: ``exact`` as above; ``bernoulli`` selects each word by itself with probability
            ``ratio``.

    Raises:
        UserError: the ratio is traced and no capacity is given, or one of them is out of range.
    """
    length = eligible.size
    capacity = resolve_capacity(capacity, length, ratio, partial(word_capacity, count=count))
    word = word_numbers(eligible, word_starts)
    sizes = unit_sizes(word)
    scores = random_scores(random_bits(key, length), sizes > 0)
    order = jnp.argsort(scores)
    if count == "exact":
        accepted = fill_budget(
            sizes[order], budget=exact_count(eligible.sum(), ratio), capacity=capacity
        )
    else:
        hits = jnp.arange(length) < below(scores, ratio).sum()
        accepted = hits & (jnp.cumsum(sizes[order]) <= capacity)
    return unit_mask(word, order=order, accepted=accepted, capacity=capacity)


def word_numbers(
    eligible: Bool[Array, " length"], word_starts: Bool[Array, " length"]
) -> Int[Array, " length"]:
    """The number of each token's word, counted from 0; ``length`` where a token is not eligible.

    A word begins at an eligible token that is a word start, or that follows a token that is not
    eligible: special tokens and padding end a word, and a row may begin in the middle of one.
    """
    follows = jnp.concatenate([jnp.zeros(1, bool), eligible[:-1]])
    begins = eligible & (word_starts | ~follows)
    return jnp.where(eligible, jnp.cumsum(begins) - 1, eligible.size)


def unit_sizes(unit: Int[Array, " length"]) -> Int[Array, " length"]:
    """Tokens in each unit, given each token's unit; 0 beyond the last unit."""
    return jnp.zeros(unit.size, jnp.int32).at[unit].add(1, mode="drop")


def fill_budget(
    sizes: Int[Array, " units"], *, budget: Int[Array, ""], capacity: int
) -> Bool[Array, " units"]:
    """Accept units greedily, in the order given, as long as they fit in a budget of tokens.

    A unit that does not fit in what is left is skipped. Where every unit is larger than the budget,
    the first of the smallest is accepted, if the capacity holds it.

    Args:
        sizes: tokens in each unit; 0 where there is no unit.
        budget: tokens to accept at most.
        capacity: tokens to accept at most, also where the budget is too small for any unit.
    """

    def fits(accepted: Bool[Array, " units"], left: Int[Array, ""]) -> Bool[Array, " units"]:
        return ~accepted & (sizes > 0) & (sizes <= left)

    def accept(state: tuple[Array, Array]) -> tuple[Array, Array]:
        # What fits is accepted up to the first unit that no longer does; that one never will again,
        # so a round decides many units at once, and a few rounds decide all.
        accepted, left = state
        open_ = fits(accepted, left)
        taken = open_ & (jnp.cumsum(jnp.where(open_, sizes, 0)) <= left)
        return accepted | taken, left - jnp.where(taken, sizes, 0).sum(dtype=left.dtype)

    start = jnp.zeros(sizes.shape, bool), jnp.minimum(budget, capacity).astype(jnp.int32)
    accepted, _ = jax.lax.while_loop(lambda state: fits(*state).any(), accept, start)
    present = jnp.where(sizes > 0, sizes, capacity + 1)
    smallest = present.argmin()
    instead = ~accepted.any() & (present[smallest] <= capacity)
    return accepted.at[smallest].set(accepted[smallest] | instead)


def unit_mask(
    unit: Int[Array, " length"],
    *,
    order: Int[Array, " length"],
    accepted: Bool[Array, " length"],
    capacity: int,
) -> Mask:
    """The mask of all tokens of the accepted units.

    Args:
        unit: each token's unit; ``length`` where it has none.
        order: units in the order in which they were considered.
        accepted: whether each of them, in that order, is selected.
        capacity: places in the mask.
    """
    chosen = jnp.zeros_like(accepted).at[order].set(accepted, unique_indices=True)
    return as_mask(chosen.at[unit].get(mode="fill", fill_value=False), capacity)
