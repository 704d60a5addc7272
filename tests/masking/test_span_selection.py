"""Spans: their lengths, their layout, and the budget."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats
from selections import LENGTH, example_keys, seeds

from mlmjax.core import prng
from mlmjax.masking import SpanSelection, span_layout, span_lengths


def geometric(p, longest):
    shares = p * (1 - p) ** np.arange(longest)
    return shares / shares.sum()


@pytest.mark.parametrize(("p", "longest"), [(0.2, 10), (0.5, 3), (1.0, 4), (0.3, 1)])
def test_lengths_are_truncated_geometric(p, longest):
    found = np.asarray(span_lengths(prng.root(0), 100_000, p=p, longest=longest))
    counts = np.bincount(found, minlength=longest + 1)
    assert counts.size == longest + 1
    assert counts[0] == 0
    expected = geometric(p, longest) * found.size
    assert not counts[1:][expected == 0].any()
    if (expected > 0).sum() > 1:
        assert stats.chisquare(counts[1:], expected).pvalue > 1e-3


def test_the_mean_of_spanbert():
    found = span_lengths(prng.root(0), 100_000, p=0.2, longest=10)
    assert abs(float(found.mean()) - 3.8) < 0.02


layouts = jax.jit(
    jax.vmap(
        lambda key, units, covered: span_layout(
            key, units, covered=covered, length=LENGTH, p=0.2, longest=4
        )
    )
)


@given(seed=seeds, units=st.integers(0, LENGTH), share=st.floats(0, 1))
def test_a_layout_covers_exactly_what_is_asked(seed, units, share):
    covered = round(share * units)
    layout = layouts(prng.root(seed)[None], jnp.array([units]), jnp.array([covered]))
    rank, span = np.asarray(layout.rank[0]), np.asarray(layout.span[0])
    assert sorted(rank) == list(range(LENGTH))
    assert np.array_equal(rank[units:], np.arange(units, LENGTH))
    assert np.array_equal(span >= 0, rank < covered)
    numbers = [int(span[unit]) for unit in np.argsort(rank)[:covered]]
    assert numbers == sorted(numbers)
    for number in set(numbers):
        members = np.argsort(rank)[:covered][np.array(numbers) == number]
        assert len(members) <= 4
        assert ((np.diff(members) - 1) % units == 0).all()


def test_laid_spans_keep_their_lengths_and_may_lie_anywhere():
    """Of spans that the total cannot have cut: lengths are geometric, and starts uniform."""
    rows = 20_000
    layout = layouts(example_keys(rows), jnp.full(rows, LENGTH), jnp.full(rows, 9))
    span, rank = np.asarray(layout.span), np.asarray(layout.rank)
    for number in (0, 1):
        lengths = (span == number).sum(axis=1)
        counts = np.bincount(lengths, minlength=5)[1:]
        assert stats.chisquare(counts, geometric(0.2, 4) * rows).pvalue > 1e-3
    assert stats.chisquare(np.bincount((rank == 0).argmax(axis=1))).pvalue > 1e-3


def test_all_arrangements_are_equally_likely():
    """Spans of two on five of seven places, one cut: 3 spans and 2 gaps, shuffled and turned."""
    rows = 40_000
    layout = jax.vmap(
        lambda key: span_layout(key, jnp.array(5), covered=jnp.array(3), length=6, p=1.0, longest=1)
    )(example_keys(rows))
    names = np.asarray(layout.span)[:, :5] + 1
    _, counts = np.unique(names, axis=0, return_counts=True)
    assert counts.size == 5 * 4 * 3
    assert stats.chisquare(counts).pvalue > 1e-3


def test_spans_go_on_behind_a_special_token_and_the_end_of_the_row():
    selection = SpanSelection(ratio=0.4, p=1e-6, longest=4, unit="tokens")
    eligible = jnp.ones(LENGTH, bool).at[jnp.array([0, 11, 23])].set(False)
    order = np.flatnonzero(eligible)
    masks = jax.vmap(lambda key: selection(key, eligible, eligible))(example_keys(300))
    chosen = np.asarray(masks.dense(LENGTH))[:, order] > 0
    across = chosen[:, 9] & chosen[:, 10]
    around = chosen[:, 20] & chosen[:, 0]
    inside = chosen[:, 4] & chosen[:, 5]
    assert abs(across.mean() - inside.mean()) < 0.15
    assert abs(around.mean() - inside.mean()) < 0.15


def test_spans_of_words_reach_the_budget():
    """As in text: three words in four are one token. At most a token short, and that rarely."""
    rng = np.random.default_rng(0)
    starts = jnp.asarray(rng.random((2000, 128)) < 0.8)
    masks = jax.jit(jax.vmap(SpanSelection()))(example_keys(2000), jnp.ones_like(starts), starts)
    assert (np.asarray(masks.weight.sum(axis=1)) == 19).all()


def test_runs_are_about_as_long_as_the_spans():
    """Thinning the candidates and letting spans touch changes the mean length little."""
    row = jnp.ones((3000, 512), bool)
    for unit in ("words", "tokens"):
        masks = jax.jit(jax.vmap(SpanSelection(unit=unit)))(example_keys(3000), row, row)
        chosen = np.asarray(masks.dense(512)) > 0
        runs = (chosen & ~np.roll(chosen, 1, axis=1)).sum()
        assert 3.6 < chosen.sum() / runs < 4.2


def test_options_are_checked():
    with pytest.raises(ValidationError, match="less than or equal to 1"):
        SpanSelection(p=1.5)
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        SpanSelection(longest=0)
