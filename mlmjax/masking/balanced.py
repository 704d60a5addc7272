"""A share of the targets for words that carry content, the rest for stop words."""

from typing import Annotated

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key
from pydantic import Field

from mlmjax.core.types import Mask
from mlmjax.masking.base import (
    Ratio,
    Row,
    Selection,
    Step,
    as_mask,
    exact_capacity,
    exact_count,
    random_bits,
    resolve_capacity,
    rounded,
)
from mlmjax.masking.units import (
    fill_rounds,
    unit_frequency,
    unit_sizes,
    unit_tokens,
    word_numbers,
)


class BalancedSelection(Selection):
    """Whole words: one share of the budget for content words, the rest for stop words.

    A stop word is a word of one token that is frequent in the corpus, punctuation included. They
    make up about half of English text, and a mask of the, of and commas teaches little.
    """

    content: Annotated[float, Field(ge=0, le=1)] = 0.8
    """Share of the selected tokens that lie in content words."""
    stop_share: Annotated[float, Field(gt=0, le=1)] = 0.001
    """A token with at least this share of the corpus is a stop word: a hundred or so in English."""

    @property
    def whole_words(self) -> bool:
        """It keeps words whole."""
        return True

    def __call__(
        self,
        key: Key[Array, ""],
        row: Row,
        *,
        ratio: Ratio | None = None,
        capacity: int | None = None,
        step: Step = 0,
    ) -> Mask:
        """The mask of one example (:func:`select_balanced`)."""
        del step
        return select_balanced(
            key,
            row.eligible,
            word_starts=row.word_starts,
            frequency=row.frequency,
            ratio=self.ratio if ratio is None else ratio,
            capacity=capacity,
            content=self.content,
            stop_share=self.stop_share,
        )


def select_balanced(
    key: Key[Array, ""],
    eligible: Bool[Array, " length"],
    *,
    word_starts: Bool[Array, " length"],
    frequency: Float[Array, " length"],
    ratio: Ratio,
    capacity: int | None = None,
    content: Ratio = 0.8,
    stop_share: float = 0.001,
) -> Mask:
    """Select whole words of one row, ``content`` of the budget from content words.

    The budget is max(1, round(ratio * eligible)) tokens. Content words are taken in random order up
    to their share of it, then stop words up to the budget, then content words again: where one kind
    is short, the other fills up. A word that does not fit is skipped, as by
    :func:`~mlmjax.masking.words.select_words`; words of one size and kind are equally likely.

    The share of a budget that it does not divide is rounded up or down by chance, so that the mean
    over rows is right, also where the budget is one token.

    Args:
        key: the example's own.
        eligible: the tokens that may be selected.
        word_starts: the tokens that begin a word.
        frequency: share of the corpus that each token's type has.
        ratio: share of the eligible tokens, in (0, 1]; may be traced.
        capacity: places in the mask. Default: the budget of a row of eligible tokens only.
        content: share of the budget for content words, in [0, 1]; may be traced.
        stop_share: a word of one token is a stop word from this share of the corpus on.

    Raises:
        UserError: the ratio is traced and no capacity is given, or one of them is out of range.
    """
    capacity = resolve_capacity(capacity, eligible.size, ratio, exact_capacity)
    word, bits = word_numbers(eligible, word_starts), random_bits(key, eligible.size + 1)
    sizes = unit_sizes(word)
    stop = (sizes == 1) & (unit_frequency(word, frequency) >= stop_share)
    content_word, stop_word = (
        jnp.where(unit_tokens(word, kind), word, eligible.size) for kind in (~stop, stop)
    )
    budget = exact_count(eligible.sum(), ratio)
    for_content = rounded(content, jnp.minimum(budget, capacity), bits[-1])
    chosen = fill_rounds(
        jnp.stack([content_word, stop_word, content_word]),
        jnp.stack([bits[:-1] >> 1] * 3),
        until=jnp.stack([for_content, budget, budget]),
        word=word,
        capacity=capacity,
    )
    return as_mask(chosen, capacity)
