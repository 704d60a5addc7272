"""Ratios over steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from selections import seeds

from mlmjax.core import prng
from mlmjax.masking import CosineRatio, LinearRatio, RatioSchedule, TokenSelection

shares = st.floats(0.01, 1)


@pytest.mark.parametrize("kind", [LinearRatio, CosineRatio])
@given(start=shares, end=st.none() | shares, own=shares, steps=st.integers(1, 1000))
def test_from_start_to_end(kind, start, end, own, steps):
    schedule = kind(start=start, end=end, steps=steps)
    last = own if end is None else end
    values = np.array([float(schedule.at(step, own)) for step in (0, steps // 2, steps, 9 * steps)])
    assert values[0] == pytest.approx(start)
    assert values[2:] == pytest.approx(last)
    assert schedule.highest(own) == max(start, last)
    assert (values <= np.float32(schedule.highest(own))).all()


def test_shapes():
    linear, cosine = (kind(start=0.1, steps=100, end=0.5) for kind in (LinearRatio, CosineRatio))
    assert float(linear.at(25, 0.9)) == pytest.approx(0.2)
    assert float(cosine.at(50, 0.9)) == pytest.approx(0.3)
    assert float(cosine.at(25, 0.9)) == pytest.approx(0.3 - 0.2 * np.sqrt(0.5))


@given(seed=seeds)
def test_a_step_with_a_scheduled_ratio(seed):
    counts = [float(scheduled(prng.root(seed), jnp.int32(step))) for step in (0, 5, 10, 20)]
    assert counts == [20, 15, 10, 10]


@jax.jit
def scheduled(key, step):
    selection, schedule = TokenSelection(ratio=0.1), LinearRatio(start=0.2, steps=10)
    row = jnp.ones(100, bool)
    mask = selection(
        key,
        row,
        row,
        ratio=schedule.at(step, selection.ratio),
        capacity=selection.capacity(100, schedule.highest(selection.ratio)),
    )
    return mask.weight.sum()


def test_options_are_checked():
    with pytest.raises(ValidationError, match="start"):
        LinearRatio(start=0.0, steps=10)
    with pytest.raises(ValidationError, match="steps"):
        LinearRatio(start=0.1, steps=0)


def test_a_schedule_is_a_value():
    schedule = CosineRatio(start=0.1, steps=10)
    assert RatioSchedule.from_json(schedule.to_json()) == schedule
