"""Spans: their lengths, their layout, and the budget."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats
from selections import (
    LENGTH,
    ROWS,
    SELECTIONS,
    chosen,
    every_row,
    example_keys,
    many,
    random_rows,
    row,
    seeds,
)

from mlmjax.core import prng
from mlmjax.masking import (
    NGramSelection,
    SpanLaw,
    SpanSelection,
    geometric,
    harmonic,
    select_ngrams,
    select_spans,
    span_layout,
    span_lengths,
    word_numbers,
)
from mlmjax.masking.spans import ascending

LAWS = {
    "geometric(0.2, 10)": geometric(0.2, longest=10),
    "geometric(0.5, 3)": geometric(0.5, longest=3),
    "geometric(1.0, 4)": geometric(1.0, longest=4),
    "geometric(0.3, 1)": geometric(0.3, longest=1),
    "harmonic(3)": harmonic(3),
    "harmonic(1)": harmonic(1),
}


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
def test_lengths_follow_their_law(law):
    found = np.asarray(span_lengths(prng.root(0), 100_000, law=law))
    counts = np.bincount(found, minlength=law.size + 1)
    assert counts.size == law.size + 1
    assert counts[0] == 0
    assert not counts[1:][law == 0].any()
    if (law > 0).sum() > 1:
        assert stats.chisquare(counts[1:], law * found.size).pvalue > 1e-3


def test_the_laws_of_the_papers():
    assert geometric(0.2, longest=10) @ np.arange(1, 11) == pytest.approx(3.8, abs=0.01)
    assert harmonic(3).tolist() == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    assert np.array_equal(SpanSelection().law(), geometric(0.2, longest=10))
    assert np.array_equal(NGramSelection().law(), harmonic(3))


layouts = jax.jit(
    jax.vmap(
        lambda key, units, covered: span_layout(
            key, units, covered=covered, length=LENGTH, law=geometric(0.2, longest=4)
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
    numbers = span[np.argsort(rank)]
    assert np.array_equal(np.unique(numbers), np.arange(numbers[-1] + 1))
    assert (np.diff(numbers)[max(covered - 1, 0) :] == 1).all()
    for number in set(numbers[:covered].tolist()):
        members = np.argsort(rank)[numbers == number]
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
        expected = geometric(0.2, longest=4) * 10 * ROWS
        assert stats.chisquare(counts, expected).pvalue > 1e-3
    assert stats.chisquare(starts).pvalue > 1e-3


def test_all_arrangements_are_equally_likely():
    """Three spans of one unit and two gaps on a circle of five: each of the 60 ways."""
    arrange = jax.jit(
        jax.vmap(
            lambda key: span_layout(
                key, jnp.array(5), covered=jnp.array(3), length=6, law=harmonic(1)
            )
        )
    )
    names = []
    for number in range(10):
        layout = arrange(example_keys(first=number * ROWS))
        names.append(np.where(layout.rank < 3, layout.span, -1)[:, :5])
    _, counts = np.unique(np.concatenate(names), axis=0, return_counts=True)
    assert counts.size == 5 * 4 * 3
    assert stats.chisquare(counts).pvalue > 1e-3


SPANS = {name: it for name, it in SELECTIONS.items() if isinstance(it, SpanLaw)}
each_of_spans = pytest.mark.parametrize("selection", SPANS.values(), ids=SPANS.keys())


@cache
def drawn(selection):
    """Gives the spans of some rows, with any ratio."""

    def spans(key, row, ratio):
        return selection.spans(key, row, ratio=ratio, capacity=LENGTH)

    return jax.jit(jax.vmap(spans, in_axes=(0, 0, None)))


@each_of_spans
def test_a_mask_is_all_of_its_spans(selection):
    """Which are numbered without gaps, have neighbouring words, and are no longer than the longest."""
    rows, keys = random_rows(), example_keys()
    spans = np.asarray(drawn(selection)(keys, rows, 0.3))
    assert np.array_equal(chosen(many(selection)(keys, rows, 0.3)), spans >= 0)
    starts = jax.vmap(selection.unit_starts)(rows)
    units = jax.vmap(word_numbers)(
        rows.eligible, rows.word_starts | True if starts is None else starts
    )
    total = np.where(units < LENGTH, units, -1).max(axis=1) + 1
    longest = selection.law().size
    for number in range(200):
        unit, span = np.asarray(units[number]), spans[number]
        for name in set(span[span >= 0].tolist()):
            members = np.unique(unit[span == name])
            assert members.size <= longest
            gaps = (members - members[0] + total[number] // 2) % total[number]
            assert np.ptp(gaps) < longest or np.ptp(members) < longest


@each_of_spans
def test_spans_of_a_mask_follow_the_law(selection):
    """Those whose number says that no budget can have cut them: 24 words, of which 12 are wanted."""
    rows, longest = every_row(np.ones(LENGTH, bool)), selection.law().size
    counts = np.zeros(longest, int)
    for number in range(5):
        spans = np.asarray(drawn(selection)(example_keys(first=number * ROWS), rows, 0.5))
        for name in range(12 // longest):
            lengths = (spans == name).sum(axis=1)
            counts += np.bincount(lengths, minlength=longest + 1)[1:]
    assert stats.chisquare(counts, selection.law() * counts.sum()).pvalue > 1e-3


def test_plain_functions_are_the_selections():
    one, key = row(np.ones(LENGTH, bool), np.arange(LENGTH) % 3 == 0), prng.root(0)
    plain = jax.jit(
        lambda: (
            select_spans(
                key, one.eligible, word_starts=one.word_starts, ratio=0.4, p=0.5, longest=3
            ),
            select_ngrams(key, one.eligible, word_starts=one.word_starts, ratio=0.4, longest=2),
        )
    )
    spans, ngrams = jax.jit(
        lambda: (
            SpanSelection(p=0.5, longest=3, ratio=0.4)(key, one),
            NGramSelection(longest=2, ratio=0.4)(key, one),
        )
    )()
    for found, wanted in zip(plain(), (spans, ngrams), strict=True):
        assert np.array_equal(found.positions, wanted.positions)
        assert found.weight.sum() >= 9


def test_spans_go_on_behind_a_special_token_and_the_end_of_the_row():
    eligible = np.ones(LENGTH, bool)
    eligible[[0, 11, 23]] = False
    masks = many(SELECTIONS["spans-tokens"])(example_keys(), every_row(eligible), 0.3)
    found = chosen(masks)[:, np.flatnonzero(eligible)]
    both = (found & np.roll(found, -1, axis=1)).mean(axis=0)
    assert np.ptp(both) < 9 * np.sqrt(both.mean() * (1 - both.mean()) / ROWS)


text_rows = jax.jit(jax.vmap(SpanSelection()))


def test_spans_of_words_reach_the_budget():
    """In rows as of text, where four tokens in five begin a word."""
    starts = np.random.default_rng(0).random((100, 512)) < 0.8
    masks = text_rows(example_keys()[:100], row(starts | True, starts))
    assert (np.asarray(masks.weight.sum(axis=1)) == 77).all()


def test_runs_are_about_as_long_as_the_spans():
    """Thinning the candidates and letting spans touch changes the mean length, 3.8, little."""
    masks = text_rows(example_keys()[:100], row(np.ones((100, 512), bool)))
    dense = np.asarray(masks.dense(512)) > 0
    runs = (dense & ~np.roll(dense, 1, axis=1)).sum()
    assert 3.6 < dense.sum() / runs < 4.2


order = jax.jit(ascending)


@given(
    scores=st.lists(
        st.sampled_from([0, 1, 2**16, 2**31, 2**32 - 1]) | seeds, min_size=9, max_size=9
    )
)
def test_ascending_is_a_stable_sort(scores):
    wanted = np.argsort(scores, kind="stable")
    assert np.array_equal(order(jnp.asarray(np.array(scores, np.uint32))), wanted)


@pytest.mark.parametrize("size", [1, 2, 512, 5000])
def test_ascending_sorts_any_number(size):
    scores = np.random.default_rng(0).integers(0, 2**32, size, np.uint32)
    assert np.array_equal(order(jnp.asarray(scores)), np.argsort(scores, kind="stable"))


def test_options_are_checked():
    with pytest.raises(ValidationError, match="less than or equal to 1"):
        SpanSelection(p=1.5)
    for selection in (SpanSelection, NGramSelection):
        with pytest.raises(ValidationError, match="greater than or equal to 1"):
            selection(longest=0)
