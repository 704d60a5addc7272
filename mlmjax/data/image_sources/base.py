"""Images as a source gives them, before anything is done to them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from mlmjax.data.documents import Broken
from mlmjax.data.image_decoding import Pixels

Side = Literal["train", "heldout"]
"""Which of a source's own parts an image is of."""


@dataclass(frozen=True)
class Picture:
    """An image, as a file or as pixels.

    Attributes:
        content: a file that Pillow reads, or pixels.
        place: where it lies, for messages.
        label: its class; none where it has none. A number is a place among the source's ``classes``, where
            it knows them.
        side: which of the source's own parts it is of; none where the source has one.
    """

    content: bytes | Pixels
    place: str
    label: str | int | None = None
    side: Side | None = None


@runtime_checkable
class ImagePart(Protocol):
    """A piece of a source, which any process can read: picklable, and cheap to make."""

    @property
    def name(self) -> str:
        """The piece, for messages and progress."""
        ...

    @property
    def size(self) -> int:
        """Bytes that reading takes."""
        ...

    def read(self, broken: Broken) -> Iterator[Picture]:
        """The images, streamed.

        Args:
            broken: told of every image that cannot be read.

        Raises:
            UserError: the part as a whole cannot be read, or changed since it was planned.
        """
        ...


@runtime_checkable
class ImageSource(Protocol):
    """Images in a fixed order, in parts that can be read apart, as often as it is asked."""

    classes: tuple[str, ...]
    """The classes' names, where the source says them; else empty, and they are found in the images."""
    ignored: int
    """Files beside the images that are not meant."""

    def parts(self) -> Sequence[ImagePart]:
        """The parts in a fixed order; their images in turn are the source's images."""
        ...

    def digest(self) -> str:
        """A hash of the raw content and of the options that decide how it is read."""
        ...

    def __str__(self) -> str:
        """What the user gave, for messages."""
        ...
