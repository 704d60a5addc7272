"""Images side by side in one picture, with a heading over each column and a caption below."""

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw, ImageFont

from mlmjax.core.errors import UserError

BACK, INK, GREY = (255, 255, 255), (43, 49, 58), (105, 112, 121)
UNSEEN = (157, 184, 217)
"""Where an image has no number: a blue, which no grey image has."""
GAP, MARGIN = 6, 14
SMALLEST = 96
"""Images are enlarged by whole factors until they are about this wide: a pixel stays a square."""
LARGEST = 256
"""Larger images are made smaller."""
HEADING, CAPTION = 14, 12
"""Sizes of the fonts."""


def grid(
    columns: Mapping[str, Float[np.ndarray, "images height width channels"]],
    *,
    caption: str = "",
    blocks: int = 1,
) -> UInt8[np.ndarray, "rows columns 3"]:
    """One picture of several versions of the same images.

    Args:
        columns: of each version its heading and its images, all of one shape, 0 to 1: grey (1 channel), grey and
            alpha (2), red, green and blue (3), or those and alpha (4); of more channels the mean is shown as grey.
            Values outside are cut; where a pixel is not a number, it is blue.
        caption: what stands below, as many lines as it needs.
        blocks: the images are laid out in so many blocks beside each other, each with all columns.

    Returns:
        The pixels, 8 bits.

    Raises:
        ValueError: there is no image, or the shapes differ.
    """
    shapes = {images.shape for images in columns.values()}
    if len(shapes) != 1 or 0 in next(iter(shapes)):
        raise ValueError(
            f"every column needs the same images, at least one; their shapes: {shapes}"
        )
    shown = [np.stack([_tile(image) for image in images]) for images in columns.values()]
    count, height, width, _ = shown[0].shape
    rows = -(-count // blocks)
    heading, small = _font(HEADING), _font(CAPTION)
    broadest = max(heading.getlength(name) for name in columns)
    step_x, step_y = max(width, round(broadest)) + GAP, height + GAP
    block = len(columns) * step_x - GAP
    top = MARGIN + HEADING + GAP
    whole = 2 * MARGIN + blocks * block + (blocks - 1) * 3 * MARGIN
    lines = _wrapped(caption, small, whole - 2 * MARGIN)
    below = top + rows * step_y - GAP
    size = (whole, below + MARGIN + len(lines) * (CAPTION + 5))
    canvas = Image.new("RGB", size, BACK)
    draw = ImageDraw.Draw(canvas)
    for place in range(blocks):
        left = MARGIN + place * (block + 3 * MARGIN)
        for number, name in enumerate(columns):
            x = left + number * step_x
            draw.text((x, MARGIN - 4), name, fill=INK, font=heading)
            for row, image in enumerate(shown[number][place * rows : (place + 1) * rows]):
                canvas.paste(Image.fromarray(image), (x, top + row * step_y))
    for number, line in enumerate(lines):
        draw.text((MARGIN, below + 6 + number * (CAPTION + 5)), line, fill=GREY, font=small)
    return np.asarray(canvas)


def write_png(path: Path, pixels: UInt8[np.ndarray, "rows columns 3"]) -> None:
    """Write a picture, so that it is there whole or not at all.

    Raises:
        UserError: it cannot be written.
    """
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, format="png")
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(encoded.getvalue())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UserError(
            f"The picture {path} cannot be written: {error.strerror or error}. Choose another place."
        ) from error


def _tile(image: Float[np.ndarray, "height width channels"]) -> UInt8[np.ndarray, "rows columns 3"]:
    """An image in red, green and blue at the size in which it is shown."""
    height, width, channels = image.shape
    unseen = np.isnan(image).any(axis=-1)
    values = np.clip(np.nan_to_num(image.astype(np.float64)), 0, 1)
    color = values[..., : channels - 1 if channels in (2, 4) else channels]
    if channels in (2, 4):  # over white
        alpha = values[..., -1:]
        color = alpha * color + 1 - alpha
    elif channels > 4:
        color = values.mean(axis=-1, keepdims=True)
    pixels = np.rint(255 * np.broadcast_to(color, (height, width, 3))).astype(np.uint8)
    pixels[unseen] = UNSEEN
    if max(height, width) > LARGEST:
        share = LARGEST / max(height, width)
        size = max(1, round(share * width)), max(1, round(share * height))
        return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS))
    factor = max(1, round(SMALLEST / max(height, width)))
    return pixels.repeat(factor, axis=0).repeat(factor, axis=1)


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _wrapped(
    text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int
) -> list[str]:
    """The text in lines that fit."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and font.getlength(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines
