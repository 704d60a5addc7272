"""Whole words: the budget against plain Python, and what is a word."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from selections import (
    LENGTH,
    SELECTIONS,
    compiled,
    example_keys,
    flags,
    many,
    ratios,
    seeds,
    targets,
)

from mlmjax.core import prng
from mlmjax.masking import WordSelection
from mlmjax.masking.words import fill_budget, word_numbers

sizes_of_units = st.lists(st.integers(0, 9), min_size=16, max_size=16)


def greedy(sizes, budget, capacity):
    """One unit after the other, in plain Python."""
    left = min(budget, capacity)
    accepted = []
    for size in sizes:
        accepted.append(0 < size <= left)
        left -= size * accepted[-1]
    candidates = [size for size in sizes if 0 < size <= capacity]
    if not any(accepted) and candidates and min(candidates) == min(s for s in sizes if s > 0):
        accepted[sizes.index(min(candidates))] = True
    return accepted


@given(sizes=sizes_of_units, budget=st.integers(1, 60), capacity=st.sampled_from([1, 5, 60]))
def test_the_budget_is_filled_greedily(sizes, budget, capacity):
    found = fill(jnp.asarray(sizes), jnp.asarray(budget), capacity)
    assert found.tolist() == greedy(sizes, budget, capacity)


fill = jax.jit(
    lambda sizes, budget, capacity: fill_budget(sizes, budget=budget, capacity=capacity),
    static_argnums=2,
)


@given(seed=seeds, eligible=flags, word_starts=flags, ratio=ratios)
def test_whole_words_are_whole(seed, eligible, word_starts, ratio):
    word = np.asarray(word_numbers(eligible, word_starts))
    for name in ("words", "words-bernoulli", "spans"):
        mask = compiled(SELECTIONS[name])(prng.root(seed), eligible, word_starts, ratio)
        chosen = np.asarray(mask.dense(LENGTH)) > 0
        assert set(word[chosen]).isdisjoint(word[~chosen])


@given(eligible=flags, word_starts=flags)
def test_word_numbers(eligible, word_starts):
    expected, word, before = [], -1, False
    for ok, start in zip(eligible.tolist(), word_starts.tolist(), strict=True):
        word += ok and (start or not before)
        expected.append(word if ok else LENGTH)
        before = ok
    assert word_numbers(eligible, word_starts).tolist() == expected


def test_words_larger_than_the_budget():
    """One of the smallest is taken instead, if the capacity holds it; otherwise none."""
    eligible = jnp.ones(LENGTH, bool)
    starts = jnp.zeros(LENGTH, bool).at[jnp.array([0, 6, 10, 14])].set(True)
    found = set()
    for key in example_keys(30):
        mask = compiled(WordSelection())(key, eligible, starts, jnp.float32(0.1))
        found.add(tuple(targets(mask)))
    assert found == {(6, 7, 8, 9), (10, 11, 12, 13)}
    assert not WordSelection(ratio=0.1)(prng.root(0), eligible, starts).weight.any()


def test_bernoulli_words_are_independent_and_overflow_as_wholes():
    eligible = jnp.ones((4000, LENGTH), bool)
    starts = jnp.broadcast_to(jnp.arange(LENGTH) % 3 == 0, (4000, LENGTH))
    free = np.asarray(
        jax.vmap(
            lambda key, row, starts: WordSelection(count="bernoulli", ratio=0.3)(
                key, row, starts, capacity=LENGTH
            )
        )(example_keys(4000), eligible, starts).dense(LENGTH)
    )[:, ::3]
    assert abs(free.mean() - 0.3) < 0.01
    correlation = np.corrcoef(free, rowvar=False) - np.eye(8)
    assert np.abs(correlation).max() < 0.08
    tight = jax.vmap(
        lambda key, row, starts: WordSelection(count="bernoulli", ratio=0.9)(
            key, row, starts, capacity=8
        )
    )(example_keys(4000), eligible, starts)
    assert set(np.asarray(tight.weight.sum(axis=1))) <= {0, 3, 6}
    share = np.asarray(tight.dense(LENGTH)).mean(axis=0)
    assert np.ptp(share) < 0.05


def test_small_words_fill_the_end_of_the_budget():
    starts = jnp.ones((500, LENGTH), bool).at[:, 1:20].set(False)
    masks = many(WordSelection(ratio=0.2))(example_keys(500), jnp.ones_like(starts), starts)
    assert np.array_equal(np.unique(np.asarray(masks.weight.sum(axis=1))), [4])
    assert not np.asarray(masks.dense(LENGTH))[:, :20].any()
