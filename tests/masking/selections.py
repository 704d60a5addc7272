"""What the tests of this room share: rows, one of each selection, and a test of uniformity."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from scipy import stats

from mlmjax.core import prng
from mlmjax.masking import SpanSelection, TokenSelection, WordSelection

LENGTH = 24

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


@cache
def compiled(selection):
    """A selection of one row with any ratio, compiled once for all tests."""

    def select(key, eligible, word_starts, ratio):
        return selection(key, eligible, word_starts, ratio=ratio, capacity=LENGTH)

    return jax.jit(select)


@cache
def many(selection, length=LENGTH):
    """The selection of a batch of rows, with the capacity that follows from its own ratio."""
    return jax.jit(jax.vmap(lambda key, eligible, starts: selection(key, eligible, starts)))


def example_keys(number, *, epoch=0, seed=0, name="mask"):
    """The keys of the examples 0 .. number - 1."""
    ids = jnp.stack([jnp.zeros(number, jnp.uint32), jnp.arange(number, dtype=jnp.uint32)], axis=1)
    return prng.per_example(
        prng.stream(prng.root(seed), name), jnp.full(number, epoch, jnp.int32), ids
    )


def random_rows(number, *, seed=0, length=LENGTH):
    """Eligible tokens and word starts of rows with special tokens, padding and any words."""
    rng = np.random.default_rng(seed)
    used = rng.integers(3, length + 1, (number, 1))
    eligible = (np.arange(length) < used) & (rng.random((number, length)) < 0.9)
    return jnp.asarray(eligible), jnp.asarray(rng.random((number, length)) < 0.7)


def targets(mask):
    """The selected positions of one row, as a list."""
    return np.asarray(mask.positions)[np.asarray(mask.weight) > 0].tolist()


def same(first, second):
    """Whether two masks are equal bit for bit."""
    return all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    )


def uniformity(masks, eligible):
    """The p-value of uniform marginals over the eligible positions, each row with as many targets.

    Targets of one row depend on each other, so one of each row is drawn: those are independent.
    """
    rng = np.random.default_rng(0)
    weight = np.asarray(masks.weight)
    assert len(set(weight.sum(axis=1))) == 1
    place = (rng.random(weight.shape) * weight).argmax(axis=1)
    drawn = np.asarray(masks.positions)[np.arange(len(place)), place]
    counts = np.bincount(drawn, minlength=eligible.size)
    assert not counts[~np.asarray(eligible)].any()
    return stats.chisquare(counts[np.asarray(eligible)]).pvalue
