"""Units of several tokens, such as words: selected whole, up to a budget of tokens."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from mlmjax.masking.base import LAST


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


def unit_sizes(
    unit: Int[Array, " length"], counted: Bool[Array, " length"] | None = None
) -> Int[Array, " length"]:
    """Tokens in each unit, given each token's unit; 0 beyond the last unit.

    Args:
        unit: each token's unit; ``length`` where it has none.
        counted: the tokens that count; by default all.
    """
    one = jnp.int32(1) if counted is None else counted.astype(jnp.int32)
    return jnp.zeros(unit.size, jnp.int32).at[unit].add(one, mode="drop")


def unit_frequency(
    unit: Int[Array, " length"], frequency: Float[Array, " length"]
) -> Float[Array, " length"]:
    """The share of each unit's rarest token; infinite beyond the last unit."""
    return jnp.full(unit.size, jnp.inf).at[unit].min(frequency, mode="drop")


def unit_tokens(
    unit: Int[Array, " length"], chosen: Bool[Array, " length"]
) -> Bool[Array, " length"]:
    """Whether each token lies in a unit that is chosen."""
    return chosen.at[unit].get(mode="fill", fill_value=False)


def fill_budget(
    scores: UInt32[Array, " units"],
    sizes: Int[Array, " units"],
    *,
    budget: Int[Array, ""],
    capacity: int,
    bits: int = 31,
) -> Bool[Array, " units"]:
    """Accept units greedily, in the order of their scores, as long as they fit in a budget of tokens.

    A unit that does not fit in what is left is skipped. Where every unit is larger than the budget,
    the first of the smallest is accepted, if the capacity holds it.

    Args:
        scores: the units' order; of equal ones, the first comes first.
        sizes: tokens in each unit; 0 where there is no unit.
        budget: tokens to accept at most.
        capacity: tokens to accept at most, also where the budget is too small for any unit.
        bits: the scores are less than 2^bits where there is a unit.
    """
    accepted = fitting(scores, sizes, jnp.minimum(budget, capacity), bits=bits)
    return accepted | (one_of_the_smallest(scores, sizes, capacity) & ~accepted.any())


def fill_rounds(
    units: Int[Array, "rounds length"],
    scores: UInt32[Array, "rounds length"],
    *,
    until: Int[Array, " rounds"],
    word: Int[Array, " length"],
    capacity: int,
) -> Bool[Array, " length"]:
    """Accept units of several kinds greedily, a round each, and give their tokens.

    In a unit, only tokens count that no earlier round has accepted. What a round leaves over of its
    budget goes to the next. Where no round accepts any, the first of the smallest words is
    accepted, in the order of the first round, if the capacity holds it.

    Args:
        units: each token's unit, in each round; ``length`` where it has none.
        scores: the units' order, in each round.
        until: tokens to accept at most, up to the end of each round.
        word: each token's word; ``length`` where it has none.
        capacity: tokens to accept at most.
    """

    def fill(
        chosen: Bool[Array, " length"], each: tuple[Array, Array, Array]
    ) -> tuple[Array, None]:
        unit, order, limit = each
        taken = fitting(order, unit_sizes(unit, ~chosen), limit - chosen.sum())
        return chosen | unit_tokens(unit, taken), None

    limits = jnp.minimum(until, capacity)
    chosen, _ = jax.lax.scan(fill, jnp.zeros(word.size, bool), (units, scores, limits))
    instead = one_of_the_smallest(scores[0], unit_sizes(word), capacity)
    return chosen | (unit_tokens(word, instead) & ~chosen.any())


def fitting(
    scores: UInt32[Array, " units"],
    sizes: Int[Array, " units"],
    budget: Int[Array, ""],
    *,
    bits: int = 31,
) -> Bool[Array, " units"]:
    """The units that are accepted in the order of their scores, skipping what does not fit."""

    def open_(accepted: Bool[Array, " units"], left: Int[Array, ""]) -> Bool[Array, " units"]:
        return ~accepted & (sizes > 0) & (sizes <= left)

    def accept(state: tuple[Array, Array]) -> tuple[Array, Array]:
        accepted, left = state
        taken = first(scores, open_(accepted, left))
        return accepted | taken, left - jnp.where(taken, sizes, 0).sum(dtype=left.dtype)

    # At once up to the first unit that does not fit; then less is left than that has, and one after
    # the other is soon done.
    budget = budget.astype(jnp.int32)
    accepted = prefix(scores, jnp.where(sizes <= budget, sizes, 0), budget, bits=bits)
    left = budget - jnp.where(accepted, sizes, 0).sum(dtype=jnp.int32)
    return jax.lax.while_loop(lambda state: open_(*state).any(), accept, (accepted, left))[0]


def prefix(
    scores: UInt32[Array, " units"],
    sizes: Int[Array, " units"],
    budget: Int[Array, ""] | int,
    *,
    bits: int = 31,
) -> Bool[Array, " units"]:
    """The units before the first that does not fit in the budget, in the order of their scores.

    Found by bisection of the scores, bit by bit, which is faster than to sort them.

    Args:
        scores: the units' order; of equal ones, the first comes first.
        sizes: tokens in each unit; 0 where there is no unit.
        budget: tokens to accept at most.
        bits: the scores are less than 2^bits where there is a unit.
    """

    def refined(step: Int[Array, ""], limit: UInt32[Array, ""]) -> UInt32[Array, ""]:
        higher = limit | (np.uint32(2 ** (bits - 1)) >> step.astype(jnp.uint32))
        total = jnp.where(scores < higher, sizes, 0).sum()
        return jnp.where(total <= budget, higher, limit)

    # The largest limit below which everything fits: the score of the first unit that does not.
    limit = jax.lax.fori_loop(0, bits, refined, jnp.uint32(0))
    before, at = (jnp.where(where, sizes, 0) for where in (scores < limit, scores == limit))
    return (before > 0) | ((at > 0) & (before.sum() + jnp.cumsum(at) <= budget))


def one_of_the_smallest(
    scores: UInt32[Array, " units"], sizes: Int[Array, " units"], capacity: int
) -> Bool[Array, " units"]:
    """The first of the smallest units, if the capacity holds it; otherwise none."""
    present = jnp.where(sizes > 0, sizes, capacity + 1)
    least = present.min()
    return first(scores, (present == least) & (least <= capacity))


def first(scores: UInt32[Array, " units"], among: Bool[Array, " units"]) -> Bool[Array, " units"]:
    """The unit with the smallest score of some, by itself; none where there are none."""
    smallest = among & (scores == jnp.where(among, scores, LAST).min())
    places = jnp.arange(scores.size)
    return smallest & (places == jnp.where(smallest, places, scores.size).min())
