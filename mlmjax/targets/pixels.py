"""Pixels as targets: their scale, their patches, and patches normalised each by itself."""

from typing import Annotated, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped
from pydantic import Field, FiniteFloat, model_validator

from mlmjax.core.config import Config
from mlmjax.core.errors import UserError

EPSILON = 1e-6
"""Added to a patch's variance, so that one of a single colour can be normalised."""

HIGHEST = {np.dtype(np.uint8): 255, np.dtype(np.uint16): 65535}
"""The white of raw pixels."""

Positive = Annotated[FiniteFloat, Field(gt=0)]


class PixelScale(Config):
    """From raw pixels to the numbers that a model sees, which are also those that errors are measured in.

    A squared error of pixels from 0 to 255 is 65,025 times that of the same pixels from 0 to 1.
    """

    range: Literal["0-1", "0-255"] = "0-1"
    """Where black and white lie before ``mean`` and ``std`` apply."""
    mean: Annotated[tuple[FiniteFloat, ...], Field(min_length=1)] = (0.0,)
    """Subtracted, of each channel or one for all; in units of the range."""
    std: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1.0,)
    """What is left is divided by this, of each channel or one for all; in units of the range."""

    @model_validator(mode="after")
    def _of_the_same_channels(self) -> Self:
        lengths = {len(self.mean), len(self.std)} - {1}
        if len(lengths) > 1:
            raise ValueError(
                f"mean is of {len(self.mean)} channels and std of {len(self.std)}; give one number for each "
                "channel, or one for all"
            )
        return self

    def __call__(
        self, pixels: Shaped[Array | np.ndarray, "*axes channels"]
    ) -> Float[Array, "*axes channels"]:
        """Raw pixels, scaled; float32.

        Args:
            pixels: uint8 or uint16, with the channels last.

        Raises:
            UserError: they are of another type, or ``mean`` and ``std`` are of other channels.
        """
        if pixels.dtype not in HIGHEST:
            raise UserError(
                f"Pixels are {pixels.dtype}, but raw ones are uint8 or uint16: scale them in the model "
                "(--model.encoder.input.range), not before."
            )
        mean, std = self._channels(pixels.shape[-1])
        # A whole number in all four cases, so that black and white come out exactly.
        unit = HIGHEST[pixels.dtype] / self._white
        return (jnp.asarray(pixels).astype(jnp.float32) / unit - mean) / std

    def inverse(
        self, values: Float[Array | np.ndarray, "*axes channels"]
    ) -> Float[Array, "*axes channels"]:
        """Scaled pixels as colours from 0 to 1, whatever the range; float32.

        Args:
            values: with the channels last; beyond black and white they are clipped.

        Raises:
            UserError: ``mean`` and ``std`` are of other channels.
        """
        mean, std = self._channels(values.shape[-1])
        return jnp.clip((jnp.float32(values) * std + mean) / self._white, 0, 1)

    @property
    def _white(self) -> int:
        return {"0-1": 1, "0-255": 255}[self.range]

    def _channels(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation, of one channel or of ``count``."""
        for name in ("mean", "std"):
            given = len(getattr(self, name))
            if given not in (1, count):
                raise UserError(
                    f"--model.encoder.input.{name} has {given} numbers and images have {count} channels: "
                    f"give {count}, or one for all."
                )
        return np.asarray(self.mean, np.float32), np.asarray(self.std, np.float32)


def patchify(
    images: Shaped[Array | np.ndarray, "*batch height width channels"], patch: tuple[int, int]
) -> Shaped[Array, "*batch patches size"]:
    """Images as rows of patches that do not overlap, of ``patch[0] * patch[1] * channels`` numbers each.

    Patches follow each other row by row, and in a patch so do its pixels, with the channels of each together
    (the order of He et al. 2022, section 3, in their published code).

    Args:
        images: with the channels last.
        patch: height and width of a patch.

    Raises:
        UserError: the patch does not divide the image.
    """
    *batch, height, width, channels = images.shape
    (high, wide), number = patch, len(batch)
    if height % high or width % wide:
        raise UserError(
            f"Patches of {high} by {wide} pixels do not divide images of {height} by {width}: "
            "change --model.encoder.patch or --data.size."
        )
    grid = jnp.asarray(images).reshape(*batch, height // high, high, width // wide, wide, channels)
    return grid.swapaxes(number + 1, number + 2).reshape(*batch, -1, high * wide * channels)


def unpatchify(
    patches: Shaped[Array | np.ndarray, "*batch patches size"],
    patch: tuple[int, int],
    grid: tuple[int, int],
) -> Shaped[Array, "*batch height width channels"]:
    """The images that :func:`patchify` cut into patches.

    Args:
        patches: row by row.
        patch: height and width of a patch.
        grid: the number of patches in a column and in a row.

    Raises:
        UserError: there are not as many patches as the grid holds, or their size is no multiple of the patch's.
    """
    *batch, count, size = patches.shape
    (high, wide), (rows, columns), number = patch, grid, len(batch)
    if count != rows * columns or size % (high * wide):
        raise UserError(
            f"{count} patches of {size} numbers are no grid of {rows} by {columns} patches of {high} by "
            f"{wide} pixels: give the patch and the grid that they were cut with."
        )
    apart = jnp.asarray(patches).reshape(*batch, rows, columns, high, wide, size // (high * wide))
    return apart.swapaxes(number + 1, number + 2).reshape(
        *batch, rows * high, columns * wide, size // (high * wide)
    )


class PatchStatistics(NamedTuple):
    """What a patch is normalised with.

    Attributes:
        mean: of its numbers, those of all channels together.
        std: their deviation; never 0.
    """

    mean: Float[Array, "*batch patches 1"]
    std: Float[Array, "*batch patches 1"]


def patch_statistics(patches: Float[Array, "*batch patches size"]) -> PatchStatistics:
    """Mean and deviation of each patch (He et al. 2022, section 4.1, "w/ norm").

    As in their published code, the variance is the unbiased one, and 1e-6 is added before the root. A patch of
    one number has variance 0.
    """
    mean = patches.mean(axis=-1, keepdims=True)
    square = jnp.square(patches - mean).sum(axis=-1, keepdims=True)
    return PatchStatistics(mean, jnp.sqrt(square / max(patches.shape[-1] - 1, 1) + EPSILON))


def normalise_patches(
    patches: Float[Array, "*batch patches size"], statistics: PatchStatistics
) -> Float[Array, "*batch patches size"]:
    """Patches less their mean, divided by their deviation."""
    return (patches - statistics.mean) / statistics.std


def denormalise_patches(
    patches: Float[Array, "*batch patches size"], statistics: PatchStatistics
) -> Float[Array, "*batch patches size"]:
    """The patches that :func:`normalise_patches` made these of, if the statistics are the same."""
    return patches * statistics.std + statistics.mean


class PixelTarget(Config):
    """The pixels of a patch, as they are or normalised by its own mean and deviation."""

    normalise: bool = True
    """Each patch by itself: its texture is predicted, not its brightness."""

    def __call__(
        self, patches: Float[Array, "*batch patches size"]
    ) -> Float[Array, "*batch patches size"]:
        """What is to be predicted of scaled patches; no gradient flows back from it."""
        patches = jax.lax.stop_gradient(patches)
        if not self.normalise:
            return patches
        return normalise_patches(patches, patch_statistics(patches))
