"""Whole words: all tokens of a word are selected, or none."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Key

from mlmjax.core.types import Mask
from mlmjax.masking.base import (
    Count,
    Ratio,
    Row,
    Selection,
    Step,
    as_mask,
    below,
    bernoulli_capacity,
    exact_capacity,
    exact_count,
    random_bits,
    random_scores,
    resolve_capacity,
)
from mlmjax.masking.units import (
    fill_budget,
    first,
    prefix,
    unit_sizes,
    unit_tokens,
    word_numbers,
)

WORD_TOKENS = 4
"""Size of the word of a mean token, for which a Bernoulli capacity allows; text has less."""


class WordSelection(Selection):
    """Whole words in random order ("whole word masking", google-research/bert, May 2019)."""

    count: Count = "exact"
    """``exact``: as many words as fit max(1, round(ratio * eligible)) tokens. ``bernoulli``: each
    word with probability ``ratio``."""
    at_least_one: bool = False
    """Where the Bernoulli count hits no word of a row, one is selected all the same."""

    @property
    def whole_words(self) -> bool:
        """It keeps words whole."""
        return True

    def capacity(self, length: int, ratio: float | None = None) -> int:
        """The number of places that a mask of a row of ``length`` tokens has.

        With the Bernoulli count, the mean and six standard deviations for words of four tokens.
        """
        return word_capacity(length, self.ratio if ratio is None else ratio, count=self.count)

    def __call__(
        self,
        key: Key[Array, ""],
        row: Row,
        *,
        ratio: Ratio | None = None,
        capacity: int | None = None,
        step: Step = 0,
    ) -> Mask:
        """The mask of one example (:func:`select_words`)."""
        del step
        return select_words(
            key,
            row.eligible,
            word_starts=row.word_starts,
            ratio=self.ratio if ratio is None else ratio,
            capacity=capacity,
            count=self.count,
            at_least_one=self.at_least_one,
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
    at_least_one: bool = False,
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
        at_least_one: where ``bernoulli`` selects none, the word with the smallest score is
            selected, of those that the capacity holds.

    Raises:
        UserError: the ratio is traced and no capacity is given, or one of them is out of range.
    """
    capacity = resolve_capacity(capacity, eligible.size, ratio, partial(word_capacity, count=count))
    word = word_numbers(eligible, word_starts)
    sizes = unit_sizes(word)
    scores = random_scores(random_bits(key, eligible.size), sizes > 0)
    if count == "exact":
        budget = exact_count(eligible.sum(), ratio)
        chosen = fill_budget(scores, sizes, budget=budget, capacity=capacity)
        return as_mask(unit_tokens(word, chosen), capacity)

    def overflows(hit: Bool[Array, " length"]) -> Bool[Array, ""]:
        return jnp.where(hit, sizes, 0).sum() > capacity

    def cut(hit: Bool[Array, " length"]) -> Bool[Array, " length"]:
        return prefix(scores, jnp.where(hit, sizes, 0), capacity)

    # A loop of at most one round, since of a condition vmap computes both sides.
    hit = jax.lax.while_loop(overflows, cut, below(scores, ratio))
    if at_least_one:
        hit = hit | (first(scores, (sizes > 0) & (sizes <= capacity)) & ~hit.any())
    return as_mask(unit_tokens(word, hit), capacity)
