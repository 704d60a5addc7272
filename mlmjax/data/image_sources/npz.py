"""NumPy's npz: an array of images and one of labels, or two of each, to train on and to hold out."""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlmjax.core.errors import UserError
from mlmjax.data.documents import Broken
from mlmjax.data.image_sources.arrays import Array, checked, checked_labels
from mlmjax.data.image_sources.base import Picture, Side
from mlmjax.data.sources.fields import listed
from mlmjax.data.sources.files import File, digest, telling
from mlmjax.data.sources.finding import Found

_HELD_OUT = ("val", "valid", "test")


class NpzFile:
    """Images of one file, in memory as a whole while they are read.

    Images to train on are the array that ``field`` names (also with an s), or ``x_train`` or ``train_images``;
    those that are held out ``x_test``, ``test_images`` and the like. Labels are ``y_train``, ``train_labels``.
    """

    classes: tuple[str, ...] = ()

    def __init__(
        self, found: Found, *, field: str = "image", label_field: str | None = "label"
    ) -> None:
        """Find the file, and the arrays in it.

        Args:
            found: what there is under the root.
            field: the array of images.
            label_field: that of labels; any but ``label`` must be there; none for no labels.

        Raises:
            UserError: there is no such file, or several, or no such array.
        """
        files = found.those(lambda name: not found.folder or name.lower().endswith(".npz"))
        if len(files) != 1:
            held = f"holds {listed(file.name for file in files)}" if files else "holds no .npz file"
            raise UserError(f"{found.root} {held} (--data.root): give one file of arrays.")
        self.root, self._file = found.root, files[0]
        self.ignored = len(found.paths) - 1
        with _opened(self._file) as arrays:
            names = tuple(arrays.files)
        self._parts = [
            NpzPart(self._file, images, labels, side)
            for images, labels, side in _chosen(names, field, label_field, self._file.shown)
        ]

    def __str__(self) -> str:
        return self.root

    def parts(self) -> list["NpzPart"]:
        """The arrays of images."""
        return self._parts

    def digest(self) -> str:
        """Hash of the file's name and bytes, and of the arrays that are read."""
        arrays = [(part.images, part.labels, part.side) for part in self._parts]
        return digest([self._file], "npz", arrays)


@dataclass(frozen=True)
class NpzPart:
    """An array of images, and one of their labels.

    Attributes:
        file: the file.
        images: name of the array of images.
        labels: name of that of labels; none where there is none.
        side: whether they are to be trained on or held out.
    """

    file: File
    images: str
    labels: str | None
    side: Side | None

    @property
    def name(self) -> str:
        """The file, and the array."""
        return f"{self.file.shown}, {self.images}"

    @property
    def size(self) -> int:
        """Bytes of the whole file, about."""
        return self.file.size

    def read(self, broken: Broken) -> Iterator[Picture]:
        """The images.

        Raises:
            UserError: the file is damaged, or the array is none of images, or of others than the labels.
        """
        with _opened(self.file) as arrays:
            images = checked(_array(arrays, self.images, self.file), self.name)
            labels = None
            if self.labels is not None:
                where = f"{self.file.shown}, {self.labels}"
                labels = checked_labels(_array(arrays, self.labels, self.file), len(images), where)
        yield from Array(images, labels, self.name, self.side).read(broken)


def _chosen(
    names: tuple[str, ...], field: str, label_field: str | None, shown: str
) -> list[tuple[str, str | None, Side | None]]:
    """(images, labels, side) of the arrays that are meant."""
    if label_field not in (None, "label", *names):
        raise UserError(
            f"{shown} has no array {label_field!r} (--data.label-field); there are {listed(names)}."
        )
    for one in (field, f"{field}s"):
        if one in names:
            given = (label_field, f"{label_field}s") if label_field else ()
            labels = next((name for name in given if name in names), None)
            return [(one, labels, None)]
    if field != "image":
        raise UserError(
            f"{shown} has no array {field!r} (--data.field); there are {listed(names)}."
        )
    found = {part: _pair(names, part) for part in ("train", *_HELD_OUT)}
    if (train := found["train"]) is None:
        raise UserError(
            f"{shown} has no array 'image', 'x_train' or 'train_images'; there are {listed(names)}. Choose one "
            "with --data.field."
        )
    wanted = label_field is not None
    heldout = next((found[part] for part in _HELD_OUT if found[part] is not None), None)
    if heldout is None:
        return [(train[0], train[1] if wanted else None, None)]
    return [
        (train[0], train[1] if wanted else None, "train"),
        (heldout[0], heldout[1] if wanted else None, "heldout"),
    ]


def _pair(names: tuple[str, ...], part: str) -> tuple[str, str | None] | None:
    """The arrays of images and labels of a part, as Keras or MedMNIST name them."""
    for images, labels in (
        (f"x_{part}", f"y_{part}"),
        (f"X_{part}", f"y_{part}"),
        (f"{part}_images", f"{part}_labels"),
    ):
        if images in names:
            return images, labels if labels in names else None
    return None


@contextmanager
def _opened(file: File) -> Iterator[Any]:
    with file.opened() as raw, telling(file.shown, file.system):
        try:
            found = np.load(raw, allow_pickle=False)
        except (ValueError, zipfile.BadZipFile, EOFError) as error:
            raise _no_npz(file, error) from error
        if not hasattr(found, "files"):
            raise _no_npz(file, ValueError("it holds one array"))
        with found:
            yield found


def _array(arrays: Any, name: str, file: File) -> np.ndarray:
    try:
        found: np.ndarray = arrays[name]
    except (ValueError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise UserError(
            f"The array {name!r} of {file.shown} cannot be read (--data.root): {error}."
        ) from error
    return found


def _no_npz(file: File, error: Exception) -> UserError:
    why = str(error).rstrip(".")
    return UserError(f"{file.shown} is no npz file, or damaged (--data.root): {why}.")
