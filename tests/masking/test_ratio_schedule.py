"""Ratios over steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from selections import row, seeds

from mlmjax.core import prng
from mlmjax.masking import CosineRatio, LinearRatio, RatioSchedule, StagedRatio, TokenSelection

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
    assert schedule.lowest(own) == min(start, last)
    assert (values >= np.float32(schedule.lowest(own))).all()


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
    mask = selection(
        key,
        row(np.ones(100, bool)),
        ratio=schedule.at(step, selection.ratio),
        capacity=selection.capacity(100, schedule.highest(selection.ratio)),
    )
    return mask.weight.sum()


steps_and_shares = st.lists(st.tuples(st.integers(1, 50), shares), max_size=4)


@given(first=shares, later=steps_and_shares)
def test_stages(first, later):
    """Each ratio from its update on, until the next."""
    starts = np.cumsum([0, *(length for length, _ in later)]).tolist()
    stages = tuple(zip(starts, [first, *(share for _, share in later)], strict=True))
    schedule = StagedRatio(stages=stages)
    for number, (start, share) in enumerate(stages):
        last = stages[number + 1][0] - 1 if number + 1 < len(stages) else 10**9
        for step in (start, last):
            assert float(schedule.at(step, 0.9)) == np.float32(share)
            assert schedule.at(step, 0.9) <= np.float32(schedule.highest(0.9))
            assert schedule.at(step, 0.9) >= np.float32(schedule.lowest(0.9))
    assert schedule.highest(0.9) == max(share for _, share in stages)
    assert schedule.lowest(0.9) == min(share for _, share in stages)


def test_stages_of_a_traced_step():
    at = jax.jit(StagedRatio(stages=((0, 0.3), (1000, 0.15))).at, static_argnums=1)
    found = [float(at(jnp.int32(step), 0.9)) for step in (0, 999, 1000, 5000)]
    assert found == pytest.approx([0.3, 0.3, 0.15, 0.15])


def test_options_are_checked():
    with pytest.raises(ValidationError, match="begin at update 0"):
        StagedRatio(stages=((10, 0.3),))
    with pytest.raises(ValidationError, match="begin at update 0"):
        StagedRatio(stages=())
    with pytest.raises(ValidationError, match=r"one after the other, not at \[0, 9, 9\]"):
        StagedRatio(stages=((0, 0.3), (9, 0.2), (9, 0.1)))
    with pytest.raises(ValidationError, match="less than or equal to 1"):
        StagedRatio(stages=((0, 1.5),))
    with pytest.raises(ValidationError, match="start"):
        LinearRatio(start=0.0, steps=10)
    with pytest.raises(ValidationError, match="steps"):
        LinearRatio(start=0.1, steps=0)


@pytest.mark.parametrize(
    "schedule",
    [CosineRatio(start=0.1, steps=10), StagedRatio(stages=((0, 0.3), (1000, 0.15)))],
)
def test_a_schedule_is_a_value(schedule):
    assert hash(schedule) == hash(schedule.updated())
    assert RatioSchedule.from_json(schedule.to_json()) == schedule
