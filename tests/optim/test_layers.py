"""Stacked layers are separate tensors to an optimizer, whatever their depth."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from mlmjax.optim import per_layer


def stacks():
    """Two stacks of different depth, a list of layers, and an array that is none of these."""
    normal = np.random.default_rng(0).standard_normal
    return {
        "encoder": {"layers": {"mlp": {"kernel": jnp.asarray(normal((3, 4, 5)), jnp.float32)}}},
        "decoder": {"layers": {"mlp": {"kernel": jnp.asarray(normal((2, 4, 5)), jnp.float32)}}},
        "probe": {"layers": [{"kernel": jnp.asarray(normal((4, 5)), jnp.float32)}]},
        "layers": jnp.asarray(normal((4, 5)), jnp.float32),
    }


def norms(tree):
    """The norm of each tensor, stacked layers apart."""
    return jax.tree.map(lambda leaf: jnp.sqrt((leaf**2).sum((-2, -1))), tree)


def test_every_layer_has_its_own_trust_ratio():
    params = stacks()
    grads = jax.tree.map(lambda leaf: jnp.cos(7 * leaf), params)
    transformation = per_layer(optax.scale_by_trust_ratio())
    updates, _ = jax.jit(transformation.update)(grads, transformation.init(params), params)
    jax.tree.map(
        lambda one, two: np.testing.assert_allclose(one, two, rtol=1e-5),
        norms(updates),
        norms(params),
    )


def test_state_is_stacked_like_its_parameters():
    params = stacks()
    state = per_layer(optax.scale_by_factored_rms(min_dim_size_to_factor=2)).init(params)
    assert state.count.shape == ()
    assert state.v_row["encoder"]["layers"]["mlp"]["kernel"].shape == (3, 4)
    assert state.v_col["decoder"]["layers"]["mlp"]["kernel"].shape == (2, 5)
    assert state.v_row["probe"]["layers"][0]["kernel"].shape == (4,)
    assert state.v_row["layers"].shape == (4,)


def test_state_keeps_its_structure_through_updates():
    params = stacks()
    transformation = per_layer(optax.scale_by_factored_rms(min_dim_size_to_factor=2))
    state = transformation.init(params)
    _, after = transformation.update(params, state, params)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)
    assert after.count == 1


def test_without_stacks_nothing_changes():
    params = {"dense": {"kernel": jnp.arange(6.0).reshape(2, 3)}}
    plain, wrapped = optax.scale_by_trust_ratio(), per_layer(optax.scale_by_trust_ratio())
    one, _ = plain.update(params, plain.init(params), params)
    two, _ = wrapped.update(params, wrapped.init(params), params)
    np.testing.assert_array_equal(one["dense"]["kernel"], two["dense"]["kernel"])


def test_a_transformation_across_tensors_is_refused():
    params = stacks()
    transformation = per_layer(optax.clip_by_global_norm(1.0))
    with pytest.raises(ValueError, match="vmap"):
        transformation.update(params, transformation.init(params))


def test_the_state_of_an_nnx_module():
    params = nnx.State({"layers": {"kernel": jnp.ones((3, 4, 5))}, "head": {"bias": jnp.ones(4)}})
    transformation = per_layer(optax.scale_by_trust_ratio())
    updates, _ = transformation.update(params, transformation.init(params), params)
    assert jax.tree.map(jnp.shape, updates) == jax.tree.map(jnp.shape, params)
