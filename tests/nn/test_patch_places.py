"""Patches are taken out and put back; positions are those of the formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlmjax.core.errors import UserError
from mlmjax.core.types import Mask
from mlmjax.nn.linear import sinusoids
from mlmjax.nn.patches import gather_patches, scatter_patches, sine_cosine_2d

WAVES = {hidden: sinusoids(6, hidden // 2) for hidden in (4, 8, 20)}
VALUES = jax.random.normal(jax.random.key(0), (3, 12, 5))


@jax.jit
def out_and_back(values: jax.Array, chosen: Mask) -> tuple[jax.Array, jax.Array]:
    taken = gather_patches(values, chosen)
    return taken, scatter_patches(taken, chosen, values.shape[1])


@given(st.integers(0, 2**31), st.integers(0, 12))
def test_what_is_taken_out_goes_back_to_its_place(seed: int, used: int) -> None:
    """Bit for bit, whatever the order; all others are zero, and so are unused places."""
    order = np.random.default_rng(seed).permuted(np.tile(np.arange(12), (3, 1)), axis=1)
    weight = np.broadcast_to(np.arange(12) < used, (3, 12))
    chosen = Mask(jnp.asarray(np.where(weight, order, 0)), jnp.asarray(weight, jnp.float32))
    taken, back = out_and_back(VALUES, chosen)
    wanted = np.zeros((3, 12, 5), np.float32)
    for row in range(3):
        kept = order[row, :used]
        np.testing.assert_array_equal(taken[row, :used], VALUES[row, kept])
        wanted[row, kept] = VALUES[row, kept]
    np.testing.assert_array_equal(back, wanted)


def test_no_patch_hidden_is_the_identity() -> None:
    every = Mask(jnp.tile(jnp.arange(12), (3, 1)), jnp.ones((3, 12)))
    for found in out_and_back(VALUES, every):
        np.testing.assert_array_equal(found, VALUES)


def test_the_gradient_of_putting_back_is_taking_out() -> None:
    chosen = Mask(jnp.array([[7, 2, 0]] * 3), jnp.array([[1.0, 1.0, 0.0]] * 3))
    upstream = jax.random.normal(jax.random.key(1), (3, 12, 5))
    found = jax.grad(lambda x: (scatter_patches(x, chosen, 12) * upstream).sum())(VALUES[:, :3])
    np.testing.assert_allclose(found[:, :2], upstream[:, [7, 2]], rtol=1e-6)
    assert not found[:, 2].any()


@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from([4, 8, 20]))
def test_positions_are_those_of_columns_then_of_rows(high: int, wide: int, hidden: int) -> None:
    found = np.asarray(sine_cosine_2d((high, wide), hidden)).reshape(high, wide, hidden)
    waves = np.asarray(WAVES[hidden])
    for row, column in np.ndindex(high, wide):
        wanted = np.concatenate([waves[column], waves[row]])
        np.testing.assert_allclose(found[row, column], wanted, atol=1e-6)


def test_stretched_positions_keep_the_image() -> None:
    """Of a grid twice as fine, two neighbours lie a quarter of a patch to either side of the old one's centre."""
    fine = np.asarray(sine_cosine_2d((6, 4), 4, over=(3, 2)).reshape(6, 4, 4))
    np.testing.assert_allclose(fine[0, :, 0], np.sin(np.arange(4) / 2 - 0.25), atol=1e-6)
    np.testing.assert_allclose(fine[:, 0, 2], np.sin(np.arange(6) / 2 - 0.25), atol=1e-6)


def test_an_odd_width_says_what_would_do() -> None:
    with pytest.raises(UserError, match="to 12"):
        sine_cosine_2d((2, 2), 10)
