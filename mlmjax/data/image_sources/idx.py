"""The idx format of the MNIST family: a file of images and one of labels, each packed or not."""

import gzip
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import IOBase
from typing import Any

import numpy as np

from mlmjax.core.errors import UserError
from mlmjax.data.documents import Broken
from mlmjax.data.image_sources.arrays import checked
from mlmjax.data.image_sources.base import Picture, Side
from mlmjax.data.sources.fields import listed
from mlmjax.data.sources.files import BLOCK, File, digest, telling
from mlmjax.data.sources.finding import Found

_NAME = re.compile(r"(?P<set>.*?)[-._]?images[-._]idx(?P<axes>\d)[-._]ubyte(?P<packed>\.gz)?", re.I)
_LABELS = re.compile(r"images([-._])idx\d", re.I)
_HELD_OUT = re.compile(r"(t10k|test)$", re.I)
_TRAINED = re.compile(r"train$", re.I)
_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def is_idx(name: str) -> bool:
    """Whether a file is one of images, by its name."""
    return _NAME.fullmatch(name.rsplit("/", 1)[-1]) is not None


class IdxFiles:
    """Images of one set; a file named ``t10k`` or ``test`` is held out where there is one of training."""

    classes: tuple[str, ...] = ()
    ignored = 0

    def __init__(self, found: Found) -> None:
        """Find the files: of images, and beside each the one of its labels, if there is one.

        Args:
            found: what there is under the root.

        Raises:
            UserError: there is no file of images, or of several sets.
        """
        self.root = found.root
        names = dict(found.paths)
        images = [name for name in names if is_idx(name)]
        sides = [_side(name) for name in images]
        if not images:
            raise UserError(
                f"{found.root} holds no images in the idx format (--data.root), such as "
                "train-images-idx3-ubyte.gz."
            )
        if max(sides.count("train"), sides.count("heldout")) > 1 or sides.count(None) > 1:
            raise UserError(
                f"{found.root} holds several sets in the idx format (--data.root): {listed(images)}. Choose "
                "one by a pattern in quotes, such as 'emnist-letters-*'."
            )
        own = set(sides) == {"train", "heldout"}
        self._sets: list[IdxPart] = []
        for name, side in sorted(
            zip(images, sides, strict=True), key=lambda one: one[1] != "train"
        ):
            beside = _labels_of(name, names)
            labels = found.file(names[beside]) if beside else None
            self._sets.append(IdxPart(found.file(names[name]), labels, side if own else None))
        self.ignored = len(names) - sum(1 + (one.labels is not None) for one in self._sets)

    def __str__(self) -> str:
        return self.root

    def parts(self) -> list["IdxPart"]:
        """One a file of images."""
        return self._sets

    def digest(self) -> str:
        """Hash of the files' names and bytes."""
        files = [file for one in self._sets for file in (one.file, one.labels) if file is not None]
        return digest(files, "idx")


@dataclass(frozen=True)
class IdxPart:
    """A file of images, and that of their labels.

    Attributes:
        file: of images.
        labels: of their labels; none where there is none.
        side: whether they are to be trained on or held out.
    """

    file: File
    labels: File | None
    side: Side | None

    @property
    def name(self) -> str:
        """The file."""
        return self.file.shown

    @property
    def size(self) -> int:
        """Bytes, packed where it is packed."""
        return self.file.size

    def read(self, broken: Broken) -> Iterator[Picture]:
        """The images.

        Raises:
            UserError: a file is damaged, or there are more or fewer labels than images.
        """
        with _opened(self.file) as (content, dtype, shape):
            if dtype != ">u1" or len(shape) not in (3, 4):
                raise UserError(
                    f"{self.name} holds an array of {'×'.join(map(str, shape))} numbers of type {dtype}, not "
                    "images of 8 bits (--data.root)."
                )
            count, *each = shape
            labels, size = self._labels(count), math.prod(each)
            step = max(BLOCK // max(size, 1), 1)
            for first in range(0, count, step):
                some = min(step, count - first)
                block = np.frombuffer(_exactly(content, some * size, self.name), np.uint8)
                images = checked(block.reshape(some, *each), self.name)
                for number, image in enumerate(images, first):
                    label = None if labels is None else int(labels[number])
                    yield Picture(image, f"{self.name}, image {number}", label, self.side)
            if content.read(1):
                raise UserError(f"{self.name} goes on behind its last image (--data.root).")

    def _labels(self, count: int) -> np.ndarray | None:
        if self.labels is None:
            return None
        with _opened(self.labels) as (content, dtype, shape):
            if len(shape) != 1 or np.dtype(dtype).kind not in "iu":
                raise UserError(f"{self.labels.shown} holds no labels (--data.root).")
            if shape != (count,):
                raise UserError(
                    f"{self.name} holds {count} images and {self.labels.shown} {shape[0]} labels: one file "
                    "is of another set, or cut off (--data.root)."
                )
            size = count * np.dtype(dtype).itemsize
            return np.frombuffer(_exactly(content, size, self.labels.shown), dtype)


@contextmanager
def _opened(file: File) -> Iterator[tuple[IOBase, str, tuple[int, ...]]]:
    """A file's content behind its head, the type of its numbers, and its shape."""
    with file.opened() as raw, telling(file.shown, file.system):
        unpacked: Any = gzip.GzipFile(fileobj=raw) if file.packed else raw
        head = _exactly(unpacked, 4, file.shown)
        if head[:2] != b"\0\0" or head[2] not in _TYPES or not head[3]:
            raise UserError(f"{file.shown} is no file in the idx format (--data.root).")
        shape = np.frombuffer(_exactly(unpacked, 4 * head[3], file.shown), ">u4")
        yield unpacked, _TYPES[head[2]], tuple(shape.tolist())


def _exactly(content: IOBase, size: int, name: str) -> bytes:
    """The next bytes."""
    blocks, left = [], size
    while left:
        block = content.read(min(left, BLOCK))
        if not block:
            raise UserError(f"{name} is cut off: {left} bytes are missing (--data.root).")
        blocks.append(block)
        left -= len(block)
    return b"".join(blocks)


def _side(name: str) -> Side | None:
    match = _NAME.fullmatch(name.rsplit("/", 1)[-1])
    assert match is not None
    if _HELD_OUT.search(match["set"]):
        return "heldout"
    return "train" if _TRAINED.search(match["set"]) else None


def _labels_of(name: str, names: dict[str, str]) -> str | None:
    """The file of labels beside one of images."""
    stem = _LABELS.sub(r"labels\1idx1", name).removesuffix(".gz")
    return next((found for found in (f"{stem}.gz", stem) if found in names), None)
