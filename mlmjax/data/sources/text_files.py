"""Plain text: files in UTF-8, divided into documents at blank lines, at line ends or not at all."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

from mlmjax.data.documents import Broken, Document
from mlmjax.data.sources import lines
from mlmjax.data.sources.files import File, Piece, digest
from mlmjax.data.sources.finding import Found, find
from mlmjax.data.sources.lines import UnreadableError, utf8

Documents = Literal["blank_lines", "blank_line", "line", "file"]
"""What separates documents: two or more blank lines, one or more, each line end; or nothing."""

_GAPS = {"blank_lines": 2, "blank_line": 1, "line": 0, "file": None}


class TextFiles:
    """The documents of plain-text files in UTF-8, in the order of their names.

    A file among others is a group, so it lies on one side of a split; the documents of an only file are
    groups of their own. What is longer than 64 MiB is taken as several documents, cut at a line end, or
    between characters where there is none.
    """

    def __init__(self, root: str | Found, documents: Documents = "blank_lines") -> None:
        """Find the files.

        Args:
            root: a file, a folder (all ``.txt``, ``.txt.gz`` and ``.txt.zst`` in it, at any depth) or a
                pattern such as ``books/**/*.txt``; local, or remote where ``fsspec`` reads it.
            documents: what separates documents.

        Raises:
            UserError: there is nothing, or no such file.
        """
        found = root if isinstance(root, Found) else find(root)
        self.root = found.root
        self.documents = documents
        self._files = found.files("text")

    def __str__(self) -> str:
        return self.root

    def parts(self) -> list["TextPart"]:
        """Files, those that are not packed in pieces that begin with a document.

        Raises:
            UserError: a file cannot be read, or changed.
        """
        return [
            TextPart(file, start, stop, self.documents, grouped=len(self._files) > 1)
            for file in self._files
            for start, stop in file.ranges(partial(self._begins, file))
        ]

    def digest(self) -> str:
        """Hash of the files' names and bytes."""
        return digest(self._files, "text", self.documents)

    def _begins(self, file: File, place: int) -> int | None:
        gap = _GAPS[self.documents]
        if gap is None:
            return None
        found = lines.lines(file.blocks(place), lines.LONGEST)
        return lines.next_document(found, start=place, gap=gap)


@dataclass(frozen=True)
class TextPart(Piece):
    """A piece of a file.

    Attributes:
        documents: what separates documents.
        grouped: whether the file is the group of its documents.
    """

    documents: Documents
    grouped: bool

    def read(self, broken: Broken) -> Iterator[Document]:
        """The documents; one that is not UTF-8 is left out, if ``broken`` allows it.

        Raises:
            UserError: the file cannot be read, or changed.
        """
        file = self.file
        found = lines.documents(
            lines.lines(file.blocks(self.start, self.stop), lines.LONGEST),
            start=self.start,
            gap=_GAPS[self.documents],
            longest=lines.LONGEST,
        )
        for place, content in found:
            try:
                text = utf8(content, place)
            except UnreadableError as why:
                broken(
                    f"{file.shown}: {why} Convert the file (--data.root), for example with "
                    "iconv -t UTF-8."
                )
                continue
            text = text.removesuffix("\n").removesuffix("\r")
            if "\r" in text:
                text = text.replace("\r\n", "\n").replace("\r", "\n")
            if not text.isspace():
                group = file.name if self.grouped else ""
                yield Document(text, group, place=file.shown)
