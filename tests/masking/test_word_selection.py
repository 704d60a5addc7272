"""Whole words: the budget against plain Python, and what is a word."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from selections import (
    LENGTH,
    ROWS,
    SELECTIONS,
    chosen,
    every_row,
    example_keys,
    flags,
    many,
)

from mlmjax.masking import word_numbers
from mlmjax.masking.units import fill_budget, prefix

UNITS = 16
sizes_of_units = st.lists(st.integers(0, 9), min_size=UNITS, max_size=UNITS)
# Few different ones, so that some are equal.
scores_of_units = st.lists(st.integers(0, 20), min_size=UNITS, max_size=UNITS)
budgets = st.integers(1, 60)


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


@given(
    scores=scores_of_units,
    sizes=sizes_of_units,
    budget=budgets,
    small=st.booleans(),
)
def test_the_budget_is_filled_greedily(scores, sizes, budget, small):
    capacity, bits = (5, 5) if small else (60, 31)
    order = np.argsort(scores, kind="stable")
    wanted = greedy(np.array(sizes)[order].tolist(), budget, capacity)
    raised = jnp.asarray(scores, jnp.uint32) << (bits - 5)
    found = fill(raised, jnp.asarray(sizes), jnp.int32(budget), capacity, bits)
    assert np.asarray(found)[order].tolist() == wanted


fill = jax.jit(
    lambda scores, sizes, budget, capacity, bits: fill_budget(
        scores, sizes, budget=budget, capacity=capacity, bits=bits
    ),
    static_argnums=(3, 4),
)


@given(scores=scores_of_units, sizes=sizes_of_units, budget=budgets)
def test_a_prefix_is_all_before_the_first_that_does_not_fit(scores, sizes, budget):
    order = np.argsort(scores, kind="stable")
    found = before(jnp.asarray(scores, jnp.uint32), jnp.asarray(sizes), jnp.int32(budget))
    wanted = (np.cumsum(np.array(sizes)[order]) <= budget) & (np.array(sizes)[order] > 0)
    assert np.array_equal(np.asarray(found)[order], wanted)


before = jax.jit(lambda scores, sizes, budget: prefix(scores, sizes, budget, bits=5))


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
    starts = np.zeros(LENGTH, bool)
    starts[[0, 6, 10, 14]] = True
    rows = every_row(np.ones(LENGTH, bool), starts)
    found = chosen(many(SELECTIONS["words"])(example_keys(), rows, 0.1))
    kinds, counts = np.unique(found, axis=0, return_counts=True)
    assert [np.flatnonzero(kind).tolist() for kind in kinds] == [[10, 11, 12, 13], [6, 7, 8, 9]]
    assert stats.binomtest(counts[0], ROWS).pvalue > 1e-3
    assert not many(SELECTIONS["words"], capacity=3)(example_keys(), rows, 0.1).weight.any()


def test_bernoulli_words_are_independent():
    rows = every_row(np.ones(LENGTH, bool), np.arange(LENGTH) % 3 == 0)
    masks = many(SELECTIONS["words-bernoulli"])(example_keys(), rows, 0.3)
    words = chosen(masks)[:, ::3]
    assert np.abs(words.mean(axis=0) - 0.3).max() < 4.5 * np.sqrt(0.3 * 0.7 / ROWS)
    assert np.abs(np.corrcoef(words, rowvar=False) - np.eye(8)).max() < 4.5 / np.sqrt(ROWS)


def test_bernoulli_words_overflow_as_wholes():
    rows = every_row(np.ones(LENGTH, bool), np.arange(LENGTH) % 3 == 0)
    masks = many(SELECTIONS["words-bernoulli"], capacity=8)(example_keys(), rows, 0.9)
    assert np.array_equal(np.unique(masks.weight.sum(axis=1)), [6])
    assert np.ptp(chosen(masks).mean(axis=0)) < 9 * np.sqrt(0.25 * 0.75 / ROWS)


def test_small_words_fill_the_end_of_the_budget():
    starts = np.ones(LENGTH, bool)
    starts[1:20] = False
    rows = every_row(np.ones(LENGTH, bool), starts)
    found = chosen(many(SELECTIONS["words"])(example_keys(), rows, 0.2))
    assert np.array_equal(np.unique(found, axis=0), [[False] * 20 + [True] * 4])
