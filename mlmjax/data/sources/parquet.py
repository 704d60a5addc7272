"""Parquet: a row a document, of which one column is the text."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mlmjax.core.errors import UserError
from mlmjax.data.documents import Broken, Document
from mlmjax.data.sources.fields import Fields, listed
from mlmjax.data.sources.files import BLOCK, File, digest, telling
from mlmjax.data.sources.finding import Found, find
from mlmjax.data.sources.lines import UnreadableError, utf8

_ROWS = 64
"""Rows that are read at once: few, as each may be long."""


class ParquetFiles:
    """A document a row, in the order of the files' names."""

    def __init__(self, root: str | Found, fields: Fields) -> None:
        """Find the files.

        Args:
            root: a file, a folder (all ``.parquet`` in it, at any depth) or a pattern; local, or remote
                where ``fsspec`` reads it.
            fields: the columns to read.

        Raises:
            UserError: there is nothing, or no such file, or pyarrow is not installed.
        """
        arrow()
        found = root if isinstance(root, Found) else find(root)
        self.root = found.root
        self.fields = fields
        self._files = found.files("parquet")

    def __str__(self) -> str:
        return self.root

    def parts(self) -> list["ParquetPart"]:
        """Row groups.

        Raises:
            UserError: a file cannot be read, changed, or has no such column of strings.
        """
        return [part for file in self._files for part in self._plan(file)]

    def digest(self) -> str:
        """Hash of the files' names and bytes, and of the columns."""
        return digest(self._files, "parquet", self.fields)

    def _plan(self, file: File) -> Iterator["ParquetPart"]:
        names = set(self.fields.names())
        with opened(file) as parquet:
            _check_columns(parquet.schema_arrow, self.fields, file)
            row = 0
            for number in range(parquet.metadata.num_row_groups):
                group = parquet.metadata.row_group(number)
                columns = map(group.column, range(group.num_columns))
                size = sum(
                    column.total_compressed_size
                    for column in columns
                    if column.path_in_schema in names
                )
                yield ParquetPart(file, number, row, size, self.fields)
                row += group.num_rows


@dataclass(frozen=True)
class ParquetPart:
    """A row group.

    Attributes:
        file: the file.
        number: of the row group.
        row: number of its first row in the file, from 0.
        size: bytes of the columns that are read, packed.
        fields: the columns to read.
    """

    file: File
    number: int
    row: int
    size: int
    fields: Fields

    @property
    def name(self) -> str:
        """The file, and where in it."""
        return f"{self.file.shown}, from row {self.row}" if self.row else self.file.shown

    def read(self, broken: Broken) -> Iterator[Document]:
        """The documents; one that is not UTF-8 is left out, if ``broken`` allows it.

        Raises:
            UserError: the file cannot be read, is damaged, or changed.
        """
        names = self.fields.names()
        with opened(self.file) as parquet:
            row = self.row
            for batch in parquet.iter_batches(_ROWS, [self.number], names, use_threads=False):
                columns = [_values(batch.column(name)) for name in names]
                for values in zip(*columns, strict=True):
                    place = f"{self.file.shown}, row {row}"
                    row += 1
                    try:
                        record = {
                            name: utf8(value) if isinstance(value, bytes) else value
                            for name, value in zip(names, values, strict=True)
                        }
                        document = self.fields.document(record, place)
                    except UnreadableError as why:
                        broken(f"{place} (from 0): {why}")
                        continue
                    yield document


@contextmanager
def opened(file: File) -> Iterator[Any]:
    """``pyarrow.parquet.ParquetFile``; memory is bounded, however long a row group."""
    library, parquet = arrow()
    file.check()
    with telling(file.shown, file.system):
        try:
            source = file.path if file.local else file.system.open(file.path, "rb")
            with parquet.ParquetFile(source, pre_buffer=False, buffer_size=BLOCK) as found:
                yield found
        except library.ArrowException as error:
            why = str(error).rstrip(".")
            raise UserError(
                f"{file.shown} is no Parquet file, or damaged (--data.root): {why}."
            ) from error
    file.check()


def arrow() -> tuple[Any, Any]:
    """``pyarrow`` and ``pyarrow.parquet``.

    Raises:
        UserError: they are not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(
            "Reading Parquet needs pyarrow: pip install 'mlmjax[parquet]' (--data.format)."
        ) from error
    return pyarrow, pyarrow.parquet


def _check_columns(schema: Any, fields: Fields, file: File) -> None:
    """Refuse columns that are not there, or of the wrong type."""
    types = {column.name: column.type for column in schema}
    strings = [name for name, type in types.items() if is_string(type)]
    keys = [name for name, type in types.items() if is_key(type)]
    asked = [(*each, strings, "strings") for each in fields.texts()]
    asked += [(*each, keys, "strings or integers") for each in fields.marks()]
    for name, option, fit, what in asked:
        if [column.name for column in schema].count(name) > 1:
            raise UserError(
                f"{file.shown} has several columns {name!r} (--data.{option}): rename all but one."
            )
        if name not in types:
            raise UserError(
                f"{file.shown} has no column {name!r} (--data.{option}); there are {listed(types)}."
            )
        if name not in fit:
            raise UserError(
                f"The column {name!r} of {file.shown} holds {types[name]}, not {what} "
                f"(--data.{option}); columns of {what}: {listed(fit)}."
            )


def is_string(type: Any) -> bool:
    """Whether a column of a type holds strings."""
    import pyarrow

    values = type.value_type if pyarrow.types.is_dictionary(type) else type
    return values in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view())


def is_key(type: Any) -> bool:
    """Whether a column of a type holds strings or integers."""
    import pyarrow

    return is_string(type) or pyarrow.types.is_integer(type)


def _values(column: Any) -> list[Any]:
    """Values of a column, strings as bytes: one that is not UTF-8 then spoils no others."""
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    raw = {
        pyarrow.string(): pyarrow.binary(),
        pyarrow.large_string(): pyarrow.large_binary(),
        pyarrow.string_view(): pyarrow.binary_view(),
    }
    values: list[Any] = column.cast(raw.get(column.type, column.type)).to_pylist()
    return values
