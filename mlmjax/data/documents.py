"""Documents, and what is done to their text before anything else sees it."""

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from mlmjax.core.errors import UserError

_PARAGRAPH = re.compile(r"\n[ \t]*\n")
# what is neither a space nor printable among ASCII and Latin-1, byte order marks and non-characters
_CONTROLS = r"\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff\ufffe\uffff"
_CONTROL = re.compile(f"[{_CONTROLS}]")
_PIECE = 1 << 20
_CUT = re.compile(rf"(?<=\s)[^\s{_CONTROLS}]")


@dataclass(frozen=True)
class Document:
    """A text with the unit that it is split by and the class that it belongs to.

    Attributes:
        text: the text; None where the source holds a null.
        group: documents of one group never lie on both sides of a split (a file, a module); empty
            where the document is its own group.
        label: the class of the document; empty where there is none, or where it is not read.
        id: the source's own id, unique over all sources where it is given; empty where there is none.
        place: where the document begins, for messages: ``file:line`` or ``file:row``; may be empty.
        second: of a pair of texts the second, or None for a null; empty where the document is one text.
    """

    text: str | None
    group: str = ""
    label: str = ""
    id: str = ""
    place: str = ""
    second: str | None = ""


Broken: TypeAlias = Callable[[str], None]
"""Told of a document that cannot be read, ``broken("a.jsonl:17: not JSON: ...")``: raises
:class:`~mlmjax.core.errors.UserError`, or counts and returns, and reading goes on with the next."""


def raise_broken(message: str) -> None:
    """The :data:`Broken` that stops at the first.

    Raises:
        UserError: always.
    """
    raise UserError(message)


@runtime_checkable
class Part(Protocol):
    """A piece of a source, which any process can read: picklable, and cheap to make."""

    @property
    def name(self) -> str:
        """The piece, for messages and progress."""
        ...

    @property
    def size(self) -> int:
        """Bytes that reading takes (packed, where the file is packed)."""
        ...

    def read(self, broken: Broken) -> Iterator[Document]:
        """The documents, streamed.

        Args:
            broken: told of every document that cannot be read.

        Raises:
            UserError: the part as a whole cannot be read, or changed since it was planned.
        """
        ...


@runtime_checkable
class Source(Protocol):
    """Documents in a fixed order, in parts that can be read apart, as often as it is asked."""

    def parts(self) -> Sequence[Part]:
        """The parts in a fixed order; their documents in turn are the source's documents."""
        ...

    def digest(self) -> str:
        """A hash of the raw content and of the options that decide how it is read."""
        ...

    def __str__(self) -> str:
        """What the user gave, for messages."""
        ...


def documents_of(source: Source, broken: Broken = raise_broken) -> Iterator[Document]:
    """The documents of all parts of a source, in order."""
    for part in source.parts():
        yield from part.read(broken)


def normalise(text: str) -> str:
    """Canonical form of a text: NFC, no control characters, single spaces, paragraphs kept.

    Line breaks inside a paragraph become spaces; blank lines become one ``"\\n\\n"``. Beside the text
    and its canonical form, a long text takes the memory of one piece of it.
    """
    if len(text) <= _PIECE:
        return "\n\n".join(filter(None, _paragraphs(text)))
    found: list[str] = []
    between = ""
    for piece in _pieces(text):
        paragraphs = _paragraphs(piece)
        if joined := "\n\n".join(filter(None, paragraphs)):
            found += [between, joined]
            between = " " if paragraphs[-1] else "\n\n"
    return "".join(found)


def _paragraphs(text: str) -> list[str]:
    """Canonical paragraphs; the last is empty where a paragraph break ends the text."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = unicodedata.normalize("NFC", _CONTROL.sub("", text))
    return [" ".join(part.split()) for part in _PARAGRAPH.split(text)]


def _pieces(text: str) -> Iterator[str]:
    """Pieces of about a million characters. Each begins right behind white space, with which nothing
    composes, so that they are normalised as one text is."""
    begin = 0
    while cut := _CUT.search(text, begin + _PIECE):
        yield text[begin : cut.start()]
        begin = cut.start()
    yield text[begin:]


def hash64(text: str) -> int:
    """The first 64 bits of a text's BLAKE2b hash."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
