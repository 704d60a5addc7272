"""Squared errors of patches."""

import jax.numpy as jnp
import numpy as np
import pytest

from mlmjax.losses import patch_error, sequence_mean, token_mean

RANDOM = np.random.default_rng(0)
PREDICTION, TARGET = (jnp.asarray(RANDOM.normal(size=(3, 5, 12)), jnp.float32) for _ in range(2))


def test_errors_of_each_patch():
    mean, total = (patch_error(PREDICTION, TARGET, reduce=reduce) for reduce in ("mean", "sum"))
    square = (np.asarray(PREDICTION, float) - np.asarray(TARGET, float)) ** 2
    assert np.allclose(mean, square.mean(axis=-1), rtol=1e-6)
    assert np.allclose(total, 12 * np.asarray(mean), rtol=1e-6)


def test_errors_of_half_precision_are_computed_in_float32():
    """1000.5 has no half-precision neighbour within a quarter; its square no finite one at all."""
    prediction = jnp.full((1, 1, 4), 1000.5, jnp.float16)
    error = patch_error(prediction, jnp.zeros((1, 1, 4)), reduce="sum")
    assert error.dtype == jnp.float32
    assert float(error[0, 0]) == 4 * 1000.5**2


@pytest.mark.parametrize("denominator", [token_mean, sequence_mean])
def test_only_patches_of_the_mask_count(denominator):
    """What stands elsewhere changes neither the sum nor the weight, be it not a number."""
    weight = jnp.asarray(np.arange(5) < np.array([[3], [5], [0]]), jnp.float32)
    spoilt = jnp.where(weight[..., None] > 0, PREDICTION, jnp.nan)
    errors = patch_error(PREDICTION, TARGET, reduce="mean")
    found = denominator(patch_error(spoilt, TARGET, reduce="mean"), weight)
    rows = [np.asarray(errors)[0, :3], np.asarray(errors)[1]]
    if denominator is token_mean:
        assert float(found.sum) == pytest.approx(np.concatenate(rows).sum(), rel=1e-6)
        assert float(found.weight) == 8
    else:
        assert float(found.sum) == pytest.approx(sum(row.mean() for row in rows), rel=1e-6)
        assert float(found.weight) == 2
