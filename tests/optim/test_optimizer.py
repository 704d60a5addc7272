"""Optimizers: decay masks, stacked against separate layers, clipping, and optax's own figures."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from pydantic import ValidationError

from mlmjax.core.config import Config
from mlmjax.optim import Adafactor, AdamW, Lamb, Optimizer, WarmupSchedule, decay_mask

RATE = WarmupSchedule(peak=0.1, warmup=0, decay="cosine")
LAYERS = 3
OPTIMIZERS = [
    AdamW(learning_rate=RATE),
    Lamb(learning_rate=RATE),
    # Sizes chosen so that the stack's two longest axes are not a layer's.
    Adafactor(learning_rate=RATE, factor_from=2, weight_decay=0.01, clip=1.0),
    Adafactor(learning_rate=RATE, factor_from=2, relative=False, update_clip=None),
]


def one_layer(normal, size):
    return {
        "mlp": {"kernel": size * normal((2, 4)), "bias": size * normal(4)},
        "norm": {"scale": 1 + size * normal(4), "bias": np.zeros(4)},
    }


def parameters(seed=0):
    """Layers of very different size, as separate trees, and what lies outside the layers."""
    normal = np.random.default_rng(seed).standard_normal
    layers = [one_layer(normal, 10.0**index) for index in range(LAYERS)]
    return layers, {"table": normal((6, 4))}


def stacked(layers, embedding):
    layers = jax.tree.map(lambda *leaves: np.stack(leaves), *layers)
    return {"embedding": embedding, "encoder": {"layers": layers}}


def separate(layers, embedding):
    return {"embedding": embedding, "encoder": {"layers": layers}}


def train(optimizer, params, grads_of, steps=4):
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)
    transformation = optimizer.build(jax.eval_shape(lambda: params), steps)
    state = transformation.init(params)

    @jax.jit
    def update(params, state, grads):
        updates, state = transformation.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for step in range(steps):
        grads = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), grads_of(step))
        params, state = update(params, state, grads)
    return params, state


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda config: type(config).__name__)
def test_a_stack_of_layers_trains_like_separate_layers(optimizer):
    layers, embedding = parameters()
    together, _ = train(
        optimizer, stacked(layers, embedding), lambda step: stacked(*parameters(step + 1))
    )
    apart, _ = train(
        optimizer, separate(layers, embedding), lambda step: separate(*parameters(step + 1))
    )
    expected = stacked(apart["encoder"]["layers"], apart["embedding"])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5), together, expected)
    before = stacked(layers, embedding)
    assert not np.allclose(together["embedding"]["table"], before["embedding"]["table"])


def test_decay_is_decided_by_name():
    mask = decay_mask(stacked(*parameters()))
    assert mask["embedding"] == {"table": True}
    assert mask["encoder"]["layers"] == {
        "mlp": {"kernel": True, "bias": False},
        "norm": {"scale": False, "bias": False},
    }
    assert not decay_mask({"embedding": {"table": 0}}, ("table",))["embedding"]["table"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS[:3], ids=lambda config: type(config).__name__)
def test_without_gradient_only_what_decays_shrinks(optimizer):
    params = stacked(*parameters())
    zeros = jax.tree.map(np.zeros_like, params)
    after, _ = train(optimizer, params, lambda step: zeros, steps=1)
    factor = jax.tree.map(lambda new, old: float((new / old).ravel()[0]), after, params)
    # LAMB scales any step to the size of the tensor, here that of the decay alone.
    shrunk = 0.9 if isinstance(optimizer, Lamb) else 0.999
    layers = factor["encoder"]["layers"]
    np.testing.assert_allclose(factor["embedding"]["table"], shrunk, rtol=1e-5)
    np.testing.assert_allclose(layers["mlp"]["kernel"], shrunk, rtol=1e-5)
    assert layers["mlp"]["bias"] == layers["norm"]["scale"] == 1.0


def test_lamb_keeps_adams_step_where_nothing_decays():
    params = stacked(*parameters())
    grads = lambda step: stacked(*parameters(step + 1))  # noqa: E731
    lamb, _ = train(Lamb(learning_rate=RATE), params, grads, steps=1)
    adam, _ = train(AdamW(learning_rate=RATE), params, grads, steps=1)
    for part in (("mlp", "bias"), ("norm", "scale"), ("norm", "bias")):
        one, two = (tree["encoder"]["layers"][part[0]][part[1]] for tree in (lamb, adam))
        np.testing.assert_array_equal(one, two)
    moved = (
        lamb["encoder"]["layers"]["mlp"]["kernel"] - params["encoder"]["layers"]["mlp"]["kernel"]
    )
    size = jnp.linalg.norm(params["encoder"]["layers"]["mlp"]["kernel"], axis=(1, 2))
    np.testing.assert_allclose(jnp.linalg.norm(moved, axis=(1, 2)), 0.1 * size, rtol=1e-3)


@pytest.mark.parametrize(
    ("optimizer", "reference"),
    [
        (
            AdamW(learning_rate=RATE, clip=None, undecayed=()),
            optax.adamw(RATE.build(4), 0.9, 0.999, 1e-6, weight_decay=0.01),
        ),
        (
            Lamb(learning_rate=RATE, clip=None, undecayed=()),
            optax.lamb(RATE.build(4), 0.9, 0.999, 1e-6, weight_decay=0.01),
        ),
        (
            Adafactor(learning_rate=RATE, factor_from=2),
            optax.adafactor(RATE.build(4), min_dim_size_to_factor=2),
        ),
    ],
    ids=["AdamW", "Lamb", "Adafactor"],
)
def test_one_layer_gives_what_optax_gives(optimizer, reference):
    params, grads = (one_layer(np.random.default_rng(seed).standard_normal, 1.0) for seed in (0, 1))
    found, _ = train(optimizer, params, lambda step: grads)
    params, grads = jax.tree.map(jnp.float32, (params, grads))
    state, update = reference.init(params), jax.jit(reference.update)
    for _ in range(4):
        updates, state = update(grads, state, params)
        params = optax.apply_updates(params, updates)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, params)


def test_clipping_is_by_the_norm_of_the_whole_gradient():
    params = {"a": jnp.zeros(2), "b": jnp.zeros(2)}
    grads = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([0.0, 4.0])}

    def first_moment(grads, clip):
        optimizer = AdamW(clip=clip)
        _, state = train(optimizer, params, lambda step: grads, steps=1)
        return np.concatenate(jax.tree.leaves(optax.tree.get(state, "mu"))) / 0.1

    np.testing.assert_allclose(first_moment(grads, 1.0), [0.6, 0, 0, 0.8], rtol=1e-5)
    np.testing.assert_allclose(first_moment(grads, 10.0), [3, 0, 0, 4], rtol=1e-5)
    np.testing.assert_allclose(first_moment(grads, None), [3, 0, 0, 4], rtol=1e-5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda config: type(config).__name__)
def test_the_state_is_arrays_and_its_moments_are_like_the_parameters(optimizer):
    params = stacked(*parameters())
    _, state = train(optimizer, params, lambda step: params, steps=2)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
    for name in ("mu", "nu") if isinstance(optimizer, AdamW) else ("v", "v_row", "v_col"):
        moments = optax.tree.get(state, name)
        assert jax.tree.structure(moments) == jax.tree.structure(params)
        if name in ("mu", "nu"):
            assert jax.tree.map(jnp.shape, moments) == jax.tree.map(jnp.shape, params)


def test_the_recorded_rate_is_the_rate_of_the_step():
    optimizer = AdamW(learning_rate=RATE, weight_decay=0.0, clip=None)
    params = {"a": jnp.zeros(())}
    after, _ = train(optimizer, params, lambda step: {"a": jnp.ones(())}, steps=1)
    np.testing.assert_allclose(-after["a"], optimizer.schedule(1)(0), rtol=1e-4)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda config: type(config).__name__)
def test_an_optimizer_survives_json(optimizer):
    assert Config.from_json(optimizer.to_json()) == optimizer
    assert hash(optimizer) == hash(optimizer.updated())


def test_the_base_class_is_no_optimizer():
    with pytest.raises(TypeError, match="abstract"):
        Optimizer()


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (AdamW, {"betas": (0.9, 1.0)}),
        (AdamW, {"epsilon": 0.0}),
        (AdamW, {"clip": 0.0}),
        (Lamb, {"weight_decay": -0.1}),
        (Adafactor, {"update_clip": 0.5}),
        (Adafactor, {"decay": 1.5}),
    ],
)
def test_values_out_of_range_are_refused(optimizer, options):
    with pytest.raises(ValidationError, match=next(iter(options))):
        optimizer(**options)
