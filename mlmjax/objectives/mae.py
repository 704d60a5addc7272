"""Masked image modelling by pixels: masked autoencoder (He et al. 2022, section 3), SimMIM (Xie et al. 2022), and
denoising autoencoder (Vincent et al. 2010), which differ in what the encoder is shown.
"""

from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped
from pydantic import Field

from mlmjax.core.errors import UserError
from mlmjax.core.types import Batch, Context, Loss, Mask, Metric
from mlmjax.corruption import PatchCorruption
from mlmjax.losses import patch_error, token_mean
from mlmjax.masking import PatchSelection, RandomPatches, RatioSchedule, complement
from mlmjax.models.base import ModelConfig
from mlmjax.models.mae import Mae, MaeConfig
from mlmjax.objectives.base import Objective, Spec, Work
from mlmjax.objectives.hiding import example_keys
from mlmjax.objectives.images import check_images
from mlmjax.targets import PixelTarget, denormalise_patches, patch_statistics


class HiddenPatches(NamedTuple):
    """A batch of images with part of their patches hidden.

    Attributes:
        patches: all patches, scaled.
        shown: what the encoder may see: those in sight, and what stands in the place of the others.
        mask: the patches that are to be predicted; in rows that only fill a batch their weight is 0.
        visible: the other patches.
        targets: what is to be predicted of every patch.
    """

    patches: Float[Array, "batch patches size"]
    shown: Float[Array, "batch patches size"]
    mask: Mask
    visible: Mask
    targets: Float[Array, "batch patches size"]


class MaskedAutoencoder(Objective):
    """Hide patches, predict their pixels from the others; squared error."""

    selection: PatchSelection = RandomPatches()
    """Which patches are hidden."""
    ratio_schedule: RatioSchedule | None = None
    """Changes the selection's ratio over the steps; by default it is constant."""
    corruption: PatchCorruption = PatchCorruption()
    """What the encoder sees at hidden patches."""
    target: PixelTarget = PixelTarget()
    """What is predicted of a patch."""
    error: Literal["mean", "sum"] = "mean"
    """Of the squared errors within a patch; the sum is as many times larger as a patch has numbers."""
    over: Literal["masked", "all"] = "masked"
    """The patches whose error is the loss."""
    static_masks: Annotated[int, Field(gt=0)] | None = None
    """Number of masks of an image before they repeat, epoch after epoch; by default each epoch's are new."""

    def check(self, model: ModelConfig, spec: Spec) -> None:
        if not isinstance(model, MaeConfig):
            raise UserError(
                f"A masked autoencoder needs a MaeConfig, not a {type(model).__name__}."
            )
        if "pixels" not in spec:
            raise UserError("A masked autoencoder reads images, and the data has none: set --data.")
        encoder, kind = model.encoder, self.corruption.kind
        check_images(encoder, spec)
        if kind == "drop" and model.decoder is None:
            raise UserError(
                "Without a decoder nothing predicts the patches that the encoder does not see: set "
                "--objective.corruption.kind vector (or zero, noise, swap), or give the model a decoder."
            )
        if kind == "vector" and not encoder.masked_vector:
            raise UserError(
                "The encoder has no vector to put in place of a masked patch: set "
                "--model.encoder.masked-vector."
            )
        self._check_ratio(encoder.patches)

    def _check_ratio(self, patches: int) -> None:
        fewest, most = (self.selection.count(patches, ratio) for ratio in self._ratios())
        option = "--objective.selection.ratio"
        if self.ratio_schedule is not None:
            option += " or --objective.ratio-schedule"
        low, high = 1 / patches, 1 - 1 / patches
        if fewest < 1:
            raise UserError(
                f"A ratio of {self._ratios()[0]:g} masks none of {patches} patches: set {option} to at least "
                f"{low:.3g}, or take smaller patches (--model.encoder.patch)."
            )
        if most >= patches:
            raise UserError(
                f"A ratio of {self._ratios()[1]:g} leaves none of {patches} patches visible: set {option} to at "
                f"most {high:.3g}, or take smaller patches (--model.encoder.patch)."
            )

    def _ratios(self) -> tuple[float, float]:
        """The lowest and the highest ratio of all steps."""
        schedule, ratio = self.ratio_schedule, self.selection.ratio
        return (
            (ratio, ratio)
            if schedule is None
            else (schedule.lowest(ratio), schedule.highest(ratio))
        )

    def ratio(self, step: Shaped[Array, ""]) -> Float[Array, ""]:
        """The ratio in force at a step."""
        ratio = self.selection.ratio
        return (
            jnp.float32(ratio)
            if self.ratio_schedule is None
            else self.ratio_schedule.at(step, ratio)
        )

    def select(self, grid: tuple[int, int], batch: Batch, context: Context) -> Mask:
        """The masked patches of each image: a pure function of (seed, epoch, id) and the ratio in force.

        Args:
            grid: patches down and across an image.
            batch: its ids and epochs are read, and no pixels.
            context: gives seed and step.
        """
        keys = example_keys(context.seed, self._epoch(batch), batch["id"]).mask
        capacity = self.selection.count(grid[0] * grid[1], self._ratios()[1])
        ratio = None if self.ratio_schedule is None else self.ratio(context.step)
        return jax.vmap(
            lambda key: self.selection(key, grid, ratio=ratio, capacity=capacity, step=context.step)
        )(keys)

    def mask(self, model: Mae, batch: Batch, context: Context) -> HiddenPatches:
        """Scale, cut and hide a batch, as the model asks for its input; none of its parameters is read.

        Masks depend on (seed, epoch, id) and the ratio in force.
        """
        encoder = model.config.encoder
        patches = model.patches(batch["pixels"])
        mask = self.select(encoder.grid, batch, context)
        sight = encoder.patches - self.selection.count(encoder.patches, self._ratios()[0])
        visible = jax.vmap(lambda each: complement(each, encoder.patches, capacity=sight))(mask)
        keys = example_keys(context.seed, self._epoch(batch), batch["id"]).corruption
        shown = jax.vmap(self.corruption)(keys, patches, mask)
        counted = Mask(mask.positions, mask.weight * batch["valid"][:, None])
        return HiddenPatches(patches, shown, counted, visible, self.target(patches))

    def _epoch(self, batch: Batch) -> Array:
        return batch["epoch"] % self.static_masks if self.static_masks else batch["epoch"]

    def predict(
        self, model: Mae, hidden: HiddenPatches, context: Context
    ) -> Float[Array, "batch patches size"]:
        """What the model makes of each patch, in units of the target."""
        key = context.dropout_key()
        keys = (None, None) if key is None else tuple(jax.random.split(key))
        if self.corruption.kind == "drop":
            # With a constant ratio no place is empty, and attention needs no mask.
            exact = self.ratio_schedule is None
            states = model.encode(hidden.shown, visible=hidden.visible, exact=exact, key=keys[0])
            return model.decode(states.hidden, visible=hidden.visible, key=keys[1])
        replaced = hidden.mask.dense(hidden.shown.shape[1]) > 0
        states = model.encode(
            hidden.shown,
            replaced=replaced if self.corruption.kind == "vector" else None,
            key=keys[0],
        )
        return model.decode(states.hidden, key=keys[1])

    def __call__(self, model: Mae, batch: Batch, context: Context) -> Loss:
        hidden = self.mask(model, batch, context)
        prediction = self.predict(model, hidden, context)
        errors = patch_error(prediction, hidden.targets, reduce=self.error)
        masked = hidden.mask.dense(errors.shape[1])
        present = jnp.broadcast_to(batch["valid"][:, None], masked.shape).astype(jnp.float32)
        mask_loss = _mean(errors, masked)
        terms = {"mask_loss": mask_loss}
        if self.over == "all":
            terms = {"patch_loss": _mean(errors, present)}
        metrics = {
            "mask_loss": mask_loss,
            "visible_loss": _mean(errors, present - masked),
            "pixel_error": _mean(self._pixel_error(prediction, hidden), masked),
            "position_variance": Metric(
                (errors * masked).sum(axis=0), masked.sum(axis=0), reduce="variance"
            ),
            "mask_ratio": Metric(self.ratio(context.step), jnp.float32(1)),
            "selected_share": Metric(masked.sum(), present.sum()),
        }
        return Loss(terms, {**terms, **metrics})

    def _pixel_error(
        self, prediction: Float[Array, "batch patches size"], hidden: HiddenPatches
    ) -> Float[Array, "batch patches"]:
        """Mean squared error of each patch in scaled pixels, whatever the target and the loss.

        A normalised prediction is given the mean and deviation of the true patch.
        """
        if self.target.normalise:
            prediction = denormalise_patches(prediction, patch_statistics(hidden.patches))
        return patch_error(prediction, hidden.patches, reduce="mean")

    def work(self, model: ModelConfig, spec: Spec) -> Work:
        assert isinstance(model, MaeConfig)
        rows, patches = spec["pixels"].shape[0], model.encoder.patches
        encoded = patches
        if self.corruption.kind == "drop":
            encoded -= self.selection.count(patches, self._ratios()[0])
        return Work(3 * rows * model.flops(encoded), "images", rows)

    def describe(self) -> dict[str, Any]:
        dump = self.model_dump(mode="json", serialize_as_any=True)
        dropped = self.corruption.kind == "drop"
        return {
            "mask": {
                **dump["selection"],
                "ratio_schedule": dump["ratio_schedule"],
                "kind": "dynamic" if self.static_masks is None else "static",
                "static_masks": self.static_masks,
            },
            "corruption": dump["corruption"],
            "visibility": "bidirectional over visible patches"
            if dropped
            else "bidirectional over all patches",
            "target": {
                "what": "pixels, each patch normalised by its own mean and deviation"
                if self.target.normalise
                else "pixels",
                "scaling": "that of the encoder's input (model.encoder.input)",
                **dump["target"],
            },
            "loss": {
                "kind": "squared error",
                "within_patch": self.error,
                "denominator": "token_mean",
                "over": f"{self.over} patches",
            },
        }


def _mean(values: Float[Array, "batch patches"], weight: Float[Array, "batch patches"]) -> Metric:
    total = token_mean(values, weight)
    return Metric(total.sum, total.weight)
