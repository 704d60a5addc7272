"""Spans of neighbouring words or tokens, their lengths geometric (SpanBERT, Joshi et al. 2020)."""

from dataclasses import dataclass
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key, UInt32
from pydantic import Field

from mlmjax.core.types import Mask
from mlmjax.masking.base import (
    LAST,
    Ratio,
    Selection,
    exact_capacity,
    exact_count,
    random_bits,
    resolve_capacity,
)
from mlmjax.masking.words import fill_budget, unit_mask, unit_sizes, word_numbers


class SpanSelection(Selection):
    """Spans with truncated geometric lengths, up to a budget of tokens (SpanBERT, section 3.1)."""

    p: Annotated[float, Field(gt=0, le=1)] = 0.2
    """P(length = l) is proportional to p (1 - p)^(l - 1); SpanBERT's 0.2 and 10 have mean 3.8."""
    longest: Annotated[int, Field(ge=1)] = 10
    """The longest span that is drawn, in units."""
    unit: Literal["words", "tokens"] = "words"
    """What lengths are counted in. Words are selected whole."""

    def __call__(
        self,
        key: Key[Array, ""],
        eligible: Bool[Array, " length"],
        word_starts: Bool[Array, " length"],
        *,
        ratio: Ratio | None = None,
        capacity: int | None = None,
    ) -> Mask:
        """The mask of one example (:func:`select_spans`)."""
        return select_spans(
            key,
            eligible,
            word_starts=word_starts if self.unit == "words" else None,
            ratio=self.ratio if ratio is None else ratio,
            capacity=capacity,
            p=self.p,
            longest=self.longest,
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SpanLayout:
    """Where candidate spans lie in a row of units, and in which order they are considered.

    Attributes:
        rank: when each unit is considered; the units of a span one after the other. A permutation.
        span: the number of each unit's span, in the order of rank; -1 where it lies in none.
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

    :func:`span_layout` lays spans over the units; they are selected one after the other, and what
    no longer fits in the budget is left out: the last span is cut. Spans of words are laid over
    half as many words again as are wanted, since their tokens are only counted afterwards; a word
    that does not fit is skipped, as by :func:`~mlmjax.masking.words.select_words`.

    Units are neighbours when only tokens that are not eligible lie between them, and the last is a
    neighbour of the first: a span that meets a special token or the end of the row goes on behind
    it. So no unit is rarer than another for lying at an edge: units of one size are equally likely.

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
    length = eligible.size
    capacity = resolve_capacity(capacity, length, ratio, exact_capacity)
    unit = word_numbers(eligible, jnp.ones_like(eligible) if word_starts is None else word_starts)
    sizes = unit_sizes(unit)
    units = (sizes > 0).sum()
    wanted = exact_count(units, ratio)
    covered = wanted if word_starts is None else jnp.minimum(units, wanted + (wanted + 1) // 2)
    layout = span_layout(key, units, covered=covered, length=length, p=p, longest=longest)
    order = jnp.zeros_like(layout.rank).at[layout.rank].set(jnp.arange(length), unique_indices=True)
    budget = exact_count(eligible.sum(), ratio)
    accepted = fill_budget(sizes[order], budget=budget, capacity=capacity)
    return unit_mask(unit, order=order, accepted=accepted, capacity=capacity)


def span_layout(
    key: Key[Array, ""],
    units: Int[Array, ""],
    *,
    covered: Int[Array, ""],
    length: int,
    p: float,
    longest: int,
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
        p: of the geometric distribution, in (0, 1].
        longest: the longest span, in units.
    """
    draw, shuffle, turn = jnp.split(random_bits(key, 2 * length + 1), [length, 2 * length])
    rank = jnp.arange(length)
    ends = jnp.cumsum(_lengths(draw, p=p, longest=longest))
    begins = (rank == 0) | (rank >= covered)
    item = jnp.cumsum(begins.at[ends].set(True, mode="drop")) - 1
    # Stable, so that the units of an item stay together also should two scores be equal.
    circle = jnp.argsort(jnp.where(rank < units, shuffle[item] >> 1, LAST), stable=True)
    modulus = jnp.maximum(units, 1)
    offset = (turn[0] % modulus.astype(jnp.uint32)).astype(rank.dtype)
    turned = (rank - offset) % modulus
    circle = jnp.where(rank < units, circle[turned], rank)
    return SpanLayout(rank=circle, span=jnp.where(circle < covered, item[circle], -1))


def span_lengths(
    key: Key[Array, ""], count: int, *, p: float, longest: int
) -> Int[Array, " {count}"]:
    """Independent lengths with P(l) proportional to p (1 - p)^(l - 1) for l = 1 .. longest."""
    return _lengths(random_bits(key, count), p=p, longest=longest)


def _lengths(bits: UInt32[Array, " count"], *, p: float, longest: int) -> Int[Array, " count"]:
    shares = p * (1 - p) ** np.arange(longest)
    steps = np.round(np.cumsum(shares / shares.sum())[:-1] * 2**24).astype(np.uint32)
    return 1 + (bits[:, None] >> 8 >= steps).sum(axis=1, dtype=jnp.int32)
