"""Spans: their lengths, their layout, and the budget."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats
from selections import LENGTH, ROWS, SELECTIONS, chosen, every_row, example_keys, many, seeds

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


def every(value):
    return jnp.broadcast_to(value, (ROWS,))


@given(seed=seeds, units=st.integers(0, LENGTH), share=st.floats(0, 1))
def test_a_layout_covers_exactly_what_is_asked(seed, units, share):
    covered = round(share * units)
    layout = layouts(every(prng.root(seed)), every(jnp.int32(units)), every(jnp.int32(covered)))
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
    lengths, starts = np.zeros((2, 4)), np.zeros(LENGTH)
    for number in range(10):
        keys = example_keys(first=number * ROWS)
        layout = layouts(keys, jnp.full(ROWS, LENGTH), jnp.full(ROWS, 9))
        span, rank = np.asarray(layout.span), np.asarray(layout.rank)
        for which in (0, 1):
            found = (span == which).sum(axis=1)
            lengths[which] += np.bincount(found, minlength=5)[1:]
        starts += np.bincount((rank == 0).argmax(axis=1), minlength=LENGTH)
    for counts in lengths:
        assert stats.chisquare(counts, geometric(0.2, 4) * 10 * ROWS).pvalue > 1e-3
    assert stats.chisquare(starts).pvalue > 1e-3


def test_all_arrangements_are_equally_likely():
    """Three spans of one unit and two gaps on a circle of five: each of the 60 ways."""
    arrange = jax.jit(
        jax.vmap(
            lambda key: (
                span_layout(
                    key, jnp.array(5), covered=jnp.array(3), length=6, p=1.0, longest=1
                ).span
            )
        )
    )
    names = np.concatenate([arrange(example_keys(first=number * ROWS)) for number in range(10)])
    _, counts = np.unique(names[:, :5], axis=0, return_counts=True)
    assert counts.size == 5 * 4 * 3
    assert stats.chisquare(counts).pvalue > 1e-3


def test_spans_go_on_behind_a_special_token_and_the_end_of_the_row():
    eligible = np.ones(LENGTH, bool)
    eligible[[0, 11, 23]] = False
    row = every_row(eligible)
    masks = many(SELECTIONS["spans-tokens"])(example_keys(), row, row, 0.3)
    found = chosen(masks)[:, np.flatnonzero(eligible)]
    both = (found & np.roll(found, -1, axis=1)).mean(axis=0)
    assert np.ptp(both) < 9 * np.sqrt(both.mean() * (1 - both.mean()) / ROWS)


def test_spans_of_words_reach_the_budget():
    """In rows as of text, where four tokens in five begin a word."""
    starts = jnp.asarray(np.random.default_rng(0).random((300, 128)) < 0.8)
    masks = jax.jit(jax.vmap(SpanSelection()))(example_keys()[:300], starts | True, starts)
    assert (np.asarray(masks.weight.sum(axis=1)) == 19).all()


@pytest.mark.parametrize("unit", ["words", "tokens"])
def test_runs_are_about_as_long_as_the_spans(unit):
    """Thinning the candidates and letting spans touch changes the mean length, 3.8, little."""
    row = jnp.ones((100, 512), bool)
    select = jax.jit(jax.vmap(SpanSelection(unit=unit)))
    dense = np.asarray(select(example_keys()[:100], row, row).dense(512)) > 0
    runs = (dense & ~np.roll(dense, 1, axis=1)).sum()
    assert 3.6 < dense.sum() / runs < 4.2


def test_options_are_checked():
    with pytest.raises(ValidationError, match="less than or equal to 1"):
        SpanSelection(p=1.5)
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        SpanSelection(longest=0)
