"""Tokens selected independently of each other."""

from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Bool, Key

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


class TokenSelection(Selection):
    """Single tokens, uniformly (BERT, Devlin et al. 2019, section 3.1)."""

    count: Count = "exact"
    """``exact``: max(1, round(ratio * eligible)) tokens of a row. ``bernoulli``: each token with
    probability ``ratio``."""

    def capacity(self, length: int, ratio: float | None = None) -> int:
        """The number of places that a mask of a row of ``length`` tokens has.

        With the Bernoulli count, the mean and six standard deviations.
        """
        return token_capacity(length, self.ratio if ratio is None else ratio, count=self.count)

    def __call__(
        self,
        key: Key[Array, ""],
        eligible: Bool[Array, " length"],
        word_starts: Bool[Array, " length"],
        *,
        ratio: Ratio | None = None,
        capacity: int | None = None,
    ) -> Mask:
        """The mask of one example (:func:`select_tokens`); words play no part."""
        del word_starts
        ratio = self.ratio if ratio is None else ratio
        return select_tokens(key, eligible, ratio=ratio, capacity=capacity, count=self.count)


def token_capacity(length: int, ratio: float, *, count: Count) -> int:
    """Places enough for :func:`select_tokens` in a row of ``length`` tokens."""
    bound = exact_capacity if count == "exact" else bernoulli_capacity
    return bound(length, ratio)


def select_tokens(
    key: Key[Array, ""],
    eligible: Bool[Array, " length"],
    *,
    ratio: Ratio,
    capacity: int | None = None,
    count: Count = "exact",
) -> Mask:
    """Select tokens of one row uniformly: one random score a token, the smallest are selected.

    Args:
        key: the example's own.
        eligible: the tokens that may be selected.
        ratio: share of the eligible tokens, in (0, 1]; may be traced.
        capacity: places in the mask. Where more are selected, those with the largest scores fall
            out, so that every eligible token remains equally likely. Default:
            :func:`token_capacity`.
        count: ``exact`` selects max(1, round(ratio * eligible)) tokens, or none where none is
            eligible; ``bernoulli`` selects each by itself with probability ``ratio``.

    Raises:
        UserError: the ratio is traced and no capacity is given, or one of them is out of range.
    """
    bound = partial(token_capacity, count=count)
    capacity = resolve_capacity(capacity, eligible.size, ratio, bound)
    scores = random_scores(random_bits(key, eligible.size), eligible)
    wanted = exact_count(eligible.sum(), ratio) if count == "exact" else below(scores, ratio).sum()
    first = jnp.argsort(scores)[:capacity]
    taken = jnp.arange(first.size) < wanted
    return as_mask(jnp.zeros_like(eligible).at[first].set(taken, unique_indices=True), capacity)
