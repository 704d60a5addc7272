"""The balance of stop words against content words."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats
from selections import LENGTH, ROWS, SELECTIONS, chosen, every_row, example_keys, many

from mlmjax.masking import BalancedSelection
from mlmjax.masking.base import rounded

STOP, CONTENT = 0.01, 1e-5
select = many(SELECTIONS["balanced"])


def rows_of(stops, starts=None):
    """The same row, its stop words at some positions."""
    frequency = np.where(np.isin(np.arange(LENGTH), stops), STOP, CONTENT)
    return every_row(np.ones(LENGTH, bool), starts, None, frequency)


@pytest.mark.parametrize(("ratio", "budget"), [(0.4, 10), (0.125, 3), (0.04, 1)])
def test_four_targets_in_five_are_content(ratio, budget):
    """In the mean, also where the budget does not divide."""
    stops = np.arange(0, LENGTH, 2)
    found = chosen(select(example_keys(), rows_of(stops), ratio))
    assert (found.sum(axis=1) == budget).all()
    content = budget - found[:, stops].sum(axis=1)
    assert abs(content.mean() / budget - 0.8) < 4.5 * 0.5 / np.sqrt(ROWS) / budget
    assert set(content) <= {int(0.8 * budget), int(np.ceil(0.8 * budget))}


def test_words_of_one_kind_are_equally_likely():
    stops = np.arange(10)
    counts = chosen(select(example_keys(), rows_of(stops), 0.04)).sum(axis=0)
    for kind in (counts[:10], counts[10:]):
        assert stats.chisquare(kind).pvalue > 1e-3


@pytest.mark.parametrize("stops", [range(LENGTH), range(2, LENGTH), range(2), ()])
def test_where_one_kind_is_short_the_other_fills_up(stops):
    stops = np.array(stops, int)
    found = chosen(select(example_keys(), rows_of(stops), 0.5))
    assert (found.sum(axis=1) == 12).all()
    few = np.setdiff1d(np.arange(LENGTH), stops) if len(stops) > 2 else stops
    assert found[:, few].mean(axis=0) == pytest.approx(1) if len(few) else True


def test_a_word_of_frequent_tokens_is_content():
    """Only words of one token are stop words."""
    starts = np.arange(LENGTH) % 2 == 0
    starts[12:] = True
    found = chosen(select(example_keys(), rows_of(np.arange(LENGTH), starts), 0.25))
    content = found[:, :12].sum(axis=1)
    assert set(content) == {4, 5} or set(content) == {4}
    assert (found.sum(axis=1) == 6).all()


def test_the_share_of_the_corpus_decides():
    frequency = np.where(np.arange(LENGTH) < 12, 0.0011, 0.0009)
    rows = every_row(np.ones(LENGTH, bool), None, None, frequency)
    found = chosen(select(example_keys(), rows, 0.4))
    assert found[:, 12:].sum(axis=1).mean() == pytest.approx(8, abs=0.1)


halves = jax.jit(jax.vmap(rounded, in_axes=(0, None, None)))


@given(
    share=st.integers(0, 2**14).map(lambda parts: parts / 2**14),
    total=st.sampled_from([0, 1, 2, 7, 77, 2**17 - 1]),
)
def test_shares_are_rounded_up_or_down_by_chance(share, total):
    """Over all bits that count, the mean is exact; a larger share never gets less."""
    shares = jnp.asarray([share, min(1, share + 0.01)])
    bits = jnp.asarray(np.arange(2**14, dtype=np.uint32) << 18)
    found, more = np.asarray(
        jax.vmap(halves, in_axes=(None, None, 0), out_axes=1)(shares, jnp.int32(total), bits)
    )
    assert found.mean() == pytest.approx(share * total)
    assert np.ptp(found) <= 1
    assert (more >= found).all()
    assert more.max() <= total


def test_options_are_checked():
    with pytest.raises(ValidationError, match="content"):
        BalancedSelection(content=1.1)
    with pytest.raises(ValidationError, match="stop_share"):
        BalancedSelection(stop_share=0)
