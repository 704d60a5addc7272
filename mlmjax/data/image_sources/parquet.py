"""Parquet: a row an image, of which one column holds the file and another the class."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mlmjax.core.errors import UserError
from mlmjax.data.documents import Broken
from mlmjax.data.image_sources.base import Picture
from mlmjax.data.sources.fields import listed
from mlmjax.data.sources.files import File, digest
from mlmjax.data.sources.finding import Found
from mlmjax.data.sources.parquet import arrow, is_key, opened

_ROWS = 16
"""Rows that are read at once: few, as each may be large."""
_CONTENT = "bytes"
"""Field of the file's content, where a column holds structures, as those of Hugging Face do."""


class ParquetImages:
    """Image files in a column of bytes, or of structures with a field ``bytes``; in the order of the files.

    Classes have the names that Hugging Face's ``datasets`` writes down, where it wrote the file.
    """

    def __init__(
        self, found: Found, *, field: str = "image", label_field: str | None = "label"
    ) -> None:
        """Find the files.

        Args:
            found: what there is under the root.
            field: the column of images.
            label_field: that of classes; any but ``label`` must be there; none for no classes.

        Raises:
            UserError: there is no such file, or no such column of such a type.
        """
        arrow()
        self.root, self._field = found.root, field
        self._files = found.files("parquet")
        self.ignored = len(found.paths) - len(self._files)
        with opened(self._files[0]) as first:
            there = label_field in first.schema_arrow.names
            self._label = label_field if there or label_field != "label" else None
            self.classes = _classes(first.schema_arrow, self._label)

    def __str__(self) -> str:
        return self.root

    def parts(self) -> list["ParquetImagesPart"]:
        """Row groups.

        Raises:
            UserError: a file cannot be read, or has no such column.
        """
        return [part for file in self._files for part in self._plan(file)]

    def digest(self) -> str:
        """Hash of the files' names and bytes, and of the columns."""
        return digest(self._files, "parquet", self._field, self._label)

    def _plan(self, file: File) -> Iterator["ParquetImagesPart"]:
        with opened(file) as parquet:
            _check_columns(parquet.schema_arrow, self._field, self._label, file)
            row = 0
            for number in range(parquet.metadata.num_row_groups):
                group = parquet.metadata.row_group(number)
                columns = map(group.column, range(group.num_columns))
                size = sum(
                    column.total_compressed_size
                    for column in columns
                    if column.path_in_schema.partition(".")[0] == self._field
                )
                yield ParquetImagesPart(file, number, row, size, self._field, self._label)
                row += group.num_rows


@dataclass(frozen=True)
class ParquetImagesPart:
    """A row group.

    Attributes:
        file: the file.
        number: of the row group.
        row: number of its first row in the file, from 0.
        size: bytes of the images, packed.
        field: the column of images.
        label: that of classes; none where there is none.
    """

    file: File
    number: int
    row: int
    size: int
    field: str
    label: str | None

    @property
    def name(self) -> str:
        """The file, and where in it."""
        return f"{self.file.shown}, from row {self.row}" if self.row else self.file.shown

    def read(self, broken: Broken) -> Iterator[Picture]:
        """The images; a null is left out, if ``broken`` allows it.

        Raises:
            UserError: the file cannot be read, is damaged, or changed.
        """
        names = [name for name in (self.field, self.label) if name is not None]
        with opened(self.file) as parquet:
            row = self.row
            for batch in parquet.iter_batches(_ROWS, [self.number], names, use_threads=False):
                images = batch.column(self.field).to_pylist()
                labels = (
                    batch.column(self.label).to_pylist() if self.label else [None] * len(images)
                )
                for image, label in zip(images, labels, strict=True):
                    place = f"{self.file.shown}, row {row}"
                    row += 1
                    content = image[_CONTENT] if isinstance(image, dict) else image
                    if content is None:
                        broken(f"{place} (from 0) holds no image.")
                        continue
                    yield Picture(content, place, label)


def _check_columns(schema: Any, field: str, label: str | None, file: File) -> None:
    """Refuse columns that are not there, or of the wrong type."""
    types = {column.name: column.type for column in schema}
    images = [name for name, type in types.items() if _holds_files(type)]
    keys = [name for name, type in types.items() if is_key(type)]
    asked = [(field, "field", images, "image files")]
    if label is not None:
        asked.append((label, "label-field", keys, "strings or integers"))
    for name, option, fit, what in asked:
        if name not in types:
            raise UserError(
                f"{file.shown} has no column {name!r} (--data.{option}); there are {listed(types)}."
            )
        if name not in fit:
            raise UserError(
                f"The column {name!r} of {file.shown} holds {types[name]}, not {what} (--data.{option}); "
                f"columns of {what}: {listed(fit)}."
            )


def _holds_files(type: Any) -> bool:
    import pyarrow

    if pyarrow.types.is_struct(type):
        inside = {
            type.field(place).name: type.field(place).type for place in range(type.num_fields)
        }
        return _CONTENT in inside and _holds_files(inside[_CONTENT])
    return type in (pyarrow.binary(), pyarrow.large_binary(), pyarrow.binary_view())


def _classes(schema: Any, label: str | None) -> tuple[str, ...]:
    """The names that the file says; none if it says none."""
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        names = features[label]["names"]
    except (TypeError, KeyError, ValueError):
        return ()
    return tuple(map(str, names))
