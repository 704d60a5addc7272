"""Learning rates: the values at the corners, and what is refused."""

import jax
import numpy as np
import pytest
from pydantic import ValidationError

from mlmjax.core.errors import UserError
from mlmjax.optim import Schedule, WarmupSchedule


def rates(schedule, run, at):
    return [float(schedule.build(run)(step)) for step in at]


@pytest.mark.parametrize("warmup", [10, 0.1])
@pytest.mark.parametrize(
    ("decay", "end", "half", "last"),
    [
        ("linear", 0.0, 0.5, 0.0),
        ("linear", 0.2, 0.6, 0.2),
        ("cosine", 0.0, 0.5, 0.0),
        ("cosine", 0.2, 0.6, 0.2),
        ("constant", 0.0, 1.0, 1.0),
        ("rsqrt", 0.0, (10 / 55) ** 0.5, 0.1**0.5),
        ("rsqrt", 0.4, (10 / 55) ** 0.5, 0.4),
    ],
)
def test_values_at_the_corners(warmup, decay, end, half, last):
    schedule = WarmupSchedule(peak=2.0, warmup=warmup, decay=decay, end=end)
    found = rates(schedule, 100, (0, 5, 10, 55, 100))
    np.testing.assert_allclose(found, [0.0, 1.0, 2.0, 2 * half, 2 * last], atol=1e-6)


@pytest.mark.parametrize("decay", ["linear", "cosine", "constant", "rsqrt"])
def test_without_warmup_the_first_step_has_the_peak(decay):
    assert rates(WarmupSchedule(peak=2.0, warmup=0, decay=decay), 10, (0,)) == [2.0]


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_after_the_end_the_rate_stays(decay):
    schedule = WarmupSchedule(peak=2.0, warmup=2, decay=decay, end=0.5)
    np.testing.assert_allclose(rates(schedule, 10, (10, 11, 1000)), 1.0, rtol=1e-6)


@pytest.mark.parametrize("decay", ["linear", "cosine", "constant", "rsqrt"])
def test_a_run_that_is_all_warmup(decay):
    found = rates(WarmupSchedule(peak=2.0, warmup=4, decay=decay), 4, (0, 2, 4))
    np.testing.assert_allclose(found, [0.0, 1.0, 2.0])


@pytest.mark.parametrize("decay", ["linear", "cosine", "constant", "rsqrt"])
def test_traced_and_untraced_steps_agree(decay):
    schedule = WarmupSchedule(decay=decay).build(1000)
    steps = np.arange(0, 1000, 97)
    traced = jax.jit(jax.vmap(schedule))(steps)
    assert traced.dtype == np.float32
    np.testing.assert_allclose(traced, [schedule(step) for step in steps], rtol=1e-6)


def test_a_warmup_longer_than_the_run_is_refused():
    with pytest.raises(UserError, match="warmup is 100 steps, but the run has 10"):
        WarmupSchedule(warmup=100).build(10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"warmup": -1}, "number of steps"),
        ({"warmup": 1.0}, "share"),
        ({"warmup": float("nan")}, "share"),
        ({"peak": -1.0}, "greater than or equal to 0"),
        ({"end": 2.0}, "less than or equal to 1"),
        ({"decay": "exponential"}, "linear"),
        ({"decay": "constant", "end": 0.5}, "no meaning"),
    ],
)
def test_values_out_of_range_are_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        WarmupSchedule(**options)


def test_a_schedule_survives_json():
    for warmup in (10, 0.0, 0.25):
        schedule = WarmupSchedule(warmup=warmup, decay="cosine")
        again = Schedule.from_json(schedule.to_json())
        assert again == schedule
        assert type(again.warmup) is type(warmup)
