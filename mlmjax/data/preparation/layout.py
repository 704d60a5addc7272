"""From the tokens of documents to rows of one length, with nothing lost and little padding."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Int, Shaped

from mlmjax.core.vocabulary import Vocabulary
from mlmjax.data.documents import hash64
from mlmjax.data.rows import row_dtype

TOKEN = np.dtype([("id", "<i4"), ("word", "?"), ("sentence", "?")])
"""A token of a document: its id, and whether it starts a word and a sentence."""

WINDOW = 256
"""Rows that are open at a time while documents are packed."""
SHORTEST = 3
"""Tokens of the shortest document, special ones included."""
_NONE = np.zeros((0, 2), np.int64)

Tokens = Shaped[np.ndarray, "_"]
Table = Shaped[np.ndarray, "_"]


class FullRows:
    """``[CLS]`` sentences ``[SEP]``: consecutive text up to the length, in the documents' order.

    As FULL-SENTENCES of RoBERTa (Liu et al. 2019, section 4.2): a row that reaches the end of a
    document goes on with the next one after a ``[SEP]``, so rows are full whatever the documents'
    lengths. A row ends at the end of a sentence if one lies in its last twentieth, otherwise at the
    end of a word, and the next row goes on from there: no token is lost.
    """

    def __init__(self, length: int, vocabulary: Vocabulary) -> None:
        self._length, self._vocabulary = length, vocabulary
        self._separator = np.array([(vocabulary.separator, True, True)], TOKEN)
        self._waiting: list[np.ndarray] = []
        self._owners: list[tuple[int, int]] = []
        self._size, self._ended = 0, True
        self.cut = 0
        """Rows that end before their last document does."""

    def add(self, tokens: Tokens, document: int, *, last: bool = True) -> Table:
        """The rows that a document completes; often none, as documents are gathered first.

        Args:
            tokens: the document's, or the next of them.
            document: its id.
            last: whether the document ends with them.
        """
        if not self._owners or self._owners[-1][1] != document or self._ended:
            self._owners.append((self._size, document))
        self._waiting += [tokens, self._separator] if last else [tokens]
        self._size += len(tokens) + int(last)
        self._ended = last
        return self._rows(last=False) if self._size > 64 * self._length else self._rows_of(_NONE)

    def finish(self) -> Table:
        """The rows of what is still waiting, the last one padded."""
        return self._rows(last=True) if self._waiting else self._rows_of(_NONE)

    def _rows(self, *, last: bool) -> Table:
        stream = np.concatenate(self._waiting)
        separators = stream["id"] == self._vocabulary.separator
        room, begin, runs = self._length - 2, 0, []
        after = _cutter(stream, room)
        while begin < len(stream) and (last or begin + room < len(stream)):
            end = after(begin)
            runs.append((begin, end - int(separators[end - 1])))
            whole = bool(separators[end - 1]) or (end < len(stream) and bool(separators[end]))
            self.cut += int(not whole)
            # The row ends with a separator in any case: one that follows is not the next row's.
            begin = end + int(end < len(stream) and separators[end])
        rows = self._rows_of(np.array(runs, np.int64).reshape(-1, 2), stream)
        self._waiting, self._size = [stream[begin:]], len(stream) - begin
        starts = np.array([start for start, _ in self._owners])
        first = int(np.searchsorted(starts, begin, "right")) - 1
        self._owners = [(max(start - begin, 0), owner) for start, owner in self._owners[first:]]
        return rows

    def _rows_of(self, runs: Int[np.ndarray, "rows 2"], stream: Tokens | None = None) -> Table:
        """Rows of ``runs``, each the begin and the end of a row's tokens in the stream."""
        rows = np.zeros(len(runs), row_dtype(self._length))
        if stream is None or not len(runs):
            return rows
        begins, ends = runs[:, :1], runs[:, 1:]
        places = begins + np.arange(self._length - 2)
        inside = places < ends
        run = stream[np.minimum(places, len(stream) - 1)]
        rows["tokens"] = self._vocabulary.padding
        rows["tokens"][:, 0] = self._vocabulary.start
        rows["tokens"][:, 1:-1][inside] = run["id"][inside]
        rows["used"] = (ends - begins)[:, 0] + 2
        rows["tokens"][np.arange(len(rows)), rows["used"] - 1] = self._vocabulary.separator
        text = inside & (run["id"] != self._vocabulary.separator)
        rows["word_starts"][:, 1:-1] = run["word"] & text
        rows["sentence_starts"][:, 1:-1] = run["sentence"] & text
        rows["word_starts"][:, 1] = rows["sentence_starts"][:, 1] = True
        starts = np.array([start for start, _ in self._owners])
        owners = np.array([owner for _, owner in self._owners], np.uint64)
        rows["document"] = owners[np.searchsorted(starts, runs[:, 0], "right") - 1]
        return rows


class PackedRows:
    """``[CLS]`` text ``[SEP]`` of several documents in a row, each to be read by itself.

    First fit (Krell et al. 2021, "Efficient sequence packing without cross-contamination", section
    3): a document goes into the first open row that has room; where none has, a row is opened, and
    beyond a window of open rows the fullest is closed. A document longer than a row is cut at the
    ends of sentences, or of words, and each piece is laid like a document. No token is lost.
    """

    def __init__(self, length: int, vocabulary: Vocabulary, *, documents: int) -> None:
        """Rows of ``length`` tokens with at most ``documents`` documents each."""
        self._length, self._vocabulary, self._documents = length, vocabulary, documents
        self._room = np.zeros(0, np.int64)
        self._open: list[list[tuple[np.ndarray, int]]] = []
        self._rest, self._pieces = np.zeros(0, TOKEN), 0
        self.cut = 0
        """Pieces of documents that go on in another row."""

    def add(self, tokens: Tokens, document: int, *, last: bool = True) -> Table:
        """The rows that a document completes; see :meth:`FullRows.add`."""
        tokens = np.concatenate([self._rest, tokens]) if len(self._rest) else tokens
        closed = []
        room, begin = self._length - 2, 0
        after = _cutter(tokens, room)
        while begin < len(tokens) and (last or begin + room < len(tokens)):
            end = after(begin)
            closed += self._put(tokens[begin:end], piece_id(document, self._pieces))
            begin, self._pieces = end, self._pieces + 1
        self._rest = tokens[begin:]
        if last:
            self.cut += self._pieces - 1
            self._pieces = 0
        return self._rows_of(closed)

    def finish(self) -> Table:
        """The rows that are still open."""
        rows = self._rows_of(self._open)
        self._open, self._room = [], self._room[:0]
        return rows

    def _put(self, tokens: Tokens, document: int) -> list[list[tuple[np.ndarray, int]]]:
        """Lay a piece; the rows that are closed for it."""
        size = len(tokens) + 2
        fits = self._room >= size
        place = int(fits.argmax()) if fits.any() else len(self._open)
        if place == len(self._open):
            self._open.append([])
            self._room = np.append(self._room, self._length)
        self._open[place].append((tokens, document))
        self._room[place] -= size
        if self._room[place] < SHORTEST or len(self._open[place]) == self._documents:
            return [self._close(place)]
        return [self._close(int(self._room.argmin()))] if len(self._open) > WINDOW else []

    def _close(self, place: int) -> list[tuple[np.ndarray, int]]:
        self._room = np.delete(self._room, place)
        return self._open.pop(place)

    def _rows_of(self, closed: list[list[tuple[np.ndarray, int]]]) -> Table:
        rows = np.zeros(len(closed), row_dtype(self._length, documents=self._documents))
        rows["tokens"] = self._vocabulary.padding
        rows["documents"] = self._documents
        for row, pieces in zip(rows, closed, strict=True):
            begin = 0
            row["document"] = pieces[0][1]
            for number, (tokens, document) in enumerate(pieces):
                end = begin + len(tokens) + 2
                row["tokens"][begin] = self._vocabulary.start
                row["tokens"][begin + 1 : end - 1] = tokens["id"]
                row["tokens"][end - 1] = self._vocabulary.separator
                row["word_starts"][begin + 1 : end - 1] = tokens["word"]
                row["sentence_starts"][begin + 1 : end - 1] = tokens["sentence"]
                row["word_starts"][begin + 1] = row["sentence_starts"][begin + 1] = True
                row["documents"][begin:end] = number
                row["document_ids"][number] = document
                begin = end
            row["used"] = begin
        return rows


def piece_id(document: int, number: int) -> int:
    """The id of a document's piece in packed rows; the first piece has the document's own."""
    return hash64(f"{document} {number}") if number else document


class PairRows:
    """``[CLS] A [SEP] B [SEP]``: two runs of sentences of one document, B the continuation of A.

    For next-sentence prediction (Devlin et al. 2019, section 3.1); another document's B takes its
    place when rows are read (:mod:`mlmjax.data.pairs`), not here. A document is cut into runs that
    fill a row; the last run reaches back so that it fills one too. B starts at one of the sentences
    of the run, drawn by hash; a sentence longer than half a row counts as several. A document of
    one short sentence gives no row.
    """

    def __init__(self, length: int, vocabulary: Vocabulary) -> None:
        self._length, self._vocabulary = length, vocabulary
        self._written = 0
        self._waiting: list[np.ndarray] = []
        self.documents = 0
        """Documents that gave rows."""
        self.single = 0
        """Documents of one piece, which gave none."""
        self.cut = 0
        """Rows that end before their document does."""

    def add(self, tokens: Tokens, document: int, *, last: bool = True) -> Table:
        """The rows of a document, once it is whole; see :meth:`FullRows.add`."""
        self._waiting.append(tokens)
        if not last:
            return np.zeros(0, row_dtype(self._length))
        tokens = np.concatenate(self._waiting) if len(self._waiting) > 1 else tokens
        self._waiting = []
        room = self._length - 3
        pieces = _pieces(tokens, room // 2)
        if len(pieces) < 2:
            self.single += 1
            return np.zeros(0, row_dtype(self._length))
        runs = [(begin, min(begin + room, len(tokens))) for begin in range(0, len(tokens), room)]
        if len(runs) > 1:
            back = len(tokens) - room
            words = np.flatnonzero(tokens["word"][back : runs[-1][0] + 1])
            runs[-1] = (back + int(words[0]) if len(words) else back, len(tokens))
            if not _inside(pieces, *runs[-1]).size:
                runs[-1] = (back, len(tokens))
        rows = np.zeros(len(runs), row_dtype(self._length))
        rows["tokens"] = self._vocabulary.padding
        rows["first"], rows["siblings"] = self._written, len(runs)
        rows["document"] = document
        for place, (row, (begin, end)) in enumerate(zip(rows, runs, strict=True)):
            choices = _inside(pieces, begin, end)
            middle = choices[hash64(f"{document} {place}") % len(choices)]
            self._fill(row, tokens[begin:middle], tokens[middle:end])
        self._written += len(rows)
        self.documents += 1
        self.cut += len(runs) - 1
        return rows

    def finish(self) -> Table:
        """Nothing: no row waits for another document."""
        return np.zeros(0, row_dtype(self._length))

    def _fill(self, row: np.void, first: Tokens, second: Tokens) -> None:
        start, separator = self._vocabulary.start, self._vocabulary.separator
        used = len(first) + len(second) + 3
        row["tokens"][0] = start
        row["used"] = used
        row["segments"][len(first) + 2 : used] = 1
        for begin, part in ((1, first), (len(first) + 2, second)):
            end = begin + len(part)
            row["tokens"][begin:end] = part["id"]
            row["tokens"][end] = separator
            row["word_starts"][begin:end] = part["word"]
            row["sentence_starts"][begin:end] = part["sentence"]
            row["word_starts"][begin] = row["sentence_starts"][begin] = True


def _cutter(stream: Tokens, room: int) -> Callable[[int], int]:
    """Where the row that starts at a place ends: after a sentence, a word, or where it is full."""
    places = np.arange(len(stream))
    windows = [
        (np.maximum.accumulate(np.where(stream["sentence"], places, 0)), room // 20),
        (np.maximum.accumulate(np.where(stream["word"], places, 0)), room // 4),
    ]

    def after(begin: int) -> int:
        full = begin + room
        if full >= len(stream):
            return len(stream)
        for latest, window in windows:
            if latest[full] >= max(full - window, begin + 1):
                return int(latest[full])
        return full

    return after


def _pieces(tokens: Tokens, longest: int) -> Int[np.ndarray, " pieces"]:
    """Where pieces start: sentences, and parts of those that are longer than ``longest``."""
    sentences = np.flatnonzero(tokens["sentence"])
    starts = [0]
    for end in [*sentences[sentences > 0], len(tokens)]:
        while end - starts[-1] > longest:
            words = np.flatnonzero(tokens["word"][starts[-1] + 1 : starts[-1] + longest + 1])
            starts.append(starts[-1] + 1 + int(words[-1]) if len(words) else starts[-1] + longest)
        starts.append(int(end))
    return np.array(starts[:-1])


def _inside(pieces: Int[np.ndarray, " pieces"], begin: int, end: int) -> Int[np.ndarray, " some"]:
    return pieces[np.searchsorted(pieces, begin, "right") : np.searchsorted(pieces, end, "left")]
