"""Words within spans within sentences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from pydantic import ValidationError
from scipy import stats
from selections import (
    LENGTH,
    ROWS,
    SELECTIONS,
    chosen,
    densities,
    every_row,
    example_keys,
    many,
    random_rows,
    seeds,
    uniformity,
)

from mlmjax.masking import HierarchicalSelection, geometric
from mlmjax.masking.base import random_bits, rounded
from mlmjax.masking.hierarchical import levels

LAW = geometric(0.2, longest=10)


@jax.jit
@jax.vmap
def levels_of(key, row):
    """The levels that the selection of this key uses, and all its random bits."""
    bits = random_bits(key, 4 * LENGTH + 1)
    return bits, levels(
        bits[3 * LENGTH : 4 * LENGTH],
        row.eligible,
        word_starts=row.word_starts,
        sentence_starts=row.sentence_starts,
        law=LAW,
    )


@given(seed=seeds, words=densities, sentences=densities)
@settings(max_examples=10)
def test_levels_lie_within_each_other(seed, words, sentences):
    rows = random_rows(seed, words=words, sentences=sentences)
    _, level = levels_of(example_keys(seed=seed), rows)
    level = jax.tree.map(np.asarray, level)
    eligible = np.asarray(rows.eligible)
    for units in level:
        assert np.array_equal(units < LENGTH, eligible)
    for number in range(50):
        word, span, sentence = (units[number][eligible[number]] for units in level)
        for units in (word, span, sentence):
            assert np.array_equal(np.unique(units), np.arange(units.max(initial=-1) + 1))
            assert (np.diff(units) >= 0).all()
        for inner, outer in ((word, span), (span, sentence)):
            assert len(set(zip(inner, outer, strict=True))) == len(set(inner))
        for name in set(span):
            assert len(set(word[span == name])) <= LAW.size
        # A sentence begins at the first word that begins after its mark.
        begins = np.diff(word, prepend=-1) > 0
        marks = np.cumsum(np.asarray(rows.sentence_starts)[number])[eligible[number]][begins]
        assert np.array_equal(sentence[begins], np.unique(marks, return_inverse=True)[1])


def test_spans_follow_the_law_from_the_start_of_each_sentence():
    starts = np.isin(np.arange(LENGTH), [0, 12])
    _, level = levels_of(example_keys(), every_row(np.ones(LENGTH, bool), None, starts))
    span = np.asarray(level.span)
    for begin in (0, 12):
        lengths = (span == span[:, begin : begin + 1]).sum(axis=1)
        counts = np.bincount(lengths, minlength=11)[1:]
        assert stats.chisquare(counts, LAW * ROWS).pvalue > 1e-3


def greedy(units, scores, chosen, until):
    """Whole units in the order of their scores, in plain Python."""
    for unit in sorted(set(units) - {LENGTH}, key=lambda unit: scores[unit]):
        new = [place for place in np.flatnonzero(units == unit) if place not in chosen]
        if len(chosen) + len(new) <= until:
            chosen |= set(new)


def test_the_rounds_as_in_plain_python():
    rows, keys, ratio = random_rows(words=0.8), example_keys(), 0.5
    found = chosen(many(SELECTIONS["hierarchical"])(keys, rows, ratio))
    bits, level = levels_of(keys, rows)
    bits, level = np.asarray(bits) >> 1, jax.tree.map(np.asarray, level)
    shares = np.asarray(jax.vmap(hundredths)(jnp.asarray(bits[:, -1] << 1)))
    for number in range(300):
        total = int(rows.eligible[number].sum())
        budget = min(total, max(1, round(ratio * total)))
        scores = bits[number, : 3 * LENGTH].reshape(3, LENGTH)
        word, span, sentence = (units[number] for units in level)
        selected = set()
        for units, score, until in (
            (word, scores[0], shares[number, budget, 0]),
            (span, scores[1], shares[number, budget, 1]),
            (sentence, scores[2], budget),
            (word, scores[0], budget),
        ):
            greedy(units, score, selected, until)
        if selected:
            assert np.array_equal(np.flatnonzero(found[number]), sorted(selected))


def hundredths(bits):
    """The shares of words, and of words and spans, of each budget."""
    return jnp.stack(
        [
            jnp.stack([rounded(share, jnp.int32(total), bits) for share in (0.4, 0.7)])
            for total in range(LENGTH + 1)
        ]
    )


SHIFTED = HierarchicalSelection(words=0, spans=0, sentences=1, shift_steps=10)
SIX = np.isin(np.arange(LENGTH), [0, 6, 12, 18])


def test_sentences_alone():
    """Of six tokens: one fits into eight, as often as another, and single words make up the rest."""
    rows = every_row(np.ones(LENGTH, bool), None, SIX)
    found = chosen(many(SHIFTED)(example_keys(), rows, 1 / 3, 10)).reshape(ROWS, 4, 6)
    whole = found.all(axis=2)
    assert (whole.sum(axis=1) == 1).all()
    assert (found.sum(axis=(1, 2)) == 8).all()
    assert stats.chisquare(whole.sum(axis=0)).pvalue > 1e-3


def test_units_of_one_size_are_equally_likely():
    starts = np.arange(LENGTH) % 4 == 0
    rows = every_row(np.ones(LENGTH, bool), None, starts)
    selection = HierarchicalSelection(p=1.0)
    select = lambda keys: many(selection)(keys, rows, 0.5)  # noqa: E731
    assert uniformity(select, np.ones(LENGTH, bool)) > 1e-3


def test_shares_shift_from_local_to_global():
    """Neighbours are the likelier both selected, the larger the units."""
    shares = [[float(share) for share in SHIFTED.shares(step)] for step in (0, 5, 10, 100)]
    assert shares == [[1, 0], [0.5, 0], [0, 0], [0, 0]]
    half = HierarchicalSelection(shift_steps=10).shares(5)
    assert [float(share) for share in half] == pytest.approx([0.7, 0.15])
    rows = every_row(np.ones(LENGTH, bool), None, SIX)
    pairs = []
    for step in (0, 5, 10, 100):
        found = chosen(many(SHIFTED)(example_keys(), rows, 0.5, step))
        assert (found.sum(axis=1) == 12).all()
        pairs.append((found[:, 1:] & found[:, :-1]).mean())
    # Of words alone: 12 in 24, then 11 in 23.
    assert pairs[0] == pytest.approx(12 / 24 * 11 / 23, abs=0.01)
    assert pairs[0] + 0.03 < pairs[1] < pairs[2] - 0.03
    assert pairs[2] == pairs[3]


def test_options_are_checked():
    with pytest.raises(ValidationError, match=r"sum to 1\.2, but have to sum to 1"):
        HierarchicalSelection(words=0.6)
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        HierarchicalSelection(words=-0.1, spans=0.8)
    with pytest.raises(ValidationError, match="shift_steps"):
        HierarchicalSelection(shift_steps=0)
