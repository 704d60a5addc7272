"""Reconstructions of images by a masked autoencoder: what was there, what it was shown, what it made of that."""

from collections.abc import Iterable
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from mlmjax.core.types import Batch, Context
from mlmjax.losses import patch_error
from mlmjax.models.mae import Mae
from mlmjax.objectives.mae import MaskedAutoencoder
from mlmjax.targets import PatchStatistics, denormalise_patches, patch_statistics, unpatchify

Statistics = Literal["visible", "true"]
"""Where brightness and contrast of a masked patch come from, when a model predicts patches that are normalised: the
visible patches around it; or the patch itself, which is a part of the answer."""


class Reconstruction(NamedTuple):
    """Images from 0 to 1.

    Attributes:
        original: as the model reads them.
        masked: what the encoder is shown. Patches that it does not see, or in whose place a learned vector stands,
            are not a number.
        reconstruction: predicted where patches are masked, and the original elsewhere: MAE's loss asks nothing of
            visible patches, so what is predicted there is of no meaning (He et al. 2022, figure 2).
    """

    original: Float[np.ndarray, "batch height width channels"]
    masked: Float[np.ndarray, "batch height width channels"]
    reconstruction: Float[np.ndarray, "batch height width channels"]


def reconstruct(
    objective: MaskedAutoencoder,
    model: Mae,
    batch: dict[str, np.ndarray],
    context: Context,
    *,
    statistics: Statistics = "visible",
) -> Reconstruction:
    """Hide patches of images, and predict them.

    A prediction of normalised patches is brought back to pixels. With ``visible`` each masked patch is given the
    mean and the deviation of the visible ones, weighted by one over the squared distance to it; no masked pixel has
    a part in that.

    Args:
        objective: it draws the masks, which depend on the context's seed and on ``epoch`` and ``id`` of the batch.
        model: the model.
        batch: ``pixels``, ``valid``, ``id`` and ``epoch``.
        context: seed, and the step at which the ratio of a schedule is taken.
        statistics: of normalised targets; others need none.
    """
    graph, parameters = nnx.split(model)
    found = _reconstruct(objective, graph, parameters, batch, context, statistics=statistics)
    return Reconstruction(*map(np.asarray, found))


def remark(objective: MaskedAutoencoder, model: Mae, statistics: Statistics) -> str:
    """What a picture of reconstructions must say, so that it is not misread."""
    said = ["Visible patches are the original's."]
    if objective.corruption.kind in ("drop", "vector"):
        said.insert(0, "What the encoder does not see is blue.")
    if objective.target.normalise:
        source = {
            "visible": "the visible patches around it",
            "true": "the true patch, which uses the answer",
        }[statistics]
        said.append(f"Mean and contrast of a predicted patch are those of {source}.")
    channels = model.config.encoder.channels
    if channels > 4:
        said.append(f"Of {channels} channels the mean is shown.")
    return " ".join(said)


class Flat(NamedTuple):
    """The figures of guessing that a patch is of one colour; compare those of the objective.

    Attributes:
        mask_loss: mean error of masked patches, in units of the target.
        pixel_error: the same as mean squared error in scaled pixels.
    """

    mask_loss: float
    pixel_error: float


def flat(
    objective: MaskedAutoencoder,
    model: Mae,
    batches: Iterable[dict[str, np.ndarray]],
    *,
    context: Context,
) -> Flat:
    """What a guess reaches that knows no texture, on exactly the patches that the model is judged on.

    It is the mean of the visible patches, weighted as in :func:`reconstruct`. Of normalised patches it is their own
    mean, as the objective's pixel error has it: the model is given that, too.

    Args:
        objective: it draws the masks.
        model: only its config is read.
        batches: held-out images.
        context: of the held-out masks.
    """
    graph, parameters = nnx.split(model)
    total = np.zeros(3)
    for batch in batches:
        total += np.asarray(_flat(objective, graph, parameters, batch, context))
    loss, error, weight = total
    return Flat(float(loss / max(weight, 1)), float(error / max(weight, 1)))


@partial(jax.jit, static_argnums=(0, 1))
def _flat(
    objective: MaskedAutoencoder,
    graph: nnx.GraphDef,
    parameters: nnx.State,
    batch: Batch,
    context: Context,
) -> Float[Array, "3"]:
    """Sums of both errors, and the number of patches."""
    model = nnx.merge(graph, parameters)
    hidden = objective.mask(model, batch, context)
    count, channels = hidden.patches.shape[1], model.config.encoder.channels
    weight = hidden.mask.dense(count)
    if objective.target.normalise:
        guess = jnp.zeros_like(hidden.targets)
        mean = hidden.patches.mean(axis=-1, keepdims=True)
    else:
        apart = hidden.patches.reshape(*hidden.patches.shape[:2], -1, channels)
        colour = _near(hidden.visible.dense(count), model.config.encoder.grid) @ apart.mean(axis=2)
        guess = mean = jnp.tile(colour, (1, 1, apart.shape[2]))
    loss = patch_error(guess, hidden.targets, reduce=objective.error)
    error = patch_error(jnp.broadcast_to(mean, guess.shape), hidden.patches, reduce="mean")
    return jnp.stack([(loss * weight).sum(), (error * weight).sum(), weight.sum()])


@partial(jax.jit, static_argnums=(0, 1), static_argnames="statistics")
def _reconstruct(
    objective: MaskedAutoencoder,
    graph: nnx.GraphDef,
    parameters: nnx.State,
    batch: Batch,
    context: Context,
    *,
    statistics: Statistics,
) -> tuple[Array, Array, Array]:
    model = nnx.merge(graph, parameters)
    config = model.config.encoder
    hidden = objective.mask(model, batch, context)
    predicted = objective.predict(model, hidden, context)
    count = hidden.patches.shape[1]
    in_sight = hidden.visible.dense(count)
    if objective.target.normalise:
        of_patches = patch_statistics(hidden.patches)
        if statistics == "visible":
            near = _near(in_sight, config.grid)
            of_patches = PatchStatistics(*(near @ each for each in of_patches))
        predicted = denormalise_patches(predicted, of_patches)
    shown = _colours(model, hidden.shown)
    if objective.corruption.kind in ("drop", "vector"):
        shown = jnp.where(in_sight[..., None] > 0, shown, jnp.nan)
    original, predicted = _colours(model, hidden.patches), _colours(model, predicted)
    pasted = jnp.where(in_sight[..., None] > 0, original, predicted)

    def whole(patches: Float[Array, "batch patches size"]) -> Array:
        return jnp.asarray(unpatchify(patches, config.patch, config.grid))

    return whole(original), whole(shown), whole(pasted)


def _colours(
    model: Mae, patches: Float[Array, "batch patches size"]
) -> Float[Array, "batch patches size"]:
    """Scaled patches as colours from 0 to 1."""
    channels = model.config.encoder.channels
    apart = patches.reshape(*patches.shape[:2], -1, channels)
    return model.config.encoder.input.inverse(apart).reshape(patches.shape)


def _near(
    in_sight: Float[Array, "batch patches"], grid: tuple[int, int]
) -> Float[Array, "batch patches patches"]:
    """How much each patch in sight counts for each patch: one over the squared distance, of sum 1."""
    places = np.stack(np.meshgrid(*map(np.arange, grid), indexing="ij"), axis=-1).reshape(-1, 2)
    square = np.square(places[:, None] - places[None]).sum(axis=-1)
    weight = jnp.asarray(1 / np.maximum(square, 1), jnp.float32) * in_sight[:, None, :]
    return weight / jnp.maximum(weight.sum(axis=-1, keepdims=True), 1e-9)
