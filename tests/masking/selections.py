"""What the tests of this room share: rows, one of each selection, and a test of uniformity."""

from collections import Counter
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from scipy import stats

from mlmjax.core import prng
from mlmjax.masking import SpanSelection, TokenSelection, WordSelection

LENGTH = 24
ROWS = 2000

SELECTIONS = {
    "tokens": TokenSelection(),
    "tokens-bernoulli": TokenSelection(count="bernoulli"),
    "words": WordSelection(),
    "words-bernoulli": WordSelection(count="bernoulli"),
    "spans": SpanSelection(),
    "spans-tokens": SpanSelection(unit="tokens"),
}
EXACT = {name: it for name, it in SELECTIONS.items() if "bernoulli" not in name}

flags = st.lists(st.booleans(), min_size=LENGTH, max_size=LENGTH).map(jnp.asarray)
seeds = st.integers(0, 2**31 - 1)
ratios = st.integers(1, 100).map(lambda percent: percent / 100)


TRACES = Counter()
"""How often the function of a selection was traced."""


@cache
def compiled(selection):
    """A selection of one row with any ratio, compiled once for all tests."""

    def select(key, eligible, word_starts, ratio):
        TRACES[selection] += 1
        return selection(key, eligible, word_starts, ratio=ratio, capacity=LENGTH)

    return jax.jit(select)


@cache
def many(selection, capacity=LENGTH):
    """The selection of :data:`ROWS` rows with any ratio, compiled once for all tests."""

    def select(key, eligible, word_starts, ratio):
        return selection(key, eligible, word_starts, ratio=ratio, capacity=capacity)

    return jax.jit(jax.vmap(select, in_axes=(0, 0, 0, None)))


def example_keys(*, epoch=0, seed=0, first=0):
    """The keys of the :data:`ROWS` examples from ``first`` on."""
    return _example_keys(prng.stream(prng.root(seed), "mask"), jnp.int32(epoch), jnp.uint32(first))


@jax.jit
def _example_keys(key, epoch, first):
    ids = first + jnp.arange(ROWS, dtype=jnp.uint32)
    ids = jnp.stack([jnp.zeros(ROWS, jnp.uint32), ids], axis=1)
    return prng.per_example(key, jnp.full(ROWS, epoch), ids)


def random_rows():
    """Eligible tokens and word starts of rows with special tokens, padding and any words."""
    rng = np.random.default_rng(0)
    used = rng.integers(3, LENGTH + 1, (ROWS, 1))
    eligible = (np.arange(LENGTH) < used) & (rng.random((ROWS, LENGTH)) < 0.9)
    return jnp.asarray(eligible), jnp.asarray(rng.random((ROWS, LENGTH)) < 0.7)


def every_row(flags):
    """The same row, :data:`ROWS` times."""
    return jnp.broadcast_to(jnp.asarray(flags), (ROWS, LENGTH))


def chosen(mask):
    """The mask as booleans, one a position."""
    return np.asarray(mask.dense(LENGTH)) > 0


def targets(mask):
    """The selected positions of one row, as a list."""
    return np.asarray(mask.positions)[np.asarray(mask.weight) > 0].tolist()


def same(first, second):
    """Whether two masks are equal bit for bit."""
    return all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    )


def uniformity(select, eligible, *, rounds=10):
    """The p-value of uniform marginals over the eligible positions of a row.

    Targets of one row depend on each other, so one of each row is drawn: those are independent.

    Args:
        select: gives the masks of some keys; each with as many targets.
        eligible: of every row.
        rounds: how many times :data:`ROWS` rows are drawn.
    """
    rng = np.random.default_rng(0)
    counts = np.zeros(LENGTH, int)
    for number in range(rounds):
        masks = select(example_keys(first=number * ROWS))
        weight = np.asarray(masks.weight)
        assert len(set(weight.sum(axis=1))) == 1
        place = (rng.random(weight.shape) * weight).argmax(axis=1)
        drawn = np.asarray(masks.positions)[np.arange(ROWS), place]
        counts += np.bincount(drawn, minlength=LENGTH)
    assert not counts[~np.asarray(eligible)].any()
    return stats.chisquare(counts[np.asarray(eligible)]).pvalue
