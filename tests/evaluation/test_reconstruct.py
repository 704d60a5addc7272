"""Reconstructions: visible patches are the original's, and of masked ones nothing leaks but what is said."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlmjax.core.types import Context
from mlmjax.corruption import PatchCorruption
from mlmjax.evaluation.reconstruct import flat, reconstruct, remark
from mlmjax.losses import patch_error
from mlmjax.masking import RandomPatches
from mlmjax.objectives.mae import MaskedAutoencoder
from mlmjax.targets import PixelTarget, patchify
from tests.evaluation.images import PATCH, batch, model

CONTEXT = Context.of(5)


class Knowing(MaskedAutoencoder):
    """Predicts exactly what it should."""

    def predict(self, model, hidden, context):
        return hidden.targets


class Flat(MaskedAutoencoder):
    """Predicts patches that are of one colour, normalised."""

    def predict(self, model, hidden, context):
        return jnp.zeros_like(hidden.targets)


def objective(kind: str = "drop", *, of=MaskedAutoencoder, normalise: bool = True):
    return of(
        selection=RandomPatches(ratio=0.5),
        corruption=PatchCorruption(kind=kind),
        target=PixelTarget(normalise=normalise),
    )


def masked(objective: MaskedAutoencoder, images: dict[str, np.ndarray]) -> np.ndarray:
    """Which pixels are masked [batch, height, width]."""
    hidden = objective.mask(model(), jax.tree.map(jnp.asarray, images), CONTEXT)
    dense = np.asarray(hidden.visible.dense(16)) == 0
    apart = dense.reshape(-1, 4, 4)
    return apart.repeat(PATCH[0], axis=1).repeat(PATCH[1], axis=2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["drop", "vector", "zero", "noise", "swap"])
def test_visible_patches_are_the_originals(kind: str) -> None:
    images = batch()
    found = reconstruct(objective(kind), model(), images, CONTEXT)
    original = images["pixels"] / np.float32(255)
    hidden = masked(objective(kind), images)
    assert hidden.mean() == 0.5
    np.testing.assert_allclose(found.original, original, atol=1e-6)
    for each in (found.masked, found.reconstruction):
        np.testing.assert_allclose(each[~hidden], original[~hidden], atol=1e-6)
        assert np.nanmin(each) >= 0
        assert np.nanmax(each) <= 1
        if each is found.masked and kind in ("drop", "vector"):
            assert np.isnan(each[hidden]).all()
        else:
            assert np.abs(each[hidden] - original[hidden]).mean() > 0.05
    if kind == "zero":
        assert (found.masked[hidden] == 0).all()


@pytest.mark.parametrize("normalise", [True, False])
def test_nothing_of_a_masked_patch_leaks_with_visible_statistics(normalise: bool) -> None:
    asked, images = objective(normalise=normalise), batch()
    hidden = masked(asked, images)
    changed = np.where(hidden[..., None], 255 - images["pixels"], images["pixels"])
    other = {**images, "pixels": changed}
    first, second = (reconstruct(asked, model(), each, CONTEXT) for each in (images, other))
    assert (first.reconstruction == second.reconstruction).all()
    np.testing.assert_array_equal(first.masked, second.masked)
    true = [
        reconstruct(asked, model(), each, CONTEXT, statistics="true") for each in (images, other)
    ]
    assert (true[0].reconstruction == true[1].reconstruction).all() == (not normalise)


@pytest.mark.parametrize("normalise", [True, False])
def test_a_perfect_prediction_with_true_statistics_is_the_original(normalise: bool) -> None:
    asked = objective(of=Knowing, normalise=normalise)
    found = reconstruct(asked, model(), batch(), CONTEXT, statistics="true")
    np.testing.assert_allclose(found.reconstruction, found.original, atol=1e-5)
    guessed = reconstruct(asked, model(), batch(), CONTEXT)
    same = np.abs(guessed.reconstruction - guessed.original).max() < 1e-5
    assert same == (not normalise)


def test_visible_statistics_weigh_by_distance() -> None:
    images = batch(1)
    images["pixels"][:] = 0
    images["pixels"][:, :, 4:] = 200  # the right half is light
    asked = objective(of=Flat)
    found = reconstruct(asked, model(), images, CONTEXT)
    hidden = masked(asked, images)[0]
    guess = found.reconstruction[0, ..., 0]
    left, right = guess[:, :4][hidden[:, :4]], guess[:, 4:][hidden[:, 4:]]
    assert 0 < left.mean() < right.mean() < 200 / 255
    # A patch is of one colour: the mean of the visible patches, by one over the squared distance.
    places = np.argwhere(np.ones((4, 4)))
    seen = ~hidden[:: PATCH[0], :: PATCH[1]].reshape(-1)
    place = int(np.flatnonzero(~seen)[0])
    square = np.square(places[seen] - places[place]).sum(axis=1)
    light = places[seen][:, 1] >= 2
    expected = (light / square).sum() / (1 / square).sum() * 200 / 255
    row, column = places[place]
    assert guess[row * PATCH[0], column * PATCH[1]] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("error", ["mean", "sum"])
def test_flat_patches_of_normalised_targets_are_judged_as_the_model_is(error: str) -> None:
    asked = objective(of=Flat).updated(error=error)
    images = [batch(seed=1), batch(valid=2, seed=2)]
    sums = [asked(model(), jax.tree.map(jnp.asarray, each), CONTEXT).metrics for each in images]
    found = flat(asked, model(), images, context=CONTEXT)
    for name, value in found._asdict().items():
        total = sum(each[name].sum for each in sums) / sum(each[name].weight for each in sums)
        assert value == pytest.approx(float(total), rel=1e-5)


def test_flat_patches_of_pixels_are_of_the_colour_of_visible_ones() -> None:
    asked, images = objective(normalise=False), batch(2)
    images["pixels"][:] = np.array([10, 120, 250], np.uint8)
    assert flat(asked, model(), [images], context=CONTEXT) == pytest.approx((0, 0), abs=1e-9)
    images = batch(2)
    found = flat(asked, model(), [images], context=CONTEXT)
    patches = patchify(jnp.asarray(images["pixels"]) / 255, PATCH)
    best = patch_error(jnp.zeros_like(patches) + patches.mean(), patches, reduce="mean").mean()
    assert float(best) * 0.8 < found.mask_loss < float(best) * 1.6
    assert found.pixel_error == pytest.approx(found.mask_loss, rel=1e-6)


def test_the_remark_says_whether_the_answer_was_used() -> None:
    assert "answer" in remark(objective(), model(), "true")
    assert "visible patches around" in remark(objective(), model(), "visible")
    assert "Mean" not in remark(objective(normalise=False), model(), "true")
    assert "blue" in remark(objective("vector"), model(), "true")
    assert "blue" not in remark(objective("noise"), model(), "true")
