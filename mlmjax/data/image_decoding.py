"""Image files to arrays, exactly: what cannot come out right is refused by name.

Pillow decodes. Colour profiles are not applied; of several frames the first is read; what a camera says of its
orientation is followed.
"""

from io import BytesIO
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt
from PIL import ExifTags, Image

from mlmjax.data.sources.lines import UnreadableError

Pixels = UInt[np.ndarray, "_height _width _channels"]
"""uint8 or uint16, 0 to the largest: 1 channel is grey, 2 grey and alpha, 3 RGB, 4 RGB and alpha."""

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "AVIF", "PPM", "JPEG2000", "TGA")
"""What is decoded. Pillow knows more, some of which it hands to other programs."""

_NATIVE = {
    **dict.fromkeys(("1", "L"), "L"),
    **dict.fromkeys(("LA", "La"), "LA"),
    **dict.fromkeys(("RGB", "RGBX", "CMYK", "YCbCr", "P"), "RGB"),
    **dict.fromkeys(("RGBA", "RGBa", "PA"), "RGBA"),
}
_WITH_ALPHA = {"L": "LA", "RGB": "RGBA"}
_LOW_BYTES = {"RGB;16B": "RGB;16L", "RGBA;16B": "RGBA;16L"}
_BITS_PER_SAMPLE = 258


class Decoded(NamedTuple):
    """What a file holds.

    Attributes:
        pixels: as they are in the file; CMYK, YCbCr and palettes as RGB.
        mode: Pillow's name of what they are in the file, such as ``CMYK`` or ``I;16``.
        scale: how much smaller than the file's the image is: 1, 2, 4 or 8.
    """

    pixels: Pixels
    mode: str
    scale: int = 1


def decode(content: bytes, *, bits: int = 8, reduce: int = 1) -> Decoded:
    """The pixels of an image file.

    Args:
        content: the file.
        bits: 8 or 16: how exactly they are wanted.
        reduce: how much smaller the image may come out; only JPEG does so, which is faster.

    Raises:
        UnreadableError: it is no image, damaged, or of a kind that would not come out right.
    """
    try:
        with Image.open(BytesIO(content), formats=FORMATS) as image:
            mode, width, rawmode = image.mode, image.width, _rawmode(image)
            _check(image, bits)
            if reduce > 1:
                image.draft(None, (max(width // reduce, 1), max(image.height // reduce, 1)))
            scale = round(width / image.width)
            image.load()
            low = _LOW_BYTES.get(rawmode)
            pixels = _from_bytes(image, content, low) if low else _native(image)
            if rawmode == "LA;16B":  # which Pillow has no mode for
                pixels = pixels[..., [0, 3]]
            return Decoded(_upright(pixels, image), mode, scale)
    except UnreadableError:
        raise
    except Image.UnidentifiedImageError as error:
        raise UnreadableError(
            f"no image that can be read (of {', '.join(FORMATS)}); it may be damaged at its beginning."
        ) from error
    except Exception as error:  # of many kinds: each decoder has its own
        why = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise UnreadableError(f"a damaged image: {why}.") from error


def convert(pixels: Pixels, *, channels: int, bits: int, background: int = 255) -> Pixels:
    """The same image with other channels or another depth.

    Grey becomes RGB by repetition, RGB becomes grey by luma (ITU-R BT.601), alpha is laid over a background,
    and where there was none it is opaque. Depths differ by a factor of 257, rounded.

    Args:
        pixels: with 1 to 4 channels, or with as many as are wanted.
        channels: wanted.
        bits: wanted, 8 or 16.
        background: grey value from 0 to 255 that shows where an image is transparent.
    """
    if bits == 16 and pixels.dtype == np.uint8:
        pixels = pixels.astype(np.uint16) * np.uint16(257)
    elif bits == 8 and pixels.dtype == np.uint16:
        pixels = ((pixels.astype(np.uint32) + 128) // 257).astype(np.uint8)
    has = pixels.shape[-1]
    if has == channels:
        return pixels
    largest = np.iinfo(pixels.dtype).max
    colour, alpha = (pixels[..., :-1], pixels[..., -1:]) if has in (2, 4) else (pixels, None)
    if alpha is not None and channels in (1, 3):
        share = alpha.astype(np.float64) / largest
        behind = background / 255 * largest
        colour = np.rint(colour * share + behind * (1 - share)).astype(pixels.dtype)
    wanted = 1 if channels in (1, 2) else 3
    if colour.shape[-1] == 1 and wanted == 3:
        colour = np.repeat(colour, 3, axis=-1)
    elif colour.shape[-1] == 3 and wanted == 1:
        luma = colour @ np.array([0.299, 0.587, 0.114])
        colour = np.rint(luma)[..., None].astype(pixels.dtype)
    if channels in (1, 3):
        return colour
    opaque = np.full((*pixels.shape[:2], 1), largest, pixels.dtype)
    return np.concatenate([colour, opaque if alpha is None else alpha], axis=-1)


def _native(image: Image.Image) -> Pixels:
    """A loaded image's pixels."""
    if image.mode.startswith("I"):
        return np.asarray(image).astype(np.uint16)[..., None]
    mode = _NATIVE[image.mode]
    if image.has_transparency_data:
        mode = _WITH_ALPHA.get(mode, mode)
    found = np.asarray(image if image.mode == mode else image.convert(mode))
    return found[..., None] if found.ndim == 2 else found


def _from_bytes(image: Image.Image, content: bytes, low: str) -> Pixels:
    """16 bits of each channel: the loaded image has the high bytes, and what reads them the other way round
    gives the low ones."""
    with Image.open(BytesIO(content), formats=FORMATS) as other:
        other.tile = [other.tile[0]._replace(args=low)]
        high, rest = (np.asarray(one).astype(np.uint16) for one in (image, other))
    return (high << 8) | rest


def _upright(pixels: Pixels, image: Image.Image) -> Pixels:
    """The image as it is to be seen (Exif, tag 274)."""
    orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def _check(image: Image.Image, bits: int) -> None:
    """Refuse what would not come out right."""
    mode, rawmode, depth = image.mode, _rawmode(image), _depth(image)
    if mode not in _NATIVE and not mode.startswith("I;16") and (mode, image.format) != ("I", "PPM"):
        what = {"F": "real numbers", "I": "whole numbers of 32 bits"}.get(mode, f"mode {mode}")
        raise UnreadableError(
            f"an image of {what}, whose range of brightness is not known; save it as grey or RGB of 8 or 16 "
            "bits."
        )
    if depth not in (1, 2, 4, 8, 16):
        raise UnreadableError(f"an image of {depth} bits a sample; save it with 8 or 16.")
    exact = mode.startswith("I") or rawmode in _LOW_BYTES
    if exact and "transparency" in image.info:
        raise UnreadableError("16 bits with a transparent colour; save it with alpha, or 8 bits.")
    if depth == 16 and bits == 16 and not exact:
        raise UnreadableError(
            f"{image.format} of 16 bits in mode {mode}, of which only 8 can be read; save it as PNG in grey or "
            "RGB, or ask for 8: --data.bits 8."
        )


def _depth(image: Image.Image) -> int:
    """Bits a sample."""
    if image.format == "TIFF":
        return max(image.tag_v2.get(_BITS_PER_SAMPLE, (1,)))  # type: ignore[attr-defined]
    return 16 if "16" in _rawmode(image) or image.mode.startswith("I") else 8


def _rawmode(image: Image.Image) -> str:
    """How a file's bytes are laid out; empty where its decoder does not say."""
    tiles = getattr(image, "tile", None)
    args = tiles[0].args if tiles else ""
    found = args[0] if isinstance(args, tuple) and args else args
    return found if isinstance(found, str) else ""
