"""Weighting towards rare tokens, against exact probabilities."""

from functools import cache
from itertools import combinations, permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError
from scipy import stats
from selections import FREQUENCIES, LENGTH, SELECTIONS, chosen, every_row, example_keys, many, row

from mlmjax.core import prng
from mlmjax.core.errors import UserError
from mlmjax.masking import RareTokenSelection, select_rare_tokens
from mlmjax.masking.base import random_bits
from mlmjax.masking.rare import log2, weighted_scores

FEW = np.float32([0.05, 0.02, 1e-3, 1e-3, 3e-4, 1e-5])
ROUNDS = 5


def weights(alpha, floor=1e-6):
    return np.maximum(FEW.astype(float), floor) ** -alpha


@cache
def drawn(alpha):
    """Which of the six tokens are selected of a row."""
    selection = RareTokenSelection(alpha=alpha)

    def select(key, ratio):
        one = row(np.ones(FEW.size, bool), frequency=FEW)
        return selection(key, one, ratio=ratio, capacity=FEW.size).dense(FEW.size)

    return jax.jit(jax.vmap(select, in_axes=(0, None)))


def counted(alpha, count):
    """How often each set of ``count`` of the six tokens is selected."""
    keys = [example_keys(first=number * 2000) for number in range(ROUNDS)]
    sets = np.concatenate([drawn(alpha)(each, count / FEW.size) for each in keys]).astype(int)
    assert (sets.sum(axis=1) == count).all()
    found, counts = np.unique(sets @ 2 ** np.arange(FEW.size), return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def expected(weights, count):
    """The probability of each set, drawn one after the other without replacement."""
    found = {}
    for members in combinations(range(weights.size), count):
        total = 0.0
        for order in permutations(members):
            left, share = weights.sum(), 1.0
            for member in order:
                share *= weights[member] / left
                left -= weights[member]
            total += share
        found[sum(2**member for member in members)] = total
    return found


@pytest.mark.parametrize(("alpha", "count"), [(0.5, 1), (1.0, 1), (0.5, 2), (0.5, 3), (0.0, 2)])
def test_each_set_is_as_likely_as_drawn_one_by_one(alpha, count):
    found, wanted = counted(alpha, count), expected(weights(alpha), count)
    total = 2000 * ROUNDS
    # Sets that are hardly ever drawn are put together, as the test needs some of each.
    common = [name for name, share in wanted.items() if share * total >= 5]
    counts = [found.get(name, 0) for name in common]
    shares = [wanted[name] for name in common]
    counts, shares = [*counts, total - sum(counts)], [*shares, 1 - sum(shares)]
    if shares[-1] < 1e-9:
        counts, shares = counts[:-1], shares[:-1]
    assert stats.chisquare(counts, np.array(shares) * total).pvalue > 1e-3


def test_rarer_tokens_are_likelier():
    """Also where many are selected."""
    frequency = np.geomspace(1e-5, 0.05, LENGTH)
    rows = every_row(np.ones(LENGTH, bool), None, None, frequency)
    share = chosen(many(SELECTIONS["rare"])(example_keys(), rows, 0.4)).mean(axis=0)
    assert stats.spearmanr(share, frequency).statistic < -0.98
    assert share[0] > 0.9
    assert 0.01 < share[-1] < 0.1


def test_a_word_is_as_rare_as_its_rarest_token():
    """Words of three tokens: one rare token weighs as much as three."""
    frequency = np.full(LENGTH, 0.01)
    frequency[[0, 4, 9, 10, 11]] = 1e-5
    rows = every_row(np.ones(LENGTH, bool), np.arange(LENGTH) % 3 == 0, None, frequency)
    found = chosen(many(SELECTIONS["rare-words"])(example_keys(), rows, 1 / 8))[:, ::3]
    wanted = np.where(np.isin(np.arange(8), [0, 1, 3]), 1e-5**-0.5, 0.01**-0.5)
    assert stats.chisquare(found.sum(axis=0), wanted / wanted.sum() * len(found)).pvalue > 1e-3


def test_unseen_tokens_count_as_rare_as_the_floor():
    frequency = np.tile([0, 1e-9, 1e-6], 8)
    rows = every_row(np.ones(LENGTH, bool), None, None, frequency)
    found = chosen(many(SELECTIONS["rare"])(example_keys(), rows, 0.3)).sum(axis=0)
    assert stats.chisquare(found.reshape(8, 3).sum(axis=0)).pvalue > 1e-3


scores = jax.jit(weighted_scores, static_argnums=(2, 3))


def test_scores_are_logarithms_of_weighted_exponentials():
    bits = random_bits(prng.root(0), 100_000)
    frequency = np.random.default_rng(0).choice(FREQUENCIES, bits.size)
    found = scores(bits, jnp.asarray(frequency), 0.5, 1e-6)
    uniform = np.asarray(bits, float) / 2**32
    wanted = np.log2(-np.log1p(-uniform)) + 0.5 * np.log2(np.maximum(frequency, 1e-6))
    error = np.abs((np.asarray(found, float) - 2**30) / 2**21 - wanted)
    assert error[uniform < 0.9].max() < 1e-3
    assert error.mean() < 1e-3
    assert np.asarray(found).max() < 2**31


def test_extreme_scores_stay_in_range():
    bits = jnp.asarray([0, 1, 2**32 - 1, 0, 2**32 - 1], jnp.uint32)
    frequency = jnp.asarray([0, 1e-9, 0, jnp.inf, 1.0])
    found = np.asarray(scores(bits, frequency, 8.0, 1e-9), np.int64)
    assert (np.diff(found[[0, 2, 3]]) > 0).all()
    assert (found > 0).all()
    assert (found < 2**31).all()


def test_logarithms_of_integers():
    values = np.float32(np.geomspace(1e-9, 4e9, 10_000))
    assert np.abs(np.asarray(jax.jit(log2)(values)) / 2**21 - np.log2(values)).max() < 2.5e-4


def test_options_are_checked():
    every = jnp.ones(LENGTH, bool)
    with pytest.raises(UserError, match="alpha is 9"):
        select_rare_tokens(prng.root(0), every, frequency=every * 0.1, ratio=0.1, alpha=9.0)
    with pytest.raises(UserError, match=r"floor 0\.0"):
        select_rare_tokens(prng.root(0), every, frequency=every * 0.1, ratio=0.1, floor=0.0)
    with pytest.raises(ValidationError, match="alpha"):
        RareTokenSelection(alpha=-1)
    with pytest.raises(ValidationError, match="floor"):
        RareTokenSelection(floor=0.0)
