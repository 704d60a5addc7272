"""Spans of neighbouring words or tokens, their lengths geometric (SpanBERT, Joshi et al. 2020)."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, UInt32
from pydantic import Field

from mlmjax.core.types import Mask
from mlmjax.masking.base import (
    LAST,
    Ratio,
    Row,
    Selection,
    Step,
    as_mask,
    exact_capacity,
    exact_count,
    random_bits,
    resolve_capacity,
)
from mlmjax.masking.units import fill_budget, unit_sizes, word_numbers

Law = Float[np.ndarray, " longest"]
"""P(length = l) for l = 1 .. longest; sums to 1."""


def geometric(p: float, *, longest: int) -> Law:
    """P(length = l) proportional to p (1 - p)^(l - 1); SpanBERT's 0.2 and 10 have mean 3.8."""
    shares = p * (1 - p) ** np.arange(longest)
    return shares / shares.sum()


class SpanLaw(Selection):
    """Spans whose lengths follow a law, up to a budget of tokens. Subclasses give the law."""

    @abstractmethod
    def law(self) -> Law:
        """The share of each length, from 1 on, among the spans that are drawn."""

    def unit_starts(self, row: Row) -> Bool[Array, " length"] | None:
        """The tokens that begin a unit of length; None where every token is one."""
        return row.word_starts

    def spans(
        self,
        key: Key[Array, ""],
        row: Row,
        *,
        ratio: Ratio | None = None,
        capacity: int | None = None,
        step: Step = 0,
    ) -> Int[Array, " length"]:
        """The number of each selected token's span, and -1 elsewhere (:func:`span_numbers`)."""
        del step
        return span_numbers(
            key,
            row.eligible,
            word_starts=self.unit_starts(row),
            ratio=self.ratio if ratio is None else ratio,
            capacity=capacity,
            law=self.law(),
        )

    def __call__(
        self,
        key: Key[Array, ""],
        row: Row,
        *,
        ratio: Ratio | None = None,
        capacity: int | None = None,
        step: Step = 0,
    ) -> Mask:
        """The mask of one example: all tokens of :meth:`spans`."""
        ratio = self.ratio if ratio is None else ratio
        capacity = resolve_capacity(capacity, row.eligible.size, ratio, exact_capacity)
        spans = self.spans(key, row, ratio=ratio, capacity=capacity, step=step)
        return as_mask(spans >= 0, capacity)


class SpanSelection(SpanLaw):
    """Spans with truncated geometric lengths, up to a budget of tokens (SpanBERT, section 3.1)."""

    p: Annotated[float, Field(gt=0, le=1)] = 0.2
    """P(length = l) is proportional to p (1 - p)^(l - 1); SpanBERT's 0.2 and 10 have mean 3.8."""
    longest: Annotated[int, Field(ge=1)] = 10
    """The longest span that is drawn, in units."""
    unit: Literal["words", "tokens"] = "words"
    """What lengths are counted in. Words are selected whole."""

    @property
    def whole_words(self) -> bool:
        """It keeps words whole, if it counts in them."""
        return self.unit == "words"

    def law(self) -> Law:
        """The share of each length, from 1 on, among the spans that are drawn."""
        return geometric(self.p, longest=self.longest)

    def unit_starts(self, row: Row) -> Bool[Array, " length"] | None:
        """The tokens that begin a unit of length; None where every token is one."""
        return row.word_starts if self.unit == "words" else None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SpanLayout:
    """Where candidate spans lie in a row of units, and in which order they are considered.

    Attributes:
        rank: when each unit is considered; the units of a span one after the other. A permutation.
        span: the number of each unit's span, counted from 0 in the order of rank. Units from rank
            ``covered`` on lie in no span drawn, and each has a number of its own.
    """

    rank: Int[Array, "*batch length"]
    span: Int[Array, "*batch length"]


def select_spans(
    key: Key[Array, ""],
    eligible: Bool[Array, " length"],
    *,
    word_starts: Bool[Array, " length"] | None,
    ratio: Ratio,
    capacity: int | None = None,
    p: float = 0.2,
    longest: int = 10,
) -> Mask:
    """Select spans of one row up to exactly max(1, round(ratio * eligible)) tokens.

    The tokens of :func:`span_numbers`, lengths truncated geometric.

    Args:
        key: the example's own.
        eligible: the tokens that may be selected.
        word_starts: the tokens that begin a word; None where lengths are counted in tokens.
        ratio: share of the eligible tokens, in (0, 1]; may be traced.
        capacity: places in the mask. Default: the budget of a row of eligible tokens only.
        p: of the geometric distribution, in (0, 1].
        longest: the longest span, in units.

    Raises:
        UserError: the ratio is traced and no capacity is given, or one of them is out of range.
    """
    capacity = resolve_capacity(capacity, eligible.size, ratio, exact_capacity)
    law = geometric(p, longest=longest)
    numbers = span_numbers(
        key, eligible, word_starts=word_starts, ratio=ratio, capacity=capacity, law=law
    )
    return as_mask(numbers >= 0, capacity)


def span_numbers(
    key: Key[Array, ""],
    eligible: Bool[Array, " length"],
    *,
    word_starts: Bool[Array, " length"] | None,
    ratio: Ratio,
    capacity: int | None = None,
    law: Law,
) -> Int[Array, " length"]:
    """The spans of one row: the number of each selected token's span, and -1 elsewhere.

    :func:`span_layout` lays spans over the units; they are selected one after the other, and what
    no longer fits in the budget is left out: the last span is cut. Spans of words are laid over
    half as many words again as are wanted, since their tokens are only counted afterwards; a word
    that does not fit is skipped, as by :func:`~mlmjax.masking.words.select_words`, and where the
    laid spans do not fill the budget, single words do, each a span of its own.

    Units are neighbours when only tokens that are not eligible lie between them, and the last is a
    neighbour of the first: a span that meets a special token or the end of the row goes on behind
    it. So no unit is rarer than another for lying at an edge: units of one size are equally likely.

    Spans are numbered from 0 in the order in which they are selected, so that those at the end are
    cut. Those with a number below budget // (longest * the largest word's tokens) never are: their
    lengths are independent draws from the law. (To leave out just those that were cut in a row would
    not do, for it is long spans that meet the end of the budget.)

    Args:
        key: the example's own.
        eligible: the tokens that may be selected.
        word_starts: the tokens that begin a word; None where lengths are counted in tokens.
        ratio: share of the eligible tokens, in (0, 1]; may be traced.
        capacity: tokens to select at most. Default: the budget of a row of eligible tokens only.
        law: of the lengths, in units.

    Raises:
        UserError: the ratio is traced and no capacity is given, or one of them is out of range.
    """
    length = eligible.size
    capacity = resolve_capacity(capacity, length, ratio, exact_capacity)
    unit = word_numbers(eligible, jnp.ones_like(eligible) if word_starts is None else word_starts)
    sizes = unit_sizes(unit)
    units = (sizes > 0).sum()
    wanted = exact_count(units, ratio)
    covered = wanted if word_starts is None else jnp.minimum(units, wanted + (wanted + 1) // 2)
    layout = span_layout(key, units, covered=covered, length=length, law=law)
    chosen = fill_budget(
        layout.rank.astype(jnp.uint32),
        sizes,
        budget=exact_count(eligible.sum(), ratio),
        capacity=capacity,
        bits=length.bit_length(),
    )
    return jnp.where(chosen, layout.span, -1).at[unit].get(mode="fill", fill_value=-1)


def span_layout(
    key: Key[Array, ""],
    units: Int[Array, ""],
    *,
    covered: Int[Array, ""],
    length: int,
    law: Law,
) -> SpanLayout:
    """Lay spans over exactly ``covered`` of ``units`` units, uniformly among all arrangements.

    Lengths are drawn until they make up ``covered``, the last cut to fit. The spans, and the units
    that lie in none, are shuffled as wholes and laid on a circle, which is turned by a random
    offset. By that turn each unit is equally likely to be covered, and to be considered at any
    rank, with nothing rejected. Spans may touch.

    Args:
        key: the example's own.
        units: how many there are, at most ``length``.
        covered: units that lie in a span, at most ``units``.
        length: size of the arrays.
        law: of the lengths, in units.
    """
    draw, shuffle, turn = jnp.split(random_bits(key, 2 * length + 1), [length, 2 * length])
    rank = jnp.arange(length)
    ends = jnp.cumsum(drawn_lengths(draw, law))
    begins = (rank == 0) | (rank >= covered)
    item = jnp.cumsum(begins.at[ends].set(True, mode="drop")) - 1
    # In order of equal scores, so that the units of an item stay together.
    circle = ascending(jnp.where(rank < units, shuffle[item] >> 1, LAST))
    modulus = jnp.maximum(units, 1)
    offset = (turn[0] % modulus.astype(jnp.uint32)).astype(rank.dtype)
    turned = (rank - offset) % modulus
    circle = jnp.where(rank < units, circle[turned], rank)
    return SpanLayout(rank=circle, span=item[circle])


def span_lengths(key: Key[Array, ""], count: int, *, law: Law) -> Int[Array, " {count}"]:
    """Independent lengths that follow a law."""
    return drawn_lengths(random_bits(key, count), law)


def drawn_lengths(bits: UInt32[Array, " count"], law: Law) -> Int[Array, " count"]:
    """Lengths that follow a law, made from random bits."""
    steps = np.round(np.cumsum(law)[:-1] * 2**24).astype(np.uint32)
    return 1 + (bits[:, None] >> 8 >= steps).sum(axis=1, dtype=jnp.int32)


def ascending(scores: UInt32[Array, " units"]) -> Int[Array, " units"]:
    """The units in the order of their scores; of equal scores, the first comes first.

    A radix sort with places in the low bits, since a sort of one array of plain numbers is several
    times faster on CPUs than one that carries indices along.
    """
    place = (scores.size - 1).bit_length()
    own, digit = (np.uint32(2**width - 1) for width in (place, 32 - place))
    order = jnp.arange(scores.size, dtype=jnp.uint32)
    for low in range(0, 32, 32 - place):
        digits = scores[order] >> low & digit
        order = order[jnp.sort(digits << place | jnp.arange(scores.size, dtype=jnp.uint32)) & own]
    return order.astype(jnp.int32)
