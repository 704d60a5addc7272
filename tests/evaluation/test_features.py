"""Features: the states that they are said to be, of whole inputs, the same in every call."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from mlmjax.core.errors import UserError
from mlmjax.evaluation.features import features
from mlmjax.models.bert import BertConfig
from mlmjax.nn.attention import Visibility
from tests.evaluation.images import batch, model

TEXT = BertConfig(vocabulary=50, layers=2, hidden=16, heads=2, mlp=32, positions=24, dropout=0.5)


@pytest.fixture(scope="module")
def bert():
    return nnx.jit(lambda: TEXT.build(nnx.Rngs(params=0)))()


def rows(length: int = 10, padded: int = 10) -> dict[str, np.ndarray]:
    """Three rows of tokens of which the last is padding throughout."""
    tokens = np.zeros((3, padded), np.int32)
    tokens[:2, :length] = np.random.default_rng(1).integers(1, 50, size=(2, length))
    used = np.array([length, length - 4, 0])
    valid = np.arange(padded) < used[:, None]
    return {"tokens": tokens * valid, "segments": np.zeros_like(tokens), "valid": valid}


@pytest.mark.parametrize("layer", [None, 0, 1, 2])
@pytest.mark.parametrize("class_token", [True, False])
def test_of_images_they_are_the_pooled_states_of_all_patches(layer, class_token) -> None:
    mae, images = model(class_token=class_token), batch()
    encoded = mae.encode(mae.patches(jnp.asarray(images["pixels"])), every_layer=True)
    states = np.asarray(encoded.hidden if layer is None else encoded.layers[layer])
    patches = states[:, int(class_token) :]
    assert patches.shape[1] == 16
    close = {"rtol": 1e-5, "atol": 1e-6}
    found = features(mae, [images], layer=layer)
    np.testing.assert_allclose(found, patches.mean(axis=1), **close)
    largest = features(mae, [images], layer=layer, pooling="max")
    np.testing.assert_allclose(largest, patches.max(axis=1), **close)
    if class_token:
        first = features(mae, [images], layer=layer, pooling="class")
        np.testing.assert_allclose(first, states[:, 0], **close)


def test_two_calls_are_equal_and_dropout_is_off() -> None:
    images = [batch(seed=1), batch(seed=2)]
    found = features(model(dropout=0.5), images)
    assert (found == features(model(dropout=0.5), images)).all()
    np.testing.assert_allclose(found, features(model(), images), rtol=1e-6)


def test_ids_and_epochs_do_not_matter_and_rows_that_fill_are_left_out() -> None:
    images = batch(valid=3)
    found = features(model(), [images])
    assert found.shape == (3, 16)
    other = {**images, "id": images["id"] + 9, "epoch": images["epoch"] + 4}
    assert (features(model(), [other]) == found).all()
    alone = {name: value[:3] for name, value in images.items()}
    np.testing.assert_allclose(features(model(), [alone]), found, rtol=1e-5, atol=1e-6)
    assert features(model(), []).shape == (0, 16)


@pytest.mark.parametrize("pooling", ["mean", "max", "class"])
def test_of_text_padding_has_no_part(bert, pooling) -> None:
    short, long = (features(bert, [rows(padded=n)], pooling=pooling) for n in (10, 17))
    assert short.shape == (2, 16)
    np.testing.assert_allclose(short, long, rtol=1e-4, atol=1e-5)
    given = jax.tree.map(jnp.asarray, rows())
    states = np.asarray(
        bert.encode(given["tokens"], given["segments"], Visibility(given["valid"])).hidden
    )
    plain = {"mean": np.mean, "max": np.max, "class": lambda part, axis: part[0]}[pooling]
    for row, size in ((0, 10), (1, 6)):
        expected = plain(states[row, :size], axis=0)
        np.testing.assert_allclose(short[row], expected, rtol=1e-4, atol=1e-5)


def test_layers_differ(bert) -> None:
    found = [features(bert, [rows()], layer=layer) for layer in (0, 1, 2)]
    assert all(np.abs(a - b).max() > 1e-4 for a, b in pairwise(found))
    np.testing.assert_allclose(found[2], features(bert, [rows()]), rtol=1e-5)  # post-norm


@pytest.mark.parametrize("layer", [-1, 3])
def test_a_layer_that_is_not_there_is_refused(bert, layer) -> None:
    for one in (bert, model()):
        with pytest.raises(UserError, match=rf"--layer {layer}: .* 0 .* to 2"):
            features(one, [], layer=layer)


def test_what_has_no_such_features_is_refused(bert) -> None:
    with pytest.raises(UserError, match="without a class token"):
        features(model(class_token=False), [], pooling="class")
    with pytest.raises(UserError, match="not of a Linear"):
        features(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), [])
    packed = {**rows(), "documents": np.zeros((3, 10), np.int32)}
    with pytest.raises(UserError, match=r"--data\.layout full"):
        features(bert, [packed])
