"""Folders of image files, of which each folder may be a class."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from mlmjax.core.errors import UserError
from mlmjax.data.documents import Broken
from mlmjax.data.image_sources.base import Picture, Side
from mlmjax.data.sources.files import File, digest
from mlmjax.data.sources.finding import Found

SUFFIXES = frozenset(
    {
        *(
            ".jpg",
            ".jpeg",
            ".jpe",
            ".jfif",
            ".png",
            ".bmp",
            ".dib",
            ".gif",
            ".tif",
            ".tiff",
            ".webp",
        ),
        *(".avif", ".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".tga"),
    }
)
"""Names of files in a folder that are taken for images."""

TRAINED = ("train", "training")
HELD_OUT = ("val", "valid", "validation", "heldout", "test", "testing")
"""Folders that are parts of a data set and no classes; of those that are there the first is held out."""


@dataclass(frozen=True)
class ImageFile:
    """A file of an image, which is a part of its source.

    Attributes:
        file: the file.
        label: the folder that is its class; none where it lies in none.
        side: which of the source's parts it lies in.
    """

    file: File
    label: str | None
    side: Side | None

    @property
    def name(self) -> str:
        """The file."""
        return self.file.shown

    @property
    def size(self) -> int:
        """Bytes."""
        return self.file.size

    def read(self, broken: Broken) -> Iterator[Picture]:
        """The file, not yet decoded.

        Raises:
            UserError: it cannot be read, or changed.
        """
        with self.file.opened() as raw:
            content = raw.read()
        yield Picture(content, self.name, self.label, self.side)


class ImageFolder:
    """An image a file, in the order of names.

    The first folder below the root is the class. Where the only folders there are ``train`` and ``val``, or
    ``test`` (see :data:`HELD_OUT`), these are the source's own parts, and the folders below them the classes.
    """

    classes: tuple[str, ...] = ()

    def __init__(self, found: Found) -> None:
        """Find the files.

        Args:
            found: what there is under the root; of a folder all files with the suffixes of images, of a
                pattern all files.

        Raises:
            UserError: there is none.
        """
        self.root = found.root
        names = [name for name, _ in found.paths if not found.folder or is_image(name)]
        if not names:
            what = "The folder holds no image" if found.folder else "There is no image"
            raise UserError(
                f"{what}: {found.root} (--data.root). Images are told by their names "
                f"({', '.join(sorted(SUFFIXES))}); others can be given by a pattern in quotes, or by "
                "--data.format."
            )
        tops = {_parts(name)[0] if len(_parts(name)) > 1 else "" for name in names}
        known = {top.lower(): top for top in tops}
        self._heldout, strip = "", set(known) <= {*TRAINED, *HELD_OUT}
        if strip and len(known) > 1:
            if not set(known) & set(TRAINED):
                raise UserError(
                    f"{found.root} holds {' and '.join(sorted(tops))}, but no folder train (--data.root): give "
                    "one of them."
                )
            self._heldout = known[next(name for name in HELD_OUT if name in known)]
        wanted = {
            name: self._place(_parts(name), strip)
            for name in names
            if not self._heldout or _parts(name)[0] in (self._heldout, *map(known.get, TRAINED))
        }
        self._files = [
            ImageFile(file, *place)
            for file, place in zip(found.those(wanted.__contains__), wanted.values(), strict=True)
        ]
        self.ignored = len(found.paths) - len(self._files)

    def __str__(self) -> str:
        return self.root

    def parts(self) -> list[ImageFile]:
        """The files."""
        return self._files

    def digest(self) -> str:
        """Hash of the files' names and bytes."""
        return digest((each.file for each in self._files), "folder")

    def _place(self, parts: tuple[str, ...], strip: bool) -> tuple[str | None, Side | None]:
        """Class and side of a file."""
        side: Side | None = None
        if self._heldout:
            side = "heldout" if parts[0] == self._heldout else "train"
        below = parts[1:] if strip else parts
        # A name that is not UTF-8 could not be written down.
        label = os.fsencode(below[0]).decode(errors="replace") if len(below) > 1 else None
        return label, side


def is_image(name: str) -> bool:
    """Whether a file in a folder is taken for an image; hidden files are not."""
    path = PurePosixPath(name)
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _parts(name: str) -> tuple[str, ...]:
    return PurePosixPath(name).parts
