"""From the tokens of documents to rows of one length, with nothing lost and little padding."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Int, Shaped

from mlmjax.core.vocabulary import Vocabulary
from mlmjax.data.documents import hash64
from mlmjax.data.rows import row_dtype

TOKEN = np.dtype([("id", "<i4"), ("word", "?"), ("sentence", "?"), ("document", "<u8")])
"""A token of a document: its id, whether it starts a word and a sentence, the document's hash."""

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
        self._separator = np.array([(vocabulary.separator, True, True, 0)], TOKEN)
        self._waiting: list[np.ndarray] = []
        self._size = 0

    def add(self, tokens: Tokens) -> Table:
        """The rows that a document completes; often none, as documents are gathered first."""
        self._waiting += [tokens, self._separator]
        self._size += len(tokens) + 1
        return self._rows(last=False) if self._size > 64 * self._length else self._rows_of([])

    def finish(self) -> Table:
        """The rows of what is still waiting, the last one padded."""
        return self._rows(last=True) if self._waiting else self._rows_of([])

    def _rows(self, *, last: bool) -> Table:
        stream = np.concatenate(self._waiting)
        separators = stream["id"] == self._vocabulary.separator
        room, begin, runs = self._length - 2, 0, []
        after = _cutter(stream, room)
        while begin < len(stream) and (last or begin + room < len(stream)):
            end = after(begin)
            runs.append(stream[begin : end - int(separators[end - 1])])
            # The row ends with a separator in any case: one that follows is not the next row's.
            begin = end + int(end < len(stream) and separators[end])
        self._waiting, self._size = [stream[begin:]], len(stream) - begin
        return self._rows_of(runs)

    def _rows_of(self, runs: list[np.ndarray]) -> Table:
        rows = np.zeros(len(runs), row_dtype(self._length))
        rows["tokens"] = self._vocabulary.padding
        rows["tokens"][:, 0] = self._vocabulary.start
        for row, run in zip(rows, runs, strict=True):
            size = len(run)
            row["tokens"][1 : size + 1] = run["id"]
            row["tokens"][size + 1] = self._vocabulary.separator
            row["word_starts"][1 : size + 1] = run["word"] & (
                run["id"] != self._vocabulary.separator
            )
            row["word_starts"][1] = True
            row["used"] = size + 2
            row["document"] = run["document"][0]
        return rows


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
        self.documents = 0
        """Documents that gave rows."""
        self.single = 0
        """Documents of one piece, which gave none."""

    def add(self, tokens: Tokens) -> Table:
        """The rows of a document."""
        room = self._length - 3
        pieces = _pieces(tokens, room // 2)
        if len(pieces) < 2:
            self.single += 1
            return np.zeros(0, row_dtype(self._length))
        runs = [(begin, min(begin + room, len(tokens))) for begin in range(0, len(tokens), room)]
        if len(runs) > 1:
            back = len(tokens) - room
            words = np.flatnonzero(tokens["word"][back:])
            runs[-1] = (back + int(words[0]) if len(words) else back, len(tokens))
            if not _inside(pieces, *runs[-1]).size:
                runs[-1] = (back, len(tokens))
        rows = np.zeros(len(runs), row_dtype(self._length))
        rows["tokens"] = self._vocabulary.padding
        rows["first"], rows["siblings"] = self._written, len(runs)
        rows["document"] = tokens["document"][0]
        for place, (row, (begin, end)) in enumerate(zip(rows, runs, strict=True)):
            choices = _inside(pieces, begin, end)
            middle = choices[hash64(f"{tokens['document'][0]} {place}") % len(choices)]
            self._fill(row, tokens[begin:middle], tokens[middle:end])
        self._written += len(rows)
        self.documents += 1
        return rows

    def finish(self) -> Table:
        """Nothing: no row waits for another document."""
        return np.zeros(0, row_dtype(self._length))

    def _fill(self, row: np.void, first: Tokens, second: Tokens) -> None:
        start, separator = self._vocabulary.start, self._vocabulary.separator
        used = len(first) + len(second) + 3
        ids = [start, *first["id"], separator, *second["id"], separator]
        row["tokens"][:used] = ids
        row["used"] = used
        row["segments"][len(first) + 2 : used] = 1
        for begin, part in ((1, first), (len(first) + 2, second)):
            row["word_starts"][begin : begin + len(part)] = part["word"]
            row["word_starts"][begin] = True


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
