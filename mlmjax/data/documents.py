"""Documents, and what is done to their text before anything else sees it."""

import hashlib
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

_PARAGRAPH = re.compile(r"[ \t]*\n(?:[ \t]*\n)+\s*")
_CONTROL = {
    code: None
    for code in (*range(0xA0), 0xFEFF, 0xFFFE, 0xFFFF)
    if not chr(code).isprintable() and not chr(code).isspace()
}


@dataclass(frozen=True)
class Document:
    """A text with the unit that it is split by and the class that it belongs to.

    Attributes:
        text: the text.
        group: documents of one group never lie on both sides of a split (a file, a module).
        label: the class of the document, for probes; empty where there is none.
    """

    text: str
    group: str
    label: str = ""


@runtime_checkable
class Source(Protocol):
    """Anything that yields documents in a fixed order, as often as it is asked."""

    def __iter__(self) -> Iterator[Document]:
        """The documents."""
        ...

    def digest(self) -> str:
        """A hash of the raw content, much cheaper than reading the documents."""
        ...


def normalise(text: str) -> str:
    """Canonical form of a text: NFC, no control characters, single spaces, paragraphs kept.

    Line breaks inside a paragraph become spaces; blank lines become one ``"\\n\\n"``.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").translate(_CONTROL)
    text = unicodedata.normalize("NFC", text)
    paragraphs = (" ".join(part.split()) for part in _PARAGRAPH.split(text))
    return "\n\n".join(part for part in paragraphs if part)


def hash64(text: str) -> int:
    """The first 64 bits of a text's BLAKE2b hash."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
