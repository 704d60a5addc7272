"""Bytes to lines, and lines to documents: streamed, so that memory is bounded whatever a file holds."""

import itertools
import sys
from collections.abc import Iterable, Iterator


class UnreadableError(ValueError):
    """Why a document cannot be read; a source says where, and tells its reader (``Broken``)."""


ENDS = (b"\n", b"\r")
BOM = b"\xef\xbb\xbf"
LONGEST = 1 << 26
"""Bytes after which a document of plain text is cut."""
LONGEST_RECORD = 1 << 28
"""Bytes of a line of JSON that are not read any more."""


def lines(blocks: Iterable[bytes], longest: int) -> Iterator[bytes]:
    """Lines with their ends (LF, CRLF or CR).

    A longer line comes in pieces of at most ``longest`` bytes, cut between characters.
    """
    begun: list[bytes] = []
    size = 0
    for block in _whole_ends(blocks):
        found = block.splitlines(keepends=True)
        if begun and found:
            begun.append(found.pop(0))
            size += len(begun[-1])
            if size > longest or begun[-1].endswith(ENDS):
                *pieces, last = _pieces(b"".join(begun), longest)
                yield from pieces
                begun, size = [last], len(last)
                if last.endswith(ENDS):
                    yield last
                    begun, size = [], 0
        if not found:
            continue
        if len(block) > longest:
            found = [piece for line in found for piece in _pieces(line, longest)]
        last = found.pop()
        yield from found
        if last.endswith(ENDS):
            yield last
        else:
            begun, size = [last], len(last)
    if begun:
        yield b"".join(begun)


def _whole_ends(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The blocks divided elsewhere: never between CR and LF."""
    held = b""
    for block in blocks:
        block = held + block if held else block
        held = b"\r" if block.endswith(b"\r") else b""
        yield block[:-1] if held else block
    if held:
        yield held


def _pieces(line: bytes, longest: int) -> Iterator[bytes]:
    start = 0
    while len(line) - start > longest:
        cut = start + longest
        while cut > start + longest - 3 and line[cut] & 0xC0 == 0x80:
            cut -= 1
        if line[cut - 1 : cut] == b"\r":
            cut -= 1
        yield line[start:cut]
        start = cut
    yield line[start:]


def documents(
    found: Iterable[bytes], *, start: int, gap: int | None, longest: int
) -> Iterator[tuple[int, bytearray]]:
    """(place of the first byte, content) of each document.

    Args:
        found: lines, as :func:`lines` gives them.
        start: place of the first byte of the first line; at 0 a byte order mark is left out.
        gap: blank lines, or more, that separate documents; 0: each line is a document; none: all is
            one.
        longest: bytes after which a document is cut, before a line.

    Returns:
        From the first line that is not blank to the end of the last.
    """
    found = iter(found)
    first = next(found, b"")
    if start == 0 and first.startswith(BOM):
        first, start = first.removeprefix(BOM), len(BOM)
    gap = sys.maxsize if gap is None else gap
    kept = bytearray()  # rather than a list of lines, which may be very short
    held = bytearray()  # blank lines that may turn out to lie within a document
    begin = at = start
    size = blank = 0
    ended = True
    for line in itertools.chain([first] if first else [], found):
        at += len(line)
        if ended and line.isspace():
            blank += 1
            size += len(line)
            if size <= longest:
                held += line
            continue
        size += len(line)
        if kept and (size > longest or (ended and blank >= gap)):
            yield begin, kept
            kept = bytearray()
        if kept:
            kept += held
        else:
            begin, size = at - len(line), len(line)
        kept += line
        if blank:
            held, blank = bytearray(), 0
        ended = line.endswith(ENDS)
    if kept:
        yield begin, kept


def next_document(found: Iterable[bytes], *, start: int, gap: int) -> int | None:
    """The first place where a document begins, after one that may lie anywhere.

    Args:
        found: lines from that place on; the first counts for nothing.
        start: the place.
        gap: as for :func:`documents`.
    """
    at, blank, ended, within = start, 0, False, True
    for line in found:
        if within:
            within = not line.endswith(ENDS)
        elif ended and line.isspace():
            blank += 1
        elif ended and blank >= gap:
            return at
        else:
            blank = 0
        ended = line.endswith(ENDS)
        at += len(line)
    return None


def records(blocks: Iterable[bytes], longest: int) -> Iterator[tuple[int, bytes | None]]:
    """(place of the first byte, content) of each line that LF ends; no content where it is longer."""
    begun: list[bytes] = []
    at = length = 0
    for block in blocks:
        first, *others = block.split(b"\n")
        begun.append(first)
        length += len(first)
        for line in others:
            yield at, b"".join(begun) if length <= longest else None
            at += length + 1
            begun, length = [line], len(line)
        if length > longest:
            begun = []
    if length:
        yield at, b"".join(begun) if length <= longest else None


def utf8(content: bytes | bytearray, place: int = 0) -> str:
    """The text of bytes.

    Args:
        content: UTF-8.
        place: of the first byte in its file, for the message.

    Raises:
        UnreadableError: it is not UTF-8.
    """
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UnreadableError(
            f"not UTF-8: byte {place + error.start} is 0x{content[error.start]:02x}."
        ) from error
