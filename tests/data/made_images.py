"""Small images that tests make on the spot, and files of them."""

import gzip
import io
import struct
import zlib

import numpy as np
from PIL import Image


def noise(height=12, width=9, channels=3, *, seed=0, bits=8):
    """An image of random numbers."""
    largest = 2**bits
    dtype = np.uint8 if bits == 8 else np.uint16
    return np.random.default_rng(seed).integers(0, largest, (height, width, channels), dtype)


def smooth(height=48, width=64, *, seed=0):
    """An RGB image of slow waves, which JPEG keeps nearly as it is."""
    phase = np.random.default_rng(seed).uniform(0, 6, (3, 2))
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(y / 9 + a) * np.cos(x / 11 + b) for a, b in phase]
    return np.rint(127.5 + 100 * np.stack(waves, -1)).astype(np.uint8)


def encoded(pixels, format="PNG", *, mode=None, **options):
    """A file of an image: of an array, or of one of Pillow's."""
    image = pixels
    if not isinstance(image, Image.Image):
        image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    if mode:
        image = image.convert(mode)
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def png(pixels, *, chunks=()):
    """A PNG of 16 bits, which Pillow cannot write for all kinds; ``chunks`` come before the pixels."""
    height, width, channels = pixels.shape
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)

    def chunk(name, content):
        whole = name + content
        return struct.pack(">I", len(content)) + whole + struct.pack(">I", zlib.crc32(whole))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0))
    others = b"".join(chunk(*each) for each in chunks)
    return (
        b"\x89PNG\r\n\x1a\n"
        + head
        + others
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def write_folder(folder, images, *, suffix=".png"):
    """Files by name, each an array or the content of a file."""
    for name, image in images.items():
        path = folder / f"{name}{suffix}" if not isinstance(image, bytes) else folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image if isinstance(image, bytes) else encoded(image))
    return folder


def idx(array, kind=8):
    """The content of a file in the idx format."""
    return (
        bytes([0, 0, kind, array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


def write_idx(folder, *, train=30, test=10, size=(6, 5), packed=True, labels=True):
    """A set in the idx format; the images and labels by part."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    for seed, (part, count) in enumerate((("train", train), ("t10k", test))):
        rng = np.random.default_rng(seed)
        images = rng.integers(0, 256, (count, *size), np.uint8)
        classes = (np.arange(count) % 3).astype(np.uint8)
        made[part] = images, classes
        files = {f"{part}-images-idx3-ubyte": images}
        if labels:
            files[f"{part}-labels-idx1-ubyte"] = classes
        for name, array in files.items():
            content = idx(array)
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)
    return made
