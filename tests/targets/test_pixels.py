"""Scales of pixels, patches, and patches normalised by themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from pydantic import ValidationError

from mlmjax.core.errors import UserError
from mlmjax.losses import patch_error
from mlmjax.targets import (
    PixelScale,
    PixelTarget,
    denormalise_patches,
    normalise_patches,
    patch_statistics,
    patchify,
    unpatchify,
)

RANDOM = np.random.default_rng(0)
EVERY = {np.uint8: np.arange(256, dtype=np.uint8), np.uint16: np.arange(65536, dtype=np.uint16)}
WHITE = {"0-1": 1, "0-255": 255}

sides = st.integers(1, 5)


@given(
    batch=st.lists(st.integers(1, 3), max_size=2),
    rows=sides,
    columns=sides,
    high=sides,
    wide=sides,
    channels=st.integers(1, 4),
)
def test_patches_are_the_image_and_back(batch, rows, columns, high, wide, channels):
    """Each patch is a rectangle of the image, row by row; on grids and of patches that are not square."""
    shape = (*batch, rows * high, columns * wide, channels)
    images = np.arange(np.prod(shape)).reshape(shape)
    patches = np.asarray(patchify(images, (high, wide)))
    assert patches.shape == (*batch, rows * columns, high * wide * channels)
    number = 0
    for row in range(0, rows * high, high):
        for column in range(0, columns * wide, wide):
            part = images[..., row : row + high, column : column + wide, :]
            assert np.array_equal(patches[..., number, :], part.reshape(*batch, -1))
            number += 1
    assert np.array_equal(unpatchify(patches, (high, wide), (rows, columns)), images)


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match="do not divide images of 9 by 8"):
        patchify(jnp.zeros((1, 9, 8, 3)), (4, 4))
    with pytest.raises(UserError, match="do not divide images of 8 by 9"):
        patchify(jnp.zeros((8, 9, 3)), (4, 4))
    with pytest.raises(UserError, match="no grid of 2 by 3"):
        unpatchify(jnp.zeros((4, 48)), (4, 4), (2, 3))
    with pytest.raises(UserError, match="49 numbers"):
        unpatchify(jnp.zeros((6, 49)), (4, 4), (2, 3))


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("range", WHITE)
def test_every_value_is_scaled_and_comes_back(kind, range):
    """Black and white exactly; of uint16, the high byte is as bright as the uint8 that it is."""
    pixels, scale = EVERY[kind][:, None], PixelScale(range=range)
    values = np.asarray(jax.jit(scale)(pixels))
    highest = np.iinfo(kind).max
    assert values.dtype == np.float32
    assert np.allclose(values, pixels / highest * WHITE[range], rtol=2e-7, atol=0)
    assert (values[0], values[-1]) == (0, WHITE[range])
    colours = np.asarray(scale.inverse(values))
    assert np.array_equal(np.round(colours * highest).astype(kind), pixels)


def test_mean_and_deviation_of_channels():
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    pixels = RANDOM.integers(0, 256, (2, 4, 5, 3), dtype=np.uint8)
    scale = PixelScale(mean=mean, std=std)
    assert np.allclose(scale(pixels), (pixels / 255 - mean) / std, atol=1e-5)
    assert np.allclose(scale.inverse(scale(pixels)), pixels / 255, atol=1e-6)
    wide = PixelScale(range="0-255", mean=(127.5,), std=(127.5,))
    assert np.allclose(wide(pixels), pixels / 127.5 - 1, atol=1e-6)
    assert np.allclose(wide.inverse(jnp.float32([[-1], [0], [3]])), [[0], [0.5], [1]])
    with pytest.raises(UserError, match=r"input\.mean has 3 numbers and images have 1 channels"):
        scale(pixels[..., :1])
    with pytest.raises(UserError, match=r"input\.std has 3 numbers and images have 4 channels"):
        PixelScale(std=std).inverse(jnp.zeros((2, 4)))


def test_scales_are_checked():
    for pixels in (np.zeros((2, 3), np.float32), np.zeros((2, 3), np.int32)):
        with pytest.raises(UserError, match=f"Pixels are {pixels.dtype}"):
            PixelScale()(pixels)
    with pytest.raises(ValidationError, match="mean is of 3 channels and std of 4"):
        PixelScale(mean=(0.5,) * 3, std=(0.5,) * 4)
    for bad in ({"std": (0.0,)}, {"std": ()}, {"mean": ()}, {"mean": (float("nan"),)}):
        with pytest.raises(ValidationError, match=next(iter(bad))):
            PixelScale(**bad)
    scale = PixelScale(mean=(0.5,), std=(0.25, 0.25, 0.5))
    assert PixelScale.from_json(scale.to_json()) == scale
    assert hash(scale) == hash(scale.updated())


def test_the_range_changes_the_squared_error_by_65025():
    pixels, guess = RANDOM.integers(0, 256, (2, 1, 6, 8, 3), dtype=np.uint8)
    target = PixelTarget(normalise=False)

    def error(range):
        scale = PixelScale(range=range)
        prediction, truth = (target(patchify(scale(each), (2, 4))) for each in (guess, pixels))
        return np.asarray(patch_error(prediction, truth, reduce="mean"))

    assert np.allclose(error("0-255") / error("0-1"), 65_025, rtol=1e-5)


floats = arrays.arrays(np.float32, (3, 12), elements=st.floats(-4, 4, width=32))


@given(patches=floats)
@settings(max_examples=10)
def test_normalised_patches_have_mean_0_and_deviation_1(patches):
    """By the unbiased variance, so their squares sum to one less than their numbers; and they come back."""
    patches = jnp.asarray(patches)
    statistics = patch_statistics(patches)
    normalised = normalise_patches(patches, statistics)
    found = np.asarray(normalised)
    varied = np.asarray(patches).std(axis=1) > 0.1
    assert np.abs(found.mean(axis=1)[varied]).max(initial=0) < 1e-4
    assert np.allclose((found**2).sum(axis=1)[varied], 11, rtol=1e-2)
    assert np.allclose(denormalise_patches(normalised, statistics), patches, atol=1e-4)
    variance = np.asarray(patches, float).var(axis=1, ddof=1, keepdims=True)
    assert np.allclose(statistics.std, np.sqrt(variance + 1e-6), rtol=1e-3)
    assert np.allclose(PixelTarget()(patches), found)
    assert np.array_equal(PixelTarget(normalise=False)(patches), patches)


@pytest.mark.parametrize("size", [1, 48])
@pytest.mark.parametrize("range", WHITE)
def test_a_single_colour_gives_a_finite_loss_and_gradient(size, range):
    """Also as the input of what is differentiated, and of a patch of one number."""
    pixels = np.repeat(np.array([[[0], [77], [200], [255]]], np.uint8), size, axis=2)
    patches = PixelScale(range=range)(pixels)

    def loss(weight, patches):
        target = PixelTarget()(patches)
        return patch_error(weight * patches, target, reduce="mean").mean()

    value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(jnp.float32(0.7), patches)
    assert np.isfinite(value)
    assert all(np.isfinite(each).all() for each in gradients)
    assert np.abs(PixelTarget()(patches)).max() < 0.1
    through = jax.grad(lambda patches: jnp.sum(patch_statistics(patches).std))(patches)
    assert np.isfinite(through).all()


@pytest.mark.parametrize("normalise", [True, False])
def test_no_gradient_flows_from_a_target(normalise):
    patches = jnp.asarray(RANDOM.normal(size=(2, 3, 12)), jnp.float32)
    target = PixelTarget(normalise=normalise)
    assert not jax.grad(lambda each: (target(each) ** 2).sum())(patches).any()
