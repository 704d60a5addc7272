"""The loss of classification against the plain formula, and what it refuses."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from mlmjax.core.errors import UserError
from mlmjax.core.types import Context
from mlmjax.data.images import ImageData
from mlmjax.data.text import TextData
from mlmjax.models.bert import BertConfig
from mlmjax.models.classifier import BertClassifierConfig, VitClassifierConfig
from mlmjax.models.vit import VitConfig
from mlmjax.objectives.classification import Classification
from mlmjax.objectives.mlm import MaskedLanguageModel
from mlmjax.training.state import build_parameters, module_graph

SIZES = {"layers": 1, "hidden": 16, "heads": 2, "mlp": 32}
MODEL = VitClassifierConfig(
    encoder=VitConfig(image=(4, 4), patch=(2, 2), channels=1, **SIZES), classes=3
)


def batch_of(labels: list[int]) -> dict[str, jax.Array]:
    pixels = np.random.default_rng(0).integers(0, 256, (len(labels), 4, 4, 1), np.uint8)
    return {"pixels": jnp.asarray(pixels), "labels": jnp.asarray(labels, jnp.int32)}


def measured(objective: Classification, batch: dict, *, training: bool = False) -> tuple:
    """The model's scores of a batch, its loss, and that loss's gradient; initial scores are near 0, so they are
    multiplied."""
    graph, _ = module_graph(MODEL)
    parameters = jax.jit(partial(build_parameters, MODEL, 0))()
    parameters["classifier"]["kernel"] *= 50

    def loss(parameters: dict) -> tuple:
        model = nnx.merge(graph, parameters)
        found = objective(model, batch, Context.of(0, training=training))
        return found.value(), (model.logits(batch["pixels"]), found)

    (_, (scores, found)), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(parameters)
    return np.asarray(scores, np.float64), found, gradient


@pytest.mark.parametrize(("smoothing", "training"), [(0.0, True), (0.2, True), (0.2, False)])
def test_the_loss_is_the_formula(smoothing: float, training: bool) -> None:
    batch, objective = batch_of([2, 0, -1, 1, 2]), Classification(label_smoothing=smoothing)
    scores, found, _ = measured(objective, batch, training=training)
    log = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    share = smoothing if training else 0.0
    target = (1 - share) * np.eye(3)[[2, 0, 0, 1, 2]] + share / 3
    losses, counted = -(target * log).sum(axis=1), [0, 1, 3, 4]
    term = found.terms["class_loss"]
    assert float(term.weight) == 4
    np.testing.assert_allclose(term.sum, losses[counted].sum(), rtol=1e-5)
    accuracy = found.metrics["class_accuracy"]
    right = scores.argmax(axis=1) == [2, 0, -1, 1, 2]
    assert (float(accuracy.sum), float(accuracy.weight)) == (right.sum(), 4)


def test_a_batch_without_labels_has_no_loss_and_no_gradient() -> None:
    _, found, gradient = measured(Classification(), batch_of([-1, -1]))
    assert float(found.value()) == 0
    assert all(not np.any(each) for each in jax.tree.leaves(gradient))


def test_what_does_not_go_together_is_refused() -> None:
    objective, images = Classification(), ImageData(size=(4, 4), channels=1, labels=True)
    objective.check(MODEL, images.spec())
    texts = TextData(layout="documents", label_field="label", length=16)
    bert = BertClassifierConfig(positions=16, **SIZES)
    objective.check(bert, texts.spec())
    for model, data, sentence in (
        (MODEL, images.updated(labels=False), r"set --data\.labels"),
        (bert, TextData(length=16), r"--data\.layout documents and --data\.label-field"),
        (bert, images, "images needs a VitClassifierConfig, not a BertClassifierConfig"),
        (BertConfig(**SIZES), texts, "texts needs a BertClassifierConfig, not a BertConfig"),
        (bert, texts.updated(length=17), r"set --data\.length to at most 16"),
        (MODEL, images.updated(size=(8, 4)), "--model.encoder.image 8 4"),
        (MODEL, images.updated(channels=3), "--data.channels 1"),
    ):
        with pytest.raises(UserError, match=sentence):
            objective.check(model, data.spec())
    with pytest.raises(UserError, match="needs a BertConfig, not a BertClassifierConfig"):
        MaskedLanguageModel().check(bert, texts.spec())


def test_work_grows_with_what_is_read() -> None:
    objective = Classification()
    images = ImageData(size=(4, 4), channels=1, labels=True, batch=8)
    found = objective.work(MODEL, images.spec())
    assert (found.unit, found.units) == ("images", 8)
    assert objective.work(MODEL, images.updated(batch=16).spec()).flops == 2 * found.flops
    texts = TextData(layout="documents", label_field="label", length=16, batch=8)
    bert = BertClassifierConfig(classes=3, positions=16, **SIZES)
    found = objective.work(bert, texts.spec())
    assert (found.unit, found.units) == ("tokens", 128)
    assert found.flops > 3 * 8 * bert.flops(16)
