"""Tokens selected independently of each other."""

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
from mlmjax.masking.units import first, prefix


class TokenSelection(Selection):
    """Single tokens, uniformly (BERT, Devlin et al. 2019, section 3.1)."""

    count: Count = "exact"
    """``exact``: max(1, round(ratio * eligible)) tokens of a row. ``bernoulli``: each token with
    probability ``ratio``."""
    at_least_one: bool = False
    """Where the Bernoulli count hits none of a row's eligible tokens, one is selected all the same."""

    def capacity(self, length: int, ratio: float | None = None) -> int:
        """The number of places that a mask of a row of ``length`` tokens has.

        With the Bernoulli count, the mean and six standard deviations.
        """
        return token_capacity(length, self.ratio if ratio is None else ratio, count=self.count)

    def __call__(
        self,
        key: Key[Array, ""],
        row: Row,
        *,
        ratio: Ratio | None = None,
        capacity: int | None = None,
        step: Step = 0,
    ) -> Mask:
        """The mask of one example (:func:`select_tokens`); words play no part."""
        del step
        return select_tokens(
            key,
            row.eligible,
            ratio=self.ratio if ratio is None else ratio,
            capacity=capacity,
            count=self.count,
            at_least_one=self.at_least_one,
        )


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
    at_least_one: bool = False,
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
        at_least_one: where ``bernoulli`` hits none, the token with the smallest score is selected.

    Raises:
        UserError: the ratio is traced and no capacity is given, or one of them is out of range.
    """
    bound = partial(token_capacity, count=count)
    capacity = resolve_capacity(capacity, eligible.size, ratio, bound)
    scores = random_scores(random_bits(key, eligible.size), eligible)
    every = eligible.astype(jnp.int32)
    if count == "exact":
        budget = jnp.minimum(exact_count(eligible.sum(), ratio), capacity)
        return as_mask(prefix(scores, every, budget), capacity)
    hit = below(scores, ratio)
    if at_least_one:
        hit = hit | (first(scores, eligible) & ~hit.any())

    def cut(hit: Bool[Array, " length"]) -> Bool[Array, " length"]:
        return prefix(scores, jnp.where(hit, every, 0), capacity)

    # A loop of at most one round, since of a condition vmap computes both sides.
    return as_mask(jax.lax.while_loop(lambda hit: hit.sum() > capacity, cut, hit), capacity)
