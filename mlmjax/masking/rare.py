"""Weighting towards rare tokens, whose frequencies in the corpus are known."""

from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, UInt32
from pydantic import Field

from mlmjax.core.errors import UserError
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
)
from mlmjax.masking.units import (
    fill_budget,
    prefix,
    unit_frequency,
    unit_sizes,
    unit_tokens,
    word_numbers,
)


class RareTokenSelection(Selection):
    """Tokens or whole words, the rarer the likelier: without replacement, weights frequency^-alpha."""

    alpha: Annotated[float, Field(ge=0, le=8)] = 0.5
    """0 selects uniformly; 0.5 weights as word2vec's subsampling does (Mikolov et al. 2013, section 2.3)."""
    floor: Annotated[float, Field(ge=1e-9, le=1)] = 1e-6
    """Tokens that are rarer count as this frequent, lest a few whose count is chance be always selected."""
    unit: Literal["tokens", "words"] = "tokens"
    """What is selected. A word counts as frequent as its rarest token, and is selected whole."""

    @property
    def whole_words(self) -> bool:
        """It keeps words whole, if it counts in them."""
        return self.unit == "words"

    def __call__(
        self,
        key: Key[Array, ""],
        row: Row,
        *,
        ratio: Ratio | None = None,
        capacity: int | None = None,
        step: Step = 0,
    ) -> Mask:
        """The mask of one example (:func:`select_rare_tokens`)."""
        del step
        return select_rare_tokens(
            key,
            row.eligible,
            frequency=row.frequency,
            word_starts=row.word_starts if self.unit == "words" else None,
            ratio=self.ratio if ratio is None else ratio,
            capacity=capacity,
            alpha=self.alpha,
            floor=self.floor,
        )


def select_rare_tokens(
    key: Key[Array, ""],
    eligible: Bool[Array, " length"],
    *,
    frequency: Float[Array, " length"],
    word_starts: Bool[Array, " length"] | None = None,
    ratio: Ratio,
    capacity: int | None = None,
    alpha: float = 0.5,
    floor: float = 1e-6,
) -> Mask:
    """Select max(1, round(ratio * eligible)) tokens of one row, the rarer the likelier.

    One after the other is drawn without replacement, each time with probabilities proportional to
    the weights frequency^-alpha of what is left; at once, by selecting the smallest of exponential
    variables divided by the weights (Efraimidis & Spirakis 2006).

    With ``word_starts``, whole words are drawn likewise up to that budget of tokens; a word that does
    not fit is skipped, as by :func:`~mlmjax.masking.words.select_words`.

    Args:
        key: the example's own.
        eligible: the tokens that may be selected.
        frequency: share of the corpus that each token's type has.
        word_starts: the tokens that begin a word, where words are selected; their weight is that of
            their rarest token.
        ratio: share of the eligible tokens, in (0, 1]; may be traced.
        capacity: places in the mask. Default: the budget of a row of eligible tokens only.
        alpha: exponent of the weights, in [0, 8]; 0 selects uniformly.
        floor: frequencies below count as this one, in [1e-9, 1].

    Raises:
        UserError: the ratio is traced and no capacity is given, or a number is out of range.
    """
    if not (0 <= alpha <= 8 and 1e-9 <= floor <= 1):
        raise UserError(
            f"alpha is {alpha} and floor {floor}, but alpha lies in [0, 8] and floor in [1e-9, 1]."
        )
    capacity = resolve_capacity(capacity, eligible.size, ratio, exact_capacity)
    bits, budget = random_bits(key, eligible.size), exact_count(eligible.sum(), ratio)
    if word_starts is None:
        scores = weighted_scores(bits, frequency, alpha, floor)
        budget = jnp.minimum(budget, capacity)
        return as_mask(prefix(scores, eligible.astype(jnp.int32), budget), capacity)
    word = word_numbers(eligible, word_starts)
    scores = weighted_scores(bits, unit_frequency(word, frequency), alpha, floor)
    chosen = fill_budget(scores, unit_sizes(word), budget=budget, capacity=capacity)
    return as_mask(unit_tokens(word, chosen), capacity)


def weighted_scores(
    bits: UInt32[Array, " units"], frequency: Float[Array, " units"], alpha: float, floor: float
) -> UInt32[Array, " units"]:
    """Exponential variables times frequency^alpha; as scores, the smallest of which are selected.

    Logarithms to base 2 in steps of 2^-21, in integers: so they are the same on any device, which
    floating-point logarithms are not. They are right to 1e-3, save for the largest variables in ten.
    """
    uniform = log2(jnp.maximum(bits, 1).astype(jnp.float32)) - (32 << _FRACTION)
    exponential = uniform + jnp.asarray(_EXPONENTIAL)[bits >> 20]
    rarity = log2(jnp.clip(frequency, floor, 1.0)).astype(jnp.float32) * np.float32(alpha)
    score = exponential + jnp.round(rarity).astype(jnp.int32)
    return (score + 2**30).astype(jnp.uint32)


def log2(values: Float[Array, " units"]) -> Int[Array, " units"]:
    """The logarithm of positive numbers, to base 2, in steps of 2^-21 and right to 2e-4."""
    number = jax.lax.bitcast_convert_type(values.astype(jnp.float32), jnp.int32)
    # Exponent and mantissa, read as one number, are the logarithm but for a bend in each octave.
    straight = (number >> (23 - _FRACTION)) - (127 << _FRACTION)
    return straight + jnp.asarray(_BEND)[(number >> 13) & 1023]


_FRACTION = 21
_MANTISSA = (np.arange(1024) + 0.5) / 1024
_BEND = np.round((np.log2(1 + _MANTISSA) - _MANTISSA) * 2**_FRACTION).astype(np.int32)
_UNIFORM = (np.arange(4096) + 0.5) / 4096
_EXPONENTIAL = np.round(np.log2(-np.log1p(-_UNIFORM) / _UNIFORM) * 2**_FRACTION).astype(np.int32)
"""By how much log2 of the exponential variable -log(1 - u) exceeds log2(u)."""
