"""The counters of an audit against loops over rows and tokens."""

from itertools import groupby

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mlmjax.corruption import Kind
from mlmjax.evaluation.audit.counters import (
    Drawn,
    FateTally,
    PositionTally,
    RunTally,
    TargetTally,
    TokenTally,
    Units,
    asked_p,
)
from mlmjax.masking import word_numbers
from tests.evaluation.audit.drawn import SIZE, SPECIAL, drawn_of


def words_of(drawn):
    """Each word as its row and positions."""
    for row in range(len(drawn.tokens)):
        eligible, starts = jnp.asarray(drawn.eligible[row]), jnp.asarray(drawn.word_starts[row])
        number = np.asarray(word_numbers(eligible, starts))
        for one in range(number.size):
            if (places := np.flatnonzero(number == one)).size:
                yield row, places


@settings(max_examples=8)
@given(st.integers(0, 10**6))
def test_words_tokens_and_runs(seed):
    drawn = drawn_of(seed)
    words, units = list(words_of(drawn)), Units.of(drawn)
    assert units.size.tolist() == [len(places) for _, places in words]
    assert units.taken.tolist() == [drawn.selected[row, places].sum() for row, places in words]
    assert units.row.tolist() == [row for row, _ in words]

    tokens = TokenTally(SIZE)
    tokens.add(drawn, units)
    eligible, targets = np.zeros((2, 2, SIZE), int)
    lengths, spans = [], []
    for row, places in words:
        for place in places:
            index = int(len(places) > 1), drawn.tokens[row, place]
            eligible[index] += 1
            targets[index] += drawn.selected[row, place]
    assert (tokens.eligible == eligible).all()
    assert (tokens.targets == targets).all()

    begins = {(row, places[0]) for row, places in words}
    for row, selected in enumerate(drawn.selected):
        for chosen, group in groupby(range(selected.size), key=lambda place: selected[place]):
            if chosen:
                places = list(group)
                lengths.append(len(places))
                spans.append(1 + sum((row, place) in begins for place in places[1:]))
    runs = RunTally()
    runs.add(drawn)
    runs.add(drawn)
    for histogram, found in ((runs.tokens, lengths), (runs.words, spans)):
        assert (histogram.counts == 2 * np.bincount(found, minlength=0)).all()
        assert histogram.mean == pytest.approx(np.mean(found) if found else 0)


@given(st.integers(0, 10**6))
def test_documents_and_targets(seed):
    drawn = drawn_of(seed)
    expected = [
        (drawn.selected[row][inside].sum(), drawn.eligible[row][inside].sum())
        for row in range(len(drawn.tokens))
        for number in range(3)
        if (inside := drawn.document[row] == number).any()
    ]
    targets, eligible = drawn.by_document()
    assert list(zip(targets, eligible, strict=True)) == expected
    if not expected:
        return
    tally = TargetTally()
    tally.add(targets, eligible)
    found, numbers = tally.figures(), [one for one, _ in expected]
    assert (found.least, found.most, found.examples) == (min(numbers), max(numbers), len(numbers))
    assert found.mean == pytest.approx(np.mean(numbers))
    assert found.without == sum(one == 0 < possible for one, possible in expected)


@given(st.integers(0, 10**6))
def test_fates(seed):
    drawn = drawn_of(seed)
    tally = FateTally(SPECIAL)
    tally.add(drawn)
    assert tally.counts.sum() == drawn.selected.sum()
    assert tally.counts.tolist() == [(drawn.kind == kind).sum() for kind in Kind]
    assert tally.random_right == ((drawn.kind == Kind.RANDOM) & (drawn.seen == drawn.tokens)).sum()
    assert tally.changed == tally.random_special == 0
    drawn.seen[:] = 0
    tally.add(drawn)
    assert tally.changed == (~drawn.selected | (drawn.kind == Kind.KEEP)).sum()
    assert tally.random_special == (drawn.kind == Kind.RANDOM).sum()


def position_p(selected):
    """The p-value of masks of rows without padding."""
    drawn = drawn_of(0, rows=len(selected), length=selected.shape[1])
    every = np.ones_like(selected)
    tally = PositionTally()
    for half in (slice(None, None, 2), slice(1, None, 2)):
        rows = {name: getattr(drawn, name)[half] for name in ("tokens", "word_starts", "seen")}
        rows |= dict.fromkeys(("kind", "document"), drawn.kind[half])
        some = Drawn(
            **rows,
            valid=every[half],
            eligible=every[half],
            times=selected[half].astype(np.int32),
            outside=0,
            packed=False,
            capacity=1,
        )
        tally.add(some, fresh=True)
    return tally.figures().p


def span_masks(draw, rows, length=40):
    """One span of eight a row, laid on a circle: alike over positions, but not token by token."""
    start = draw.integers(length, size=(rows, 1))
    return (np.arange(length) - start) % length < 8


def test_spans_spread_by_chance_are_judged_so():
    draw = np.random.default_rng(3)
    p = np.array([position_p(span_masks(draw, 300)) for _ in range(120)])
    assert stats.kstest(p, "uniform").pvalue > 1e-4


def test_a_slope_over_positions_is_found():
    draw = np.random.default_rng(4)
    assert position_p(draw.random((2000, 40)) < np.linspace(0.12, 0.18, 40)) < 1e-6
    assert position_p(draw.random((2000, 40)) < 0.15) > 1e-4
    assert position_p(draw.random((20, 40)) < 0.15) is None
    assert position_p(np.ones((200, 40), bool)) is None


def test_counts_against_shares():
    draw = np.random.default_rng(5)
    law = np.array([0.5, 0.3, 0.15, 0.04, 0.01, 0.0])
    p = [asked_p(draw.multinomial(400, law), law) for _ in range(300)]
    assert stats.kstest(p, "uniform").pvalue > 1e-4
    assert asked_p(np.array([300, 60, 30, 8, 1, 1]), law) < 1e-6
    assert asked_p(np.array([3, 1, 0, 0, 0, 0]), law) is None
