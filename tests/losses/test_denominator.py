"""The two denominators: their values, their sums over micro-batches, and nothing to count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlmjax.losses import sequence_mean, token_mean

LOSSES = jnp.array([[1.0, 3.0, 9.0], [5.0, 9.0, 9.0], [9.0, 9.0, 9.0]])
WEIGHT = jnp.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])


def test_token_mean_counts_targets():
    total = token_mean(LOSSES, WEIGHT)
    assert (float(total.sum), float(total.weight)) == (9.0, 3.0)


def test_sequence_mean_counts_sequences_that_have_targets():
    total = sequence_mean(LOSSES, WEIGHT)
    assert (float(total.sum), float(total.weight)) == (7.0, 2.0)


@pytest.mark.parametrize("mean", [token_mean, sequence_mean])
def test_micro_batches_add_up(mean):
    losses = jax.random.uniform(jax.random.key(0), (6, 99))
    weight = jnp.zeros((6, 99)).at[0, 0].set(1.0).at[1:].set(1.0)
    whole = mean(losses, weight)
    parts = [mean(losses[:1], weight[:1]), mean(losses[1:], weight[1:])]
    np.testing.assert_allclose(sum(part.sum for part in parts), whole.sum, rtol=1e-6)
    assert sum(part.weight for part in parts) == whole.weight


@pytest.mark.parametrize("mean", [token_mean, sequence_mean])
@pytest.mark.parametrize("unused", [9.0, np.inf, np.nan])
def test_without_targets_there_is_no_loss_and_no_gradient(mean, unused):
    losses, weight = jnp.full((2, 3), unused), jnp.zeros((2, 3))
    total = mean(losses, weight)
    assert (float(total.sum), float(total.weight)) == (0.0, 0.0)
    assert (jax.grad(lambda losses: mean(losses, weight).sum)(losses) == 0).all()


@pytest.mark.parametrize("mean", [token_mean, sequence_mean])
def test_unused_places_have_no_gradient(mean):
    losses = jnp.where(WEIGHT > 0, LOSSES, jnp.nan)
    grad = jax.grad(lambda losses: mean(losses, WEIGHT).sum)(losses)
    np.testing.assert_array_equal(grad > 0, WEIGHT > 0)
    assert np.isfinite(grad).all()
