"""Which part of an image is shown, and how it is brought to the asked size."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt
from PIL import Image

from mlmjax.data.draws import draws
from mlmjax.data.image_decoding import Pixels

TRIES = 10
"""Crops that are drawn until one lies in the image."""
_ASPECT = math.log(4 / 3)
_FINE = 2
"""A smaller decoding is used where it still is so many times finer than what is shown."""


class Box(NamedTuple):
    """A part of an image, in pixels; the borders may lie within one."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def height(self) -> float:
        return self.bottom - self.top

    @property
    def width(self) -> float:
        return self.right - self.left

    def reduced(self, scale: int, height: int, width: int) -> "Box":
        """The same part of the image when it is ``scale`` times smaller, of the given size then."""
        return Box(
            self.left / scale,
            self.top / scale,
            min(self.right / scale, width),
            min(self.bottom / scale, height),
        )


def centre(height: int, width: int, size: tuple[int, int]) -> Box:
    """The largest part in the middle that has the aspect of ``size`` (height, width)."""
    share = min(height / size[0], width / size[1])
    tall, wide = share * size[0], share * size[1]
    left, top = max((width - wide) / 2, 0.0), max((height - tall) / 2, 0.0)
    # Rounding must not lead out of the image.
    return Box(left, top, min(left + wide, float(width)), min(top + tall, float(height)))


def random_crop(
    height: int, width: int, area: tuple[float, float], *, seed: int, epoch: int, index: int
) -> Box:
    """A part with a random area and aspect (Szegedy et al. 2015, "Going deeper with convolutions", section 6).

    The area is uniform in ``area``, as a share of the image's; the logarithm of width by height uniform between
    those of 3/4 and 4/3; the place uniform. After ten parts that do not lie in the image, it is the largest in
    the middle whose aspect is as near to the image's as that range allows.

    Args:
        height: of the image.
        width: of the image.
        area: the least and the largest share.
        seed: the run's seed; the outcome is a pure function of (seed, epoch, index) and the image's size.
        epoch: in which it is shown.
        index: of the example.
    """
    for attempt in range(TRIES):
        numbers = draws("crop", seed, epoch, index, attempt, count=4)
        u, v, x, y = (number / 2**64 for number in numbers)
        target = (area[0] + u * (area[1] - area[0])) * height * width
        aspect = math.exp((2 * v - 1) * _ASPECT)
        wide, tall = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < wide <= width and 0 < tall <= height:
            left, top = float(int(x * (width - wide + 1))), float(int(y * (height - tall + 1)))
            return Box(left, top, left + wide, top + tall)
    aspect = min(max(width / height, 3 / 4), 4 / 3)
    return centre(height, width, (1000, round(1000 * aspect)))


def random_flip(*, seed: int, epoch: int, index: int) -> bool:
    """Whether an image is mirrored; half are, in expectation."""
    return draws("flip", seed, epoch, index, count=1)[0] % 2 == 1


def reduction(box: Box, size: tuple[int, int]) -> int:
    """How much smaller an image may be decoded of which a part is shown at a size: 1, 2, 4 or 8."""
    share = min(box.height / size[0], box.width / size[1]) / _FINE
    return next((scale for scale in (8, 4, 2) if share >= scale), 1)


def resized(pixels: Pixels, box: Box, size: tuple[int, int]) -> UInt[np.ndarray, "h w channels"]:
    """A part of an image at a size, by bicubic interpolation over all pixels that a new one covers.

    Args:
        pixels: the image.
        box: the part.
        size: height and width to come out.
    """
    height, width, channels = pixels.shape
    if box == (0, 0, width, height) and (height, width) == size:
        return pixels
    wanted = (size[1], size[0])
    if pixels.dtype == np.uint8 and channels in (1, 3):
        image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
        found = np.asarray(image.resize(wanted, Image.Resampling.BICUBIC, box))
        return found.reshape(*size, channels)
    planes = [
        Image.fromarray(pixels[..., channel].astype(np.float32)).resize(
            wanted, Image.Resampling.BICUBIC, box
        )
        for channel in range(channels)
    ]
    table = np.stack([np.asarray(plane) for plane in planes], axis=-1)
    return np.rint(table).clip(0, np.iinfo(pixels.dtype).max).astype(pixels.dtype)
