"""Fixed-shape rows of tokens in ArrayRecord: written in order, read at random."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter
from jaxtyping import Int, Shaped

from mlmjax.core.errors import UserError


def row_dtype(length: int) -> np.dtype:
    """One row: a fixed record of numbers.

    ``used`` counts the tokens that are not padding; ``document`` is the hash of the (first)
    document's text; the document's rows are ``first`` .. ``first + siblings - 1``.
    """
    return np.dtype(
        [
            ("tokens", "<i4", (length,)),
            ("word_starts", "?", (length,)),
            ("segments", "u1", (length,)),
            ("used", "<i4"),
            ("siblings", "<i4"),
            ("first", "<i8"),
            ("document", "<u8"),
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


class Rows:
    """Rows of a file, read at random and from any number of threads."""

    def __init__(self, path: Path, *, length: int, pairs: bool, padding: int) -> None:
        """Open the rows of a file; nothing is read yet.

        Args:
            path: the file that :class:`RowWriter` wrote.
            length: tokens in a row.
            pairs: whether rows are pairs of texts for next-sentence prediction.
            padding: the token that fills what a row does not use.
        """
        self.path, self.length, self.pairs, self.padding = path, length, pairs, padding
        self._dtype = row_dtype(length)
        self._reader = ArrayRecordReader(str(path), "readahead_buffer_size:0")

    def __len__(self) -> int:
        return self._reader.num_records()

    def read(
        self, indices: Sequence[int] | Int[np.ndarray, " rows"]
    ) -> Shaped[np.ndarray, " rows"]:
        """The rows at some indices, as records of :func:`row_dtype`.

        Raises:
            UserError: the file is damaged.
        """
        if not len(indices):
            return np.zeros(0, self._dtype)
        try:
            records = self._reader.read([int(index) for index in indices])
            return np.frombuffer(b"".join(records), self._dtype)
        except (RuntimeError, ValueError) as error:
            raise UserError(
                f"The prepared rows {self.path} cannot be read ({error}). Delete the folder and "
                "run the command again."
            ) from error
