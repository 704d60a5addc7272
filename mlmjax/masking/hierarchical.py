"""Words within spans within sentences: targets of three sizes, from local to global."""

from typing import Annotated, NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key, UInt32
from pydantic import Field, model_validator

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
from mlmjax.masking.spans import Law, drawn_lengths, geometric
from mlmjax.masking.units import fill_rounds, word_numbers

Share = Annotated[float, Field(ge=0, le=1)]


class Levels(NamedTuple):
    """The number of each token's unit on three levels, each a partition of the one after it.

    Counted from 0; ``length`` where a token is not eligible.
    """

    word: Int[Array, " length"]
    span: Int[Array, " length"]
    sentence: Int[Array, " length"]


class HierarchicalSelection(Selection):
    """Words, then whole spans, then whole sentences, each with a share of the budget."""

    words: Share = 0.4
    """Share of the budget for single words."""
    spans: Share = 0.3
    """Share for spans of words, which never cross the end of a sentence."""
    sentences: Share = 0.3
    """Share for sentences, as far as they fit."""
    p: Annotated[float, Field(gt=0, le=1)] = 0.2
    """P(a span has l words) is proportional to p (1 - p)^(l - 1)."""
    longest: Annotated[int, Field(ge=1)] = 10
    """The longest span, in words."""
    shift_steps: Annotated[int | None, Field(gt=0)] = None
    """Updates over which the shares move from words alone (local) to the given ones (global)."""

    @property
    def whole_words(self) -> bool:
        """It keeps words whole."""
        return True

    @model_validator(mode="after")
    def _sum_to_one(self) -> Self:
        total = self.words + self.spans + self.sentences
        if abs(total - 1) > 1e-6:
            raise ValueError(
                f"the shares of words, spans and sentences sum to {total:g}, but have to sum to 1"
            )
        return self

    def shares(self, step: Step) -> tuple[Ratio, Ratio]:
        """The shares of words and of spans in force at a step; the rest is that of sentences."""
        if self.shift_steps is None:
            return self.words, self.spans
        progress = jnp.clip(jnp.asarray(step, jnp.float32) / self.shift_steps, 0, 1)
        return 1 - progress * (1 - self.words), progress * self.spans

    def __call__(
        self,
        key: Key[Array, ""],
        row: Row,
        *,
        ratio: Ratio | None = None,
        capacity: int | None = None,
        step: Step = 0,
    ) -> Mask:
        """The mask of one example (:func:`select_hierarchical`)."""
        words, spans = self.shares(step)
        return select_hierarchical(
            key,
            row.eligible,
            word_starts=row.word_starts,
            sentence_starts=row.sentence_starts,
            ratio=self.ratio if ratio is None else ratio,
            capacity=capacity,
            words=words,
            spans=spans,
            p=self.p,
            longest=self.longest,
        )


def select_hierarchical(
    key: Key[Array, ""],
    eligible: Bool[Array, " length"],
    *,
    word_starts: Bool[Array, " length"],
    sentence_starts: Bool[Array, " length"],
    ratio: Ratio,
    capacity: int | None = None,
    words: Ratio = 0.4,
    spans: Ratio = 0.3,
    p: float = 0.2,
    longest: int = 10,
) -> Mask:
    """Select words, whole spans and whole sentences of one row, from local to global.

    The budget is max(1, round(ratio * eligible)) tokens, divided among the three levels. Words are
    taken in random order up to their share of it; then spans (:func:`levels`), of which only tokens
    count that are not selected yet; then sentences likewise. On each level, what does not fit is
    skipped, so that short units are likelier, and what is left over goes to the next level; what
    sentences leave is filled with single words. Words of one size, in spans and sentences of one size,
    are equally likely.

    Shares of a budget that they do not divide are rounded up or down by chance, so that their mean
    over rows is right.

    Args:
        key: the example's own.
        eligible: the tokens that may be selected.
        word_starts: the tokens that begin a word.
        sentence_starts: the tokens that begin a sentence.
        ratio: share of the eligible tokens, in (0, 1]; may be traced.
        capacity: places in the mask. Default: the budget of a row of eligible tokens only.
        words: share of the budget for words; may be traced.
        spans: share for spans; may be traced. The rest is for sentences.
        p: of the geometric distribution of the spans' lengths, in (0, 1].
        longest: the longest span, in words.

    Raises:
        UserError: the ratio is traced and no capacity is given, or one of them is out of range.
    """
    length = eligible.size
    capacity = resolve_capacity(capacity, length, ratio, exact_capacity)
    *bits, cut, share = jnp.split(
        random_bits(key, 4 * length + 1), [at * length for at in range(1, 5)]
    )
    level = levels(
        cut,
        eligible,
        word_starts=word_starts,
        sentence_starts=sentence_starts,
        law=geometric(p, longest=longest),
    )
    budget = jnp.minimum(exact_count(eligible.sum(), ratio), capacity)
    for_words = rounded(words, budget, share[0])
    for_both = rounded(jnp.float32(words) + spans, budget, share[0])
    by_word, by_span, by_sentence = (each >> 1 for each in bits)
    chosen = fill_rounds(
        jnp.stack([level.word, level.span, level.sentence, level.word]),
        jnp.stack([by_word, by_span, by_sentence, by_word]),
        until=jnp.stack([for_words, for_both, budget, budget]),
        word=level.word,
        capacity=capacity,
    )
    return as_mask(chosen, capacity)


def levels(
    bits: UInt32[Array, " length"],
    eligible: Bool[Array, " length"],
    *,
    word_starts: Bool[Array, " length"],
    sentence_starts: Bool[Array, " length"],
    law: Law,
) -> Levels:
    """The words, spans and sentences of one row.

    Sentences divide the row; a word that runs over the start of one belongs to that in which it
    begins. Each sentence is divided into spans from its start on, whose lengths are drawn until they
    make up the sentence: only the last is cut.

    Args:
        bits: random.
        eligible: the tokens that may be selected.
        word_starts: the tokens that begin a word.
        sentence_starts: the tokens that begin a sentence.
        law: of the lengths of spans, in words.
    """
    length = eligible.size
    word, place = word_numbers(eligible, word_starts), jnp.arange(length)
    numbers = jnp.cumsum(sentence_starts)
    sentence = jnp.full(length, length + 1).at[word].min(numbers, mode="drop")
    starts = jnp.diff(sentence, prepend=-1) != 0
    begin = jax.lax.cummax(jnp.where(starts, place, 0))
    lengths = drawn_lengths(bits, law)
    before = jnp.cumsum(lengths) - lengths
    # The lengths drawn for a sentence's words, added up from its first word on, are where spans end;
    # there are more than it needs, so they run into the next sentence, where they do not count.
    ends = begin + before - before[begin] + lengths
    own = begin.at[ends].get(mode="fill", fill_value=-1) == begin
    breaks = starts.at[jnp.where(own, ends, length)].set(True, mode="drop")

    def of_token(of_word: Bool[Array, " length"]) -> Int[Array, " length"]:
        return (jnp.cumsum(of_word) - 1).at[word].get(mode="fill", fill_value=length)

    return Levels(word, of_token(breaks), of_token(starts))
