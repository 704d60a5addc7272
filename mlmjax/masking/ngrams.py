"""N-grams of whole words, short ones likelier (ALBERT, Lan et al. 2020, section 4.1)."""

from typing import Annotated

import numpy as np
from jaxtyping import Array, Bool, Key
from pydantic import Field

from mlmjax.core.types import Mask
from mlmjax.masking.base import Ratio, as_mask, exact_capacity, resolve_capacity
from mlmjax.masking.spans import Law, SpanLaw, span_numbers


def harmonic(longest: int) -> Law:
    """P(length = n) proportional to 1 / n for n = 1 .. longest."""
    shares = 1 / np.arange(1, longest + 1)
    return shares / shares.sum()


class NGramSelection(SpanLaw):
    """N-grams of whole words with P(n) proportional to 1 / n (ALBERT, section 4.1)."""

    longest: Annotated[int, Field(ge=1)] = 3
    """The longest n-gram that is drawn, in words."""

    @property
    def whole_words(self) -> bool:
        """It keeps words whole."""
        return True

    def law(self) -> Law:
        """The share of each n, from 1 on, among the n-grams that are drawn."""
        return harmonic(self.longest)


def select_ngrams(
    key: Key[Array, ""],
    eligible: Bool[Array, " length"],
    *,
    word_starts: Bool[Array, " length"],
    ratio: Ratio,
    capacity: int | None = None,
    longest: int = 3,
) -> Mask:
    """Select n-grams of one row up to max(1, round(ratio * eligible)) tokens.

    The tokens of :func:`~mlmjax.masking.spans.span_numbers` with P(n) proportional to 1 / n.

    Args:
        key: the example's own.
        eligible: the tokens that may be selected.
        word_starts: the tokens that begin a word.
        ratio: share of the eligible tokens, in (0, 1]; may be traced.
        capacity: places in the mask. Default: the budget of a row of eligible tokens only.
        longest: the longest n-gram, in words.

    Raises:
        UserError: the ratio is traced and no capacity is given, or one of them is out of range.
    """
    capacity = resolve_capacity(capacity, eligible.size, ratio, exact_capacity)
    law = harmonic(longest)
    numbers = span_numbers(
        key, eligible, word_starts=word_starts, ratio=ratio, capacity=capacity, law=law
    )
    return as_mask(numbers >= 0, capacity)
