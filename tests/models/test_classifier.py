"""Classifiers: their heads by hand, the encoders' names, and that nothing in them is idle."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from pydantic import ValidationError

from mlmjax.core.errors import UserError
from mlmjax.core.vocabulary import Vocabulary
from mlmjax.models.bert import BertConfig
from mlmjax.models.classifier import (
    BertClassifierConfig,
    ClassifierConfig,
    VitClassifierConfig,
)
from mlmjax.models.mae import DecoderConfig, MaeConfig
from mlmjax.models.vit import VitConfig
from mlmjax.nn.attention import Visibility
from mlmjax.training.state import build_parameters, module_graph, shapes

SIZES = {"layers": 2, "hidden": 16, "heads": 2, "mlp": 32}
BERT = BertClassifierConfig(vocabulary=30, positions=12, classes=3, **SIZES)
ENCODER = VitConfig(image=(4, 4), patch=(2, 2), channels=1, **SIZES)
VIT = VitClassifierConfig(encoder=ENCODER, classes=3)
CONFIGS = {
    "pooler": BERT,
    "dense": BERT.updated(head="dense"),
    "class": VIT,
    "mean": VIT.updated(pooling="mean"),
}


def build(config: ClassifierConfig) -> nnx.Module:
    return nnx.merge(module_graph(config)[0], jax.jit(partial(build_parameters, config, 0))())


def inputs(model: nnx.Module) -> tuple:
    """A batch of four."""
    draw = np.random.default_rng(0)
    if isinstance(model.config, VitClassifierConfig):
        return (jnp.asarray(draw.integers(0, 256, (4, 4, 4, 1), np.uint8)),)
    tokens = jnp.asarray(draw.integers(0, 30, (4, 12)), jnp.int32)
    valid = jnp.arange(12) < jnp.array([12, 9, 5, 2])[:, None]
    segments = jnp.asarray(jnp.arange(12) > 6, jnp.int32) * jnp.ones((4, 1), jnp.int32)
    return tokens, segments, Visibility(valid)


def read(model: nnx.Module, key: jax.Array | None = None) -> jax.Array:
    """The scores of the batch."""
    return compiled(lambda model, *given: model.logits(*given, key), model, *inputs(model))


def compiled(function: Callable, model: nnx.Module, *given: object) -> Any:
    """What the function gives, compiled: its operations one by one would take longer."""
    graph, parameters = nnx.split(model)
    return jax.jit(lambda each, given: function(nnx.merge(graph, each), *given))(parameters, given)


def named(config: object) -> dict[tuple[str, ...], tuple[int, ...]]:
    """The shape of each parameter by its path."""
    flat = jax.tree.leaves_with_path(shapes(module_graph(config)[1]))
    return {tuple(key.key for key in path): leaf.shape for path, leaf in flat}


def test_encoders_have_the_names_that_they_have_in_pretraining() -> None:
    bert = named(BertConfig(vocabulary=30, positions=12, **SIZES))
    for head, own in (("pooler", {"classifier"}), ("dense", {"classifier"})):
        found = named(BERT.updated(head=head))
        there = {path: shape for path, shape in found.items() if path[0] not in own}
        assert there.items() <= bert.items()
        assert {path[0] for path in bert} - {path[0] for path in found} >= {"mlm", "next_sentence"}
        assert ("pooler", "kernel") in found or head == "dense"
    assert named(BERT.updated(head="dense"))[("classifier", "out", "kernel")] == (16, 3)
    mae = named(MaeConfig(encoder=ENCODER, decoder=DecoderConfig(**SIZES)))
    found = named(VIT)
    assert {p: s for p, s in found.items() if p[0] == "encoder"} == {
        p: s for p, s in mae.items() if p[0] == "encoder"
    }
    assert {path[0] for path in found} == {"encoder", "classifier"}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_every_parameter_has_a_gradient(config: ClassifierConfig) -> None:
    graph, parameters = nnx.split(build(config), nnx.Param)
    loss = jax.jit(lambda each: read(nnx.merge(graph, each))[:, 0].sum())
    gradient = jax.grad(loss)(parameters)
    idle = [path for path, each in nnx.to_flat_state(gradient) if not np.any(each[...])]
    # A key's bias shifts all scores of a query alike; tokens that are not in the text are not read.
    assert not [path for path in idle if path[-2:] != ("key", "bias")]


def affine(layer: nnx.Module, values: np.ndarray) -> np.ndarray:
    return values @ np.asarray(layer.kernel[...]) + np.asarray(layer.bias[...])


def test_heads_of_bert_by_hand() -> None:
    for head in ("pooler", "dense"):
        model = build(BERT.updated(head=head))
        hidden = compiled(lambda model, *given: model.encode(*given).hidden, model, *inputs(model))
        inner, outer = (
            (model.pooler, model.classifier)
            if head == "pooler"
            else (model.classifier.dense, model.classifier.out)
        )
        expected = affine(outer, np.tanh(affine(inner, np.asarray(hidden[:, 0]))))
        np.testing.assert_allclose(read(model), expected, rtol=1e-5, atol=1e-6)


def test_heads_of_images_by_hand() -> None:
    for pooling in ("class", "mean"):
        model = build(VIT.updated(pooling=pooling))
        encode = lambda model, pixels: model.encode(model.patches(pixels)).hidden  # noqa: E731
        hidden = np.asarray(compiled(encode, model, *inputs(model)))
        pooled = hidden[:, 0]
        if pooling == "mean":
            mean = hidden[:, 1:].mean(axis=1)
            centred = mean - mean.mean(axis=1, keepdims=True)
            pooled = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + ENCODER.epsilon)
        expected = affine(model.classifier, pooled)
        np.testing.assert_allclose(read(model), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["dense", "mean"])
def test_dropout_needs_a_key(name: str) -> None:
    model = build(CONFIGS[name].updated(classifier_dropout=0.5))
    np.testing.assert_array_equal(read(model), read(model))
    one, other = (read(model, jax.random.key(seed)) for seed in (0, 1))
    assert np.abs(one - other).max() > 1e-3


def test_a_model_of_one_segment_reads_pairs() -> None:
    assert np.isfinite(read(build(BERT.updated(segments=1)))).all()


def test_a_mean_needs_no_class_token() -> None:
    alone = VIT.updated(encoder=ENCODER.updated(class_token=False), pooling="mean")
    assert read(build(alone)).shape == (4, 3)


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(UserError, match=r"set --model\.classes"):
        build(BERT.updated(classes=None))
    assert BERT.updated(classes=None).of_classes(5).classes == 5
    with pytest.raises(UserError, match="5 classes and the model 3"):
        BERT.of_classes(5)
    with pytest.raises(ValidationError, match="no class token"):
        VitClassifierConfig(encoder=ENCODER.updated(class_token=False))
    vocabulary = Vocabulary(
        size=30, padding=0, unknown=1, start=2, separator=3, mask=4, special=tuple(range(5))
    )
    with pytest.raises(UserError, match="reads images, and the data is text"):
        VIT.fitted(vocabulary)
    assert BERT.updated(vocabulary=None).fitted(vocabulary).vocabulary == 30
    assert VIT.resized((8, 8)).encoder.positions_of == (4, 4)
