"""Fixed-shape rows of tokens in ArrayRecord: written in order, read at random."""

from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter
from jaxtyping import Float, Int, Shaped

from mlmjax.core.errors import UserError
from mlmjax.data.draws import words
from mlmjax.data.pairs import draw_seconds

OPEN = 256
"""Shards that are held open at a time."""

Arrays = dict[str, np.ndarray]


@cache
def row_dtype(length: int, *, documents: int = 0, labelled: bool = False) -> np.dtype:
    """One row: a fixed record of numbers.

    ``used`` counts the tokens that are not padding; ``document`` is the hash of the (first)
    document's text; the document's rows are ``first`` .. ``first + siblings - 1`` of its shard.
    Packed rows of up to ``documents`` documents also hold each token's document, counted from 0
    within the row (``documents`` where there is none), and the documents' ids. Rows of one document
    (``labelled``) hold the place of its class among all, -1 where it has none.
    """
    packed = [("documents", "<u2", (length,)), ("document_ids", "<u8", (documents,))]
    return np.dtype(
        [
            ("tokens", "<i4", (length,)),
            ("word_starts", "?", (length,)),
            ("sentence_starts", "?", (length,)),
            ("segments", "u1", (length,)),
            ("used", "<i4"),
            ("siblings", "<i4"),
            ("first", "<i8"),
            ("document", "<u8"),
            *(packed if documents else ()),
            *([("label", "<i4")] if labelled else ()),
        ]
    )


class RowWriter:
    """Appends rows to a file, each a record of its own so that any can be read alone."""

    def __init__(self, path: Path) -> None:
        self._writer = ArrayRecordWriter(str(path), "group_size:1,snappy")
        self.rows = 0

    def write(self, rows: Shaped[np.ndarray, " rows"]) -> None:
        """Append rows of :func:`row_dtype`."""
        for row in rows:
            self._writer.write(row.tobytes())
        self.rows += len(rows)

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()


class TextRows:
    """Rows of text in some files, read at random and from any number of threads."""

    def __init__(
        self,
        paths: Sequence[Path],
        sizes: Sequence[int],
        *,
        length: int,
        padding: int,
        frequency: Float[np.ndarray, " vocabulary"],
        pairs: bool = False,
        documents: int = 0,
        labelled: bool = False,
        labels: bool = False,
        streams: Sequence[int] | None = None,
    ) -> None:
        """Open the rows of some files; nothing is read yet.

        Args:
            paths: files that :class:`RowWriter` wrote; an example id counts through them.
            sizes: rows in each.
            length: tokens in a row.
            padding: the token that fills what a row does not use.
            frequency: each token's share of the training text.
            pairs: whether rows are pairs of texts for next-sentence prediction.
            documents: the most documents in a packed row; 0 where rows are not packed.
            labelled: whether rows hold a class, as those of one document do.
            labels: whether batches hold it.
            streams: rows of each source, in order; by default all are of one.
        """
        self.length, self.padding, self.frequency = length, padding, frequency
        self.pairs, self.documents, self.labels = pairs, documents, labels
        self._dtype = row_dtype(length, documents=documents, labelled=labelled)
        self._paths = list(paths)
        self._ends = np.cumsum([0, *sizes])
        ends = np.cumsum([0, *(streams if streams is not None else [len(self)])]).tolist()
        self.streams = list(pairwise(ends))
        """The first row of each source, and the one after its last."""
        self.empty = {"tokens": padding, "documents": documents, "labels": -1}
        """What stands in an array of a row that is none, where it is not 0."""
        # A file of its own for each block: a corpus has more of them than a process may hold open.
        self._reader = lru_cache(OPEN)(self._open)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(
        self, indices: Sequence[int] | Int[np.ndarray, " rows"]
    ) -> Shaped[np.ndarray, " rows"]:
        """The rows at some indices, as records of :func:`row_dtype`.

        Raises:
            UserError: a file is damaged.
        """
        wanted = np.asarray(indices, np.int64)
        found = np.zeros(len(wanted), self._dtype)
        shards = np.searchsorted(self._ends, wanted, "right") - 1
        for shard in np.unique(shards).tolist():
            places = np.flatnonzero(shards == shard)
            found[places] = self._read(shard, wanted[places] - self._ends[shard])
        found["first"] += self._ends[shards]
        return found

    def assemble(
        self, index: Int[np.ndarray, " batch"], epoch: Int[np.ndarray, " batch"], *, seed: int
    ) -> Arrays:
        """The arrays of some rows in some epochs: a part of a batch.

        Returns:
            ``tokens`` int32 [batch, length], ``valid``, ``word_starts`` and ``sentence_starts`` bool,
            ``segments`` int32, ``frequency`` float32 (each token's share of the training text), ``id``
            uint32 [batch, 2] (high and low word of the row's index), ``epoch`` int32 [batch]; for pairs
            ``is_next`` int32 [batch]; for packed rows ``documents`` int32 [batch, length] and
            ``document_ids`` uint32 [batch, documents, 2]; where labels are asked for ``labels`` int32 [batch].
        """
        table = self.read(index.tolist())
        arrays: Arrays = {}
        if self.pairs:
            table, arrays["is_next"] = draw_seconds(
                table,
                index=index,
                epoch=epoch,
                seed=seed,
                read=self.read,
                count=len(self),
                padding=self.padding,
            )
        if self.documents:
            arrays["documents"] = table["documents"].astype(np.int32)
            arrays["document_ids"] = words(table["document_ids"])
        if self.labels:
            arrays["labels"] = table["label"].astype(np.int32)
        return {
            "tokens": table["tokens"].astype(np.int32),
            "valid": np.arange(self.length) < table["used"][:, None],
            "word_starts": table["word_starts"].copy(),
            "sentence_starts": table["sentence_starts"].copy(),
            "segments": table["segments"].astype(np.int32),
            "frequency": self.frequency[table["tokens"]],
            "id": words(index),
            "epoch": epoch.astype(np.int32),
            **arrays,
        }

    def _read(self, shard: int, places: Int[np.ndarray, " rows"]) -> Shaped[np.ndarray, " rows"]:
        path = self._paths[shard]
        try:
            return np.frombuffer(b"".join(self._reader(path).read(places.tolist())), self._dtype)
        except (RuntimeError, ValueError) as error:
            raise UserError(
                f"The prepared rows {path} cannot be read ({error}). Delete the folder and "
                "run the command again."
            ) from error

    @staticmethod
    def _open(path: Path) -> ArrayRecordReader:
        return ArrayRecordReader(str(path), "readahead_buffer_size:0")
