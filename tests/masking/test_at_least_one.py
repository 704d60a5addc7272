"""Bernoulli counts with an option that leaves no row without a target."""

import numpy as np
import pytest
from selections import (
    LENGTH,
    SELECTIONS,
    chosen,
    every_row,
    example_keys,
    many,
    random_rows,
    uniformity,
)

each_unit = pytest.mark.parametrize("unit", ["tokens", "words"])


def sure(unit, capacity=LENGTH):
    """A selection with the option."""
    return many(SELECTIONS[f"{unit}-bernoulli"].updated(at_least_one=True), capacity)


@each_unit
def test_rows_without_a_hit_get_one(unit):
    """And no other row changes."""
    rows, keys = random_rows(), example_keys()
    plain = chosen(many(SELECTIONS[f"{unit}-bernoulli"])(keys, rows, 0.05))
    found = chosen(sure(unit)(keys, rows, 0.05))
    missed = ~plain.any(axis=1)
    assert 0.2 < missed.mean() < 0.8
    assert np.array_equal(plain[~missed], found[~missed])
    assert np.array_equal(found.any(axis=1), np.asarray(rows.eligible).any(axis=1))
    starts = found & np.asarray(rows.word_starts)
    assert ((found if unit == "tokens" else starts)[missed].sum(axis=1) <= 1).all()


@each_unit
def test_the_one_may_be_any(unit):
    eligible = np.ones(LENGTH, bool)
    eligible[:3] = False
    rows = every_row(eligible, np.arange(LENGTH) % 3 == 0)
    select = sure(unit)
    assert uniformity(lambda keys: select(keys, rows, 1e-6), eligible, rounds=4) > 1e-3


def test_the_one_fits_in_the_capacity():
    """Where hits are too large for it, another word is selected."""
    rows = every_row(np.ones(LENGTH, bool), np.isin(np.arange(LENGTH), [0, 20]))
    found = chosen(sure("words", capacity=4)(example_keys(), rows, 0.9))
    assert np.array_equal(np.unique(found, axis=0), [np.arange(LENGTH) >= 20])
