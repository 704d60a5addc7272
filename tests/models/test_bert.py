"""BERT has the published sizes, and computes what the reference implementation does."""

from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import stats

from mlmjax.core.errors import UserError
from mlmjax.core.vocabulary import Vocabulary
from mlmjax.masking.packed import document_positions
from mlmjax.models.bert import Bert, BertConfig
from mlmjax.nn.attention import Visibility

GOLDEN = Path(__file__).parent.parent / "golden" / "bert.npz"


def count(config: BertConfig, *, without: tuple[str, ...] = ()) -> int:
    flat = nnx.to_flat_state(nnx.state(nnx.eval_shape(lambda: config.build(nnx.Rngs(params=0)))))
    return sum(leaf.size for path, leaf in flat if path[0] not in without)


@pytest.mark.parametrize(
    ("config", "encoder", "whole"),
    [
        (BertConfig.base(), 109_482_240, 110_106_428),
        (BertConfig.large(), 335_141_888, 336_226_108),
    ],
)
def test_published_parameter_counts(config: BertConfig, encoder: int, whole: int) -> None:
    """110M and 340M in the paper; exactly, those of the released uncased checkpoints."""
    assert count(config) == whole
    assert count(config, without=("mlm", "next_sentence")) == encoder


def test_roberta_has_the_published_parameters() -> None:
    """124 697 433 in the released checkpoint with its head, which has no pooler and no next-sentence head.

    It counts positions from 2 on, so that its table of positions has two rows more.
    """
    heads, hidden = ("pooler", "next_sentence"), 768
    config = BertConfig.roberta_base()
    assert count(config, without=heads) + 2 * hidden == 124_697_433
    assert count(config) - count(config, without=heads) == hidden * (hidden + 1) + 2 * (hidden + 1)


def test_the_span_boundary_head_is_there_only_where_it_is_asked_for() -> None:
    with_head = BertConfig.base(span_boundary=20)
    layers = (2 * 768 + 200 + 1) * 768 + (768 + 1) * 768 + 2 * 2 * 768
    assert count(with_head, without=("span_boundary",)) == count(BertConfig.base())
    assert count(with_head) - count(BertConfig.base()) == 20 * 200 + layers + 30522


def golden_model() -> tuple[Bert, dict[str, np.ndarray]]:
    golden = dict(np.load(GOLDEN))
    config = BertConfig(
        vocabulary=37, layers=2, hidden=16, heads=4, mlp=24, positions=12, segments=2
    )
    graph, state = nnx.split(nnx.eval_shape(lambda: config.build(nnx.Rngs(params=0))))
    flat = {
        path: jnp.asarray(golden["/".join(map(str, path))]) for path, _ in nnx.to_flat_state(state)
    }
    return nnx.merge(graph, nnx.traversals.unflatten_mapping(flat)), golden


def test_every_layer_and_head_equals_the_reference() -> None:
    model, golden = golden_model()
    tokens, segments = jnp.asarray(golden["tokens"]), jnp.asarray(golden["segments"])
    visible = Visibility(jnp.asarray(golden["valid"]))
    found = nnx.jit(lambda model: model.encode(tokens, segments, visible, every_layer=True))(model)
    valid = golden["valid"]
    for layer, wanted in enumerate(golden["hidden_states"]):
        np.testing.assert_allclose(found.layers[layer][valid], wanted[valid], atol=2e-6)
    np.testing.assert_allclose(
        model.mlm_logits(found.hidden)[valid], golden["mlm_logits"][valid], atol=2e-6
    )
    np.testing.assert_allclose(
        model.next_sentence_logits(found.hidden), golden["next_sentence_logits"], atol=2e-6
    )


def test_padding_the_vocabulary_only_adds_rows() -> None:
    config = BertConfig(vocabulary=37, vocabulary_multiple=16, layers=1, hidden=16, heads=4, mlp=8)
    assert config.columns == 48
    model = nnx.jit(lambda: config.build(nnx.Rngs(params=0)))()
    hidden = jax.random.normal(jax.random.key(0), (2, 3, 16))
    assert model.token.embedding.shape == (48, 16)
    assert model.mlm_logits(hidden).shape == (2, 3, 37)


def test_the_tokenizers_size_is_taken_or_must_agree() -> None:
    vocabulary = Vocabulary(
        size=50, padding=0, unknown=1, start=2, separator=3, mask=4, special=(0, 1, 2, 3, 4)
    )
    assert BertConfig().fitted(vocabulary).vocabulary == 50
    assert BertConfig(vocabulary=50).fitted(vocabulary).vocabulary == 50
    with pytest.raises(UserError, match=r"--model.vocabulary 50"):
        BertConfig.base().fitted(vocabulary)


def test_sinusoidal_positions_begin_as_large_as_normal_ones() -> None:
    """And a shift by three positions is one rotation, the same everywhere."""
    config = BertConfig(
        layers=1,
        hidden=64,
        heads=4,
        mlp=32,
        vocabulary=50,
        positions=40,
        initial_std=0.07,
        initial_positions="sinusoidal",
    )
    table = np.asarray(config.build(nnx.Rngs(0)).position.embedding[...])
    assert float(np.sqrt(np.square(table).mean())) == pytest.approx(0.07, rel=1e-5)
    products = table @ table.T
    for shift in (0, 3, 17):
        diagonal = np.diagonal(products, shift)
        np.testing.assert_allclose(diagonal, diagonal[0], rtol=1e-4)


SMALL = BertConfig(
    vocabulary=40, layers=2, hidden=16, heads=4, mlp=24, positions=12, span_boundary=3
)
DOCUMENTS = jnp.array([[0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 5, 5]])


@cache
def small() -> Bert:
    model = nnx.jit(lambda: SMALL.build(nnx.Rngs(params=0)))()
    norms = model.span_boundary.first_norm, model.span_boundary.second_norm
    for number, parameter in enumerate(p for norm in norms for p in (norm.scale, norm.bias)):
        parameter[...] = jax.random.normal(jax.random.key(number), parameter.shape)
    return model


@nnx.jit
def encode_packed(model: Bert, tokens: jax.Array, documents: jax.Array) -> jax.Array:
    visible = Visibility(documents < 5, documents)
    positions = document_positions(documents)
    return model.encode(tokens, jnp.zeros_like(tokens), visible, positions=positions).hidden


def test_a_packed_document_does_not_move_with_its_neighbours() -> None:
    """Not by a bit, whatever their tokens and their lengths; and it is what it is in a row of its own."""
    tokens = jax.random.randint(jax.random.key(0), (1, 12), 5, 40)
    found = encode_packed(small(), tokens, DOCUMENTS)
    own = DOCUMENTS[0] == 1
    other = jnp.where(own, tokens, (tokens + 9) % 40)
    np.testing.assert_array_equal(encode_packed(small(), other, DOCUMENTS)[:, own], found[:, own])
    joined = jnp.where(DOCUMENTS > 1, 2, DOCUMENTS).at[0, 1].set(0)
    np.testing.assert_array_equal(encode_packed(small(), tokens, joined)[:, own], found[:, own])
    alone = jnp.zeros_like(tokens).at[0, :4].set(tokens[0, own])
    single = encode_packed(small(), alone, jnp.where(jnp.arange(12) < 4, 0, 5)[None])
    np.testing.assert_allclose(single[0, :4], found[0, own], atol=1e-6)


def test_no_gradient_reaches_the_embeddings_of_a_neighbour() -> None:
    tokens, own = jnp.arange(5, 17)[None], DOCUMENTS == 1
    graph, state = nnx.split(small())

    def output(state: nnx.State) -> jax.Array:
        hidden = encode_packed(nnx.merge(graph, state), tokens, DOCUMENTS)
        return (hidden**3 * own[..., None]).sum()

    table = jax.jit(jax.grad(output))(state)["token"]["embedding"][...]
    touched = np.flatnonzero(np.abs(table).max(axis=1))
    assert touched.tolist() == np.asarray(tokens)[own].tolist()


def test_the_span_boundary_head_is_its_formula() -> None:
    """Two layers of affine map, exact GELU and norm; places beyond the last share its embedding."""
    head = small().span_boundary
    left, right = jax.random.normal(jax.random.key(1), (2, 6, 16))
    place = jnp.arange(6)

    def norm(values: np.ndarray, norm: nnx.LayerNorm) -> np.ndarray:
        centred = values - values.mean(-1, keepdims=True)
        values = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + SMALL.epsilon)
        return values * norm.scale[...] + norm.bias[...]

    def layer(values: np.ndarray, linear: object, scale: nnx.LayerNorm) -> np.ndarray:
        values = values @ np.asarray(linear.kernel[...]) + linear.bias[...]
        return norm(values * stats.norm.cdf(values), scale)

    embedded = np.asarray(head.place.embedding[...])[np.minimum(place, 2)]
    wanted = layer(np.concatenate([left, right, embedded], -1), head.first, head.first_norm)
    wanted = layer(wanted, head.second, head.second_norm)
    np.testing.assert_allclose(head(left, right, place), wanted, atol=2e-5)
