"""Arrays of many images: what they must be like, and parts of them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlmjax.core.errors import UserError
from mlmjax.data.documents import Broken
from mlmjax.data.image_sources.base import Picture, Side

PLANES = 64
"""The most channels of an array of images."""


@dataclass(frozen=True)
class Array:
    """Images in one array, in memory.

    Attributes:
        images: uint8 or uint16 [images, height, width, channels].
        labels: of each; none where they have none.
        name: for messages.
        side: which of the source's parts they are.
    """

    images: np.ndarray
    labels: np.ndarray | None
    name: str
    side: Side | None = None

    @property
    def size(self) -> int:
        """Bytes."""
        return self.images.nbytes

    def read(self, broken: Broken) -> Iterator[Picture]:
        """The images."""
        for number, image in enumerate(self.images):
            label = None if self.labels is None else self.labels[number].item()
            yield Picture(image, f"{self.name}, image {number}", label, self.side)


def checked(images: np.ndarray, name: str) -> np.ndarray:
    """Images [images, height, width, channels] in uint8 or uint16.

    Args:
        images: without the last axis, where they are grey; of truth values, 8 or 16 bits.
        name: for messages.

    Raises:
        UserError: they are of another shape or type.
    """
    if images.ndim == 3:
        images = images[..., None]
    shape = "×".join(map(str, images.shape))
    if images.ndim != 4 or not 1 <= images.shape[-1] <= PLANES or not all(images.shape[1:]):
        raise UserError(
            f"{name} holds an array of {shape}, which is not one of images: give [images, height, width] or "
            "[images, height, width, channels] (--data.root)."
        )
    if images.shape[-1] > 4 and images.shape[1] <= 4:
        raise UserError(
            f"{name} holds an array of {shape}, whose channels seem to come before height and width: give "
            "[images, height, width, channels] (--data.root)."
        )
    if images.dtype == np.bool_:
        return images.astype(np.uint8) * np.uint8(255)
    if images.dtype.newbyteorder("=") not in (np.uint8, np.uint16):
        raise UserError(
            f"{name} holds numbers of type {images.dtype}, whose range of brightness is not known: bring them "
            "to uint8 (0 to 255) or uint16 (0 to 65535) (--data.root)."
        )
    return images.astype(images.dtype.newbyteorder("="), copy=False)


def checked_labels(labels: np.ndarray, count: int, name: str) -> np.ndarray:
    """Labels [images], whole numbers or strings.

    Raises:
        UserError: they are of another shape or type, or as many as other images.
    """
    flat = labels.reshape(-1) if labels.size == len(labels) else labels
    if flat.shape != (count,):
        raise UserError(
            f"{name} holds labels of {'×'.join(map(str, labels.shape))} for {count} images: there must be one "
            "each (--data.label-field)."
        )
    if flat.dtype.kind not in "iuUb":
        raise UserError(
            f"{name} holds labels of type {flat.dtype}: give whole numbers or strings (--data.label-field)."
        )
    return flat
