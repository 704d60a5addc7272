"""BERT has the published sizes, and computes what the reference implementation does."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from mlmjax.core.errors import UserError
from mlmjax.core.vocabulary import Vocabulary
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
