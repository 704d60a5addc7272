"""Images of some parts of a source to one file of records: each decoded, checked and known by its hash."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mlmjax.core.errors import UserError
from mlmjax.data.image_decoding import Pixels, decode
from mlmjax.data.image_rows import ImageWriter, View
from mlmjax.data.image_sources.base import ImagePart, ImageSource, Picture
from mlmjax.data.preparation.reading import OnError, Tally
from mlmjax.data.preparation.spool import save, unfinished, write_whole
from mlmjax.data.sources.lines import UnreadableError

Mixed = Literal["refuse", "convert"]

ENTRY = np.dtype(
    [("hash", "<u8", (2,)), ("label", "<i4"), ("side", "i1"), ("height", "<u4"), ("width", "<u4")]
)
"""What is known of an image: 128 bits of the hash of its pixels; its label's place in the task's list, -1 where
there is none; 0 where it is trained on, 1 where it is held out, -1 where that is to be decided; its size."""

SIDES = ("train", "heldout")

_FORMAT = 1
_SMALLER = 2
"""Pixels are written in place of a file where they take at most so many times its bytes."""


@dataclass(frozen=True)
class ImageRecipe:
    """What is made of the images; it decides every byte.

    Attributes:
        view: how they are shown; without a random part they are written so.
        heldout: share of the images that is held out, where the source has no part for that.
        smallest: the least height and width.
        mixed: what happens where images differ in their number of channels.
        on_error: what happens where an image cannot be read, or is too small.
    """

    view: View
    heldout: float = 0.05
    smallest: tuple[int, int] = (1, 1)
    mixed: Mixed = "refuse"
    on_error: OnError = "stop"

    @property
    def fitted(self) -> bool:
        """Whether images are written as they are shown."""
        return self.view.crop is None

    def identity(self, source: ImageSource) -> dict[str, Any]:
        """What the records are made of, and the ``fingerprint`` of that."""
        settings = asdict(self)
        view = settings.pop("view")
        # What is drawn anew in every epoch changes nothing that is written, but the size of what is shown does.
        view = {k: v for k, v in view.items() if k not in ("crop", "flip")}
        if not self.fitted:
            view["size"] = None
        found = {
            "format": _FORMAT,
            "content": [source.digest()],
            "settings": {**view, "fitted": self.fitted, **settings},
        }
        text = json.dumps(found, sort_keys=True)
        digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        return {"fingerprint": digest, "kind": "images", **found}


@dataclass(frozen=True)
class ImageTask:
    """Parts of a source that are read one after the other, into one file.

    Attributes:
        number: its place among all.
        parts: of the source.
    """

    number: int
    parts: tuple[ImagePart, ...]

    @property
    def size(self) -> int:
        """Bytes to read."""
        return sum(part.size for part in self.parts)


@dataclass(frozen=True)
class Records:
    """A folder that tasks fill, each by itself; the last file that a task writes is its summary.

    Attributes:
        folder: of the files of images; what is known of them lies in a folder in there.
        recipe: what is made of them.
    """

    folder: Path
    recipe: ImageRecipe

    def path(self, number: int) -> Path:
        """The images of a task."""
        return self.folder / f"images-{number:05d}.array_record"

    def entries(self, number: int) -> np.ndarray:
        """What is known of each image of a task: :data:`ENTRY`."""
        return np.load(self._beside(number, "npy"))

    def summary(self, number: int) -> dict[str, Any] | None:
        """What a task read and wrote; none if it is not done."""
        path = self._beside(number, "json")
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def fill(self, task: ImageTask, progress: Callable[[int], None] | None = None) -> None:
        """Read a task's images, and write those that are whole.

        Raises:
            UserError: something cannot be read.
        """
        found = _Reading(self.recipe)
        path = self.path(task.number)
        writer = ImageWriter(unfinished(path))
        try:
            for image, height, width in found.images(task, progress):
                writer.write(image, height=height, width=width)
        finally:
            writer.close()
        unfinished(path).rename(path)
        save(self._beside(task.number, "npy"), np.array(found.entries, ENTRY))
        write_whole(self._beside(task.number, "json"), json.dumps(found.summary()).encode())

    def _beside(self, number: int, suffix: str) -> Path:
        return self.folder / "known" / f"{number:06d}.{suffix}"


class _Reading:
    """What a task has read so far."""

    def __init__(self, recipe: ImageRecipe) -> None:
        self._recipe = recipe
        self._tally = Tally()
        self._modes: Counter[str] = Counter()
        self._channels: dict[int, tuple[int, str]] = {}
        self._labels: dict[str | int, int] = {}
        self._smallest: list[Any] = [None, None]
        self.entries: list[tuple] = []

    def images(
        self, task: ImageTask, progress: Callable[[int], None] | None
    ) -> Iterator[tuple[Pixels | bytes, int, int]]:
        """What is to be written of each image, and the image's height and width."""
        for part in task.parts:
            for picture in part.read(self._unread):
                self._tally.counts["read"] += 1
                if progress and self._tally.counts["read"] % 200 == 0:
                    progress(self._tally.counts["read"])
                if (found := self._one(picture)) is not None:
                    yield found

    def _one(self, picture: Picture) -> tuple[Pixels | bytes, int, int] | None:
        recipe, view = self._recipe, self._recipe.view
        try:
            pixels, mode = _decoded(picture, view)
        except UnreadableError as why:
            self._left_out("broken", f"{picture.place}: {why}")
            return None
        height, width = pixels.shape[:2]
        if height < recipe.smallest[0] or width < recipe.smallest[1]:
            least = "×".join(map(str, recipe.smallest))
            self._left_out(
                "small",
                f"{picture.place} is of {height}×{width} pixels, smaller than {least} (--data.smallest).",
            )
            return None
        self._count(picture, mode, pixels)
        shown = view.convert(pixels)
        self.entries.append((_hash(shown), self._label(picture), _side(picture), height, width))
        if recipe.fitted:
            return view.fit(shown), *view.size
        content = picture.content
        if isinstance(content, bytes) and shown.nbytes > _SMALLER * len(content):
            return content, height, width
        return shown, height, width

    def _count(self, picture: Picture, mode: str, pixels: Pixels) -> None:
        height, width, channels = pixels.shape
        self._modes[mode] += 1
        self._channels.setdefault(channels, (0, picture.place))
        count, first = self._channels[channels]
        self._channels[channels] = count + 1, first
        if self._recipe.mixed == "refuse":
            check_channels(self._channels)
        for axis, size in enumerate((height, width)):
            if self._smallest[axis] is None or size < self._smallest[axis][0]:
                self._smallest[axis] = (size, picture.place)

    def _label(self, picture: Picture) -> int:
        if picture.label is None:
            return -1
        return self._labels.setdefault(picture.label, len(self._labels))

    def _unread(self, message: str) -> None:
        self._tally.counts["read"] += 1
        self._left_out("broken", message)

    def _left_out(self, why: str, message: str) -> None:
        if self._recipe.on_error == "stop":
            raise UserError(f"{message} Mend it, or leave such images out: --data.on-error skip.")
        self._tally.add({why: 1}, [message])

    def summary(self) -> dict[str, Any]:
        """What is to be known of it later; JSON."""
        return {
            "counts": dict(self._tally.counts),
            "broken": self._tally.broken,
            "modes": dict(self._modes),
            "channels": {str(number): found for number, found in self._channels.items()},
            "labels": list(self._labels),
            "smallest": self._smallest if self.entries else None,
            "images": len(self.entries),
        }


def _decoded(picture: Picture, view: View) -> tuple[Pixels, str]:
    """An image's pixels, and what they are in the file."""
    if isinstance(picture.content, bytes):
        found = decode(picture.content, bits=view.bits)
        pixels, mode = found.pixels, found.mode
    else:
        pixels = picture.content
        channels = pixels.shape[-1]
        mode = f"{8 * pixels.dtype.itemsize} bits, {channels} channel{'s' if channels > 1 else ''}"
    has, wanted = pixels.shape[-1], view.channels
    if has != wanted and max(has, wanted) > 4:
        raise UserError(
            f"{picture.place} has {has} channels, and {wanted} are asked for: set --data.channels {has}."
        )
    return pixels, mode


def _hash(pixels: Pixels) -> tuple[int, int]:
    digest = hashlib.blake2b(repr(pixels.shape).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(pixels).data)
    found = digest.digest()
    return int.from_bytes(found[:8], "little"), int.from_bytes(found[8:], "little")


def _side(picture: Picture) -> int:
    return -1 if picture.side is None else SIDES.index(picture.side)


def check_channels(found: dict[int, tuple[int, str]]) -> None:
    """Refuse images of which some have other channels than others.

    Args:
        found: how many there are of each number of channels, and where the first lies.

    Raises:
        UserError: there is more than one number.
    """
    if len(found) < 2:
        return
    each = ", ".join(f"{channels} ({place})" for channels, (_, place) in sorted(found.items()))
    raise UserError(
        f"Images differ in their channels: {each}. Bring all of them to --data.channels with --data.mixed "
        "convert, or give images of one kind (--data.root)."
    )
