"""The scanned stack computes what its blocks do one after the other."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from pydantic import ValidationError

from mlmjax.nn.attention import Visibility, plain_attention
from mlmjax.nn.dropout import dropout
from mlmjax.nn.transformer import Transformer, TransformerConfig

SIZES = {"layers": 3, "hidden": 16, "heads": 4, "mlp": 32, "dropout": 0.2, "attention_dropout": 0.2}
KEY = jax.random.key(0)
VISIBLE = Visibility(jnp.arange(8)[None] < jnp.array([8, 5])[:, None])
HIDDEN = jax.random.normal(KEY, (2, 8, 16))


def stack(**changes: object) -> Transformer:
    config = TransformerConfig(**{**SIZES, **changes})
    return nnx.jit(lambda: Transformer(config, rngs=nnx.Rngs(params=1)))()


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_scan_equals_a_loop(norm: str) -> None:
    model = stack(norm=norm)
    graph, parameters = nnx.split(model.layers)
    states, keys = [HIDDEN], jax.random.split(KEY, 3)
    apply = jax.jit(
        lambda graph, parameters, *inputs: nnx.merge(graph, parameters)(*inputs), static_argnums=0
    )
    for layer in range(3):
        alone = jax.tree.map(lambda each, at=layer: each[at], parameters)
        states.append(apply(graph, alone, states[-1], VISIBLE, keys[layer]))
    found = model(HIDDEN, VISIBLE, KEY, every_layer=True)
    np.testing.assert_allclose(found.layers, jnp.stack(states), atol=1e-5)
    last = states[-1] if norm == "post" else model.norm(states[-1])
    np.testing.assert_allclose(found.hidden, last, atol=1e-5)


def test_layers_start_with_values_of_their_own() -> None:
    kernel = stack().layers.up.kernel[...]
    assert not np.allclose(kernel[0], kernel[1])
    assert abs(kernel).max() <= 0.04
    assert float(kernel.std()) == pytest.approx(0.88 * 0.02, rel=0.1)  # truncated at two deviations


@pytest.mark.parametrize("policy", ["dots", "full"])
def test_remat_does_not_change_the_gradient(policy: str) -> None:
    def gradient(remat: str) -> jax.Array:
        graph, parameters = nnx.split(stack(remat=remat))

        def loss(parameters: nnx.State) -> jax.Array:
            return (nnx.merge(graph, parameters)(HIDDEN, VISIBLE, KEY).hidden ** 3).sum()

        return nnx.as_pure(jax.jit(jax.grad(loss))(parameters))

    chex.assert_trees_all_close(gradient(policy), gradient("none"), rtol=1e-4, atol=1e-5)


def test_padding_is_seen_by_nobody() -> None:
    model = stack()
    other = HIDDEN.at[1, 5:].set(100.0)
    first, second = model(HIDDEN, VISIBLE).hidden, model(other, VISIBLE).hidden
    np.testing.assert_array_equal(first[1, :5], second[1, :5])
    assert not np.array_equal(first[1, 5:], second[1, 5:])


def test_where_nothing_is_padding_no_mask_is_needed() -> None:
    """With dropout on attention and without, and in packed rows that are full."""
    model, every = stack(), Visibility(jnp.ones((2, 8), bool))
    assert Visibility().mask() is None
    for key in (None, KEY):
        np.testing.assert_allclose(
            model(HIDDEN, Visibility(), key).hidden, model(HIDDEN, every, key).hidden, atol=1e-6
        )
    documents = jnp.arange(8)[None] // jnp.array([[3], [5]])
    full = Visibility(every.valid, documents)
    np.testing.assert_array_equal(Visibility(documents=documents).mask(), full.mask())


PACKED = Visibility(
    jnp.arange(8)[None] < jnp.array([8, 6])[:, None],
    jnp.array([[0, 0, 0, 1, 1, 1, 1, 2], [0, 0, 1, 1, 1, 1, 9, 9]]),
)


def test_packed_documents_see_themselves_alone() -> None:
    mask = np.asarray(PACKED.mask())
    valid, documents = np.asarray(PACKED.valid), np.asarray(PACKED.documents)
    for row, query, key in np.ndindex(2, 8, 8):
        wanted = valid[row, key] and documents[row, query] == documents[row, key]
        assert mask[row, 0, query, key] == wanted


def test_no_gradient_reaches_a_neighbouring_document() -> None:
    """Nor padding; by the attention that has dropout (tests/models has the other)."""
    model, document = stack(), PACKED.documents == 1

    def output(hidden: jax.Array) -> jax.Array:
        return (model(hidden, PACKED, KEY).hidden ** 2 * document[..., None]).sum()

    gradient = np.asarray(jax.jit(jax.grad(output))(HIDDEN))
    assert not gradient[~document].any()
    assert (abs(gradient[document]).max(axis=-1) > 0).all()


def test_without_a_key_there_is_no_dropout() -> None:
    model = stack()
    without = stack(dropout=0.0, attention_dropout=0.0)
    np.testing.assert_array_equal(
        model(HIDDEN, VISIBLE).hidden, without(HIDDEN, VISIBLE, KEY).hidden
    )
    assert not np.array_equal(model(HIDDEN, VISIBLE).hidden, model(HIDDEN, VISIBLE, KEY).hidden)


def test_plain_attention_at_rate_zero_is_attention() -> None:
    query, keys, value = jax.random.normal(KEY, (3, 2, 8, 4, 5))
    found = plain_attention(query, keys, value, mask=VISIBLE.mask(), rate=0.0, key=KEY)
    wanted = jax.nn.dot_product_attention(query, keys, value, mask=VISIBLE.mask())
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_dropout_keeps_the_mean_and_drops_the_share() -> None:
    values = jnp.ones(400_000)
    found = dropout(values, 0.1, key=KEY)
    assert float((found == 0).mean()) == pytest.approx(0.1, abs=2e-3)
    assert float(found.mean()) == pytest.approx(1.0, abs=2e-3)


def test_bfloat16_computes_in_bfloat16_and_keeps_float32_parameters() -> None:
    model = stack(dtype="bfloat16")
    assert model(HIDDEN.astype(jnp.bfloat16), VISIBLE, KEY).hidden.dtype == jnp.bfloat16
    leaves = jax.tree.leaves(nnx.state(model))
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype("float32")}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hidden": 18}, "not a multiple of heads"),
        ({"attention": "cudnn"}, "'cudnn' has no dropout: set attention_dropout to 0"),
        ({"attention": "flash"}, "'flash' has no dropout: set attention_dropout to 0"),
        ({"attention": "splash"}, "set attention_dropout to 0"),
        ({"attention": "blockwise"}, "set attention_dropout to 0"),
        ({"attention": "cudnn", "attention_dropout": 0}, "set dtype bfloat16"),
        (
            {"attention": "cudnn", "attention_dropout": 0, "dtype": "bfloat16"},
            "a multiple of 8, not 4: .* 'flash'",
        ),
        ({"dropout": 1.0}, "less than 1"),
    ],
)
def test_bad_choices_are_refused(changes: dict, sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        TransformerConfig(**{**SIZES, **changes})
