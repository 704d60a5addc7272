"""What the tests of this room share: rows, one of each selection, and a test of uniformity."""

from collections import Counter
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from scipy import stats

from mlmjax.core import prng
from mlmjax.masking import (
    BalancedSelection,
    HierarchicalSelection,
    NGramSelection,
    RareTokenSelection,
    Row,
    SpanSelection,
    TokenSelection,
    WordSelection,
)

LENGTH = 24
ROWS = 2000

SELECTIONS = {
    "tokens": TokenSelection(),
    "tokens-bernoulli": TokenSelection(count="bernoulli"),
    "words": WordSelection(),
    "words-bernoulli": WordSelection(count="bernoulli"),
    "spans": SpanSelection(),
    "spans-tokens": SpanSelection(unit="tokens"),
    "ngrams": NGramSelection(),
    "rare": RareTokenSelection(),
    "rare-words": RareTokenSelection(unit="words"),
    "balanced": BalancedSelection(),
    "hierarchical": HierarchicalSelection(),
}
EXACT = {name: it for name, it in SELECTIONS.items() if "bernoulli" not in name}
OF_TOKENS = ("tokens", "tokens-bernoulli", "spans-tokens", "rare")
OF_WORDS = {name: it for name, it in SELECTIONS.items() if name not in OF_TOKENS}
MACHINERY = {name: SELECTIONS[name] for name in ("words-bernoulli", "spans", "rare-words")}
"""Between them, they use what the others do."""

FREQUENCIES = np.float32([0, 1e-8, 1e-5, 1e-4, 0.002, 0.05])
"""Of the tokens in the tests, from unseen to stop words."""


def row(eligible, word_starts=None, sentence_starts=None, frequency=None):
    """A row, or several; by default each token is a word, all one sentence, as frequent as each other."""
    eligible = jnp.asarray(eligible)
    return Row(
        eligible=eligible,
        word_starts=eligible | True if word_starts is None else jnp.asarray(word_starts),
        sentence_starts=eligible & False
        if sentence_starts is None
        else jnp.asarray(sentence_starts),
        frequency=jnp.full(eligible.shape, 1e-4, jnp.float32)
        if frequency is None
        else jnp.asarray(frequency, jnp.float32),
    )


def every_row(*one):
    """The same row (:func:`row`), :data:`ROWS` times."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (ROWS, LENGTH)), row(*one))


flags = st.lists(st.booleans(), min_size=LENGTH, max_size=LENGTH).map(jnp.asarray)
seeds = st.integers(0, 2**31 - 1)
ratios = st.integers(1, 100).map(lambda percent: percent / 100)
densities = st.sampled_from([0, 0.03, 0.2, 0.7, 0.9, 1])


TRACES = Counter()
"""How often the function of a selection was traced."""


@cache
def many(selection, capacity=LENGTH):
    """The selection of :data:`ROWS` rows with any ratio and step, compiled once for all tests."""

    def select(key, row, ratio, step):
        TRACES[selection, capacity] += 1
        return selection(key, row, ratio=ratio, capacity=capacity, step=step)

    mapped = jax.jit(jax.vmap(select, in_axes=(0, 0, None, None)))
    return lambda keys, rows, ratio, step=0: mapped(keys, rows, ratio, step)


def example_keys(*, epoch=0, seed=0, first=0):
    """The keys of the :data:`ROWS` examples from ``first`` on."""
    return _example_keys(prng.stream(prng.root(seed), "mask"), jnp.int32(epoch), jnp.uint32(first))


@jax.jit
def _example_keys(key, epoch, first):
    ids = first + jnp.arange(ROWS, dtype=jnp.uint32)
    ids = jnp.stack([jnp.zeros(ROWS, jnp.uint32), ids], axis=1)
    return prng.per_example(key, jnp.full(ROWS, epoch), ids)


def random_rows(seed=0, *, eligible=0.9, words=0.7, sentences=0.2):
    """Rows with special tokens, padding, and any words, sentences and frequencies.

    Args:
        seed: of the rows.
        eligible: share of the tokens that are, where there is no padding.
        words: share of the tokens that begin a word.
        sentences: share of those that begin a sentence.
    """
    rng = np.random.default_rng(seed)
    used = rng.integers(0, LENGTH + 1, (ROWS, 1))
    some, words, sentences = (
        rng.random((ROWS, LENGTH)) < share for share in (eligible, words, sentences)
    )
    some &= np.arange(LENGTH) < used
    return row(some, words, words & sentences, rng.choice(FREQUENCIES, (ROWS, LENGTH)))


def chosen(mask):
    """The mask as booleans, one a position."""
    return np.asarray(mask.dense(LENGTH)) > 0


def same(first, second):
    """Whether two masks are equal bit for bit."""
    return all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    )


def uniformity(select, eligible, *, rounds=5):
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
