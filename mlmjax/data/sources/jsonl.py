"""JSON lines: an object a line, of which one field is the text."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from mlmjax.data.documents import Broken, Document
from mlmjax.data.sources import lines
from mlmjax.data.sources.fields import Fields, parsed
from mlmjax.data.sources.files import File, Piece, digest
from mlmjax.data.sources.finding import Found, find
from mlmjax.data.sources.lines import UnreadableError, utf8


class JsonLines:
    """A document a line, in the order of the files' names; blank lines are passed over."""

    def __init__(self, root: str | Found, fields: Fields) -> None:
        """Find the files.

        Args:
            root: a file, a folder (all ``.jsonl`` and ``.ndjson`` in it, also packed, and packed
                ``.json``) or a pattern; local, or remote where ``fsspec`` reads it.
            fields: what to read of a line.

        Raises:
            UserError: there is nothing, or no such file.
        """
        found = root if isinstance(root, Found) else find(root)
        self.root = found.root
        self.fields = fields
        self._files = found.files("jsonl")

    def __str__(self) -> str:
        return self.root

    def parts(self) -> list["JsonLinesPart"]:
        """Files, those that are not packed in pieces that begin with a line.

        Raises:
            UserError: a file cannot be read, or changed.
        """
        return [
            JsonLinesPart(file, start, stop, self.fields)
            for file in self._files
            for start, stop in file.ranges(partial(_next_line, file))
        ]

    def digest(self) -> str:
        """Hash of the files' names and bytes, and of the fields."""
        return digest(self._files, "jsonl", self.fields)


@dataclass(frozen=True)
class JsonLinesPart(Piece):
    """A piece of a file.

    Attributes:
        fields: what to read of a line.
    """

    fields: Fields

    def read(self, broken: Broken) -> Iterator[Document]:
        """The documents; a line that is none is left out, if ``broken`` allows it.

        Raises:
            UserError: the file cannot be read, or changed.
        """
        shown = self.file.shown
        before: int | None = None
        if self.fields.id is not None:
            before = _lines_before(self.file, self.start)
        found = lines.records(self.file.blocks(self.start, self.stop), lines.LONGEST_RECORD)
        for number, (at, line) in enumerate(found, 1):
            place = shown if before is None else f"{shown}:{before + number}"
            try:
                record = _object(line, self.start + at)
                document = None if record is None else self.fields.document(record, place)
            except UnreadableError as why:
                before = _lines_before(self.file, self.start) if before is None else before
                broken(f"{shown}:{before + number}: {why}")
                continue
            if document is not None:
                yield document


def _object(line: bytes | None, place: int) -> dict[str, object] | None:
    """The object of a line; none where it is blank."""
    if line is None:
        raise UnreadableError(f"longer than {lines.LONGEST_RECORD >> 20} MiB.")
    text = utf8(line, place)
    if place == 0:
        text = text.removeprefix("\ufeff")
    if not text or text.isspace():
        return None
    return parsed(text)


def _next_line(file: File, place: int) -> int | None:
    # The byte before may be the end of a line; what follows the last line end is no line.
    at = place - 1
    for block in file.blocks(at):
        if (end := block.find(b"\n")) >= 0:
            begin = at + end + 1
            return begin if begin < file.size else None
        at += len(block)
    return None


_counted: dict[tuple[str, str], tuple[int, int]] = {}
"""Of a file as it was found, the furthest place up to which line ends were counted, and how many."""


def _lines_before(file: File, place: int) -> int:
    """Line ends before a place. A process counts each byte once if it asks in order."""
    key = file.path, file.stamp
    at, count = _counted.get(key, (0, 0))
    if at > place:
        at = count = 0
    if at < place:
        count += sum(block.count(b"\n") for block in file.blocks(at, place))
        _counted[key] = place, count
    return count
