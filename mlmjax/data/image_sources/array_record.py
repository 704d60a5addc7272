"""ArrayRecord: a record an image: a ``tf.train.Example``, or the file itself."""

from collections.abc import Iterator
from dataclasses import dataclass

from mlmjax.data.documents import Broken
from mlmjax.data.image_sources.base import Picture
from mlmjax.data.sources.array_record import check_local, features, opened, records, spans
from mlmjax.data.sources.fields import listed
from mlmjax.data.sources.files import File, digest
from mlmjax.data.sources.finding import Found
from mlmjax.data.sources.lines import UnreadableError, utf8


class ArrayRecordImages:
    """An image a record, in the order of the files' names.

    A record is a serialised ``tf.train.Example``, of which one feature is the file; without a field (the empty
    string) it is the file.
    """

    classes: tuple[str, ...] = ()

    def __init__(
        self, found: Found, *, field: str = "image", label_field: str | None = "label"
    ) -> None:
        """Find the files.

        Args:
            found: what there is under the root; local.
            field: the feature that is the image; empty where records are.
            label_field: that of the class; any but ``label`` must be there; none for no classes.

        Raises:
            UserError: there is no such file.
        """
        check_local(found, "ArrayRecord files are")
        self.root, self._fields = found.root, ImageFields(field, label_field)
        self._files = found.files("array_record")
        self.ignored = len(found.paths) - len(self._files)

    def __str__(self) -> str:
        return self.root

    def parts(self) -> list["ImageRecords"]:
        """Ranges of records.

        Raises:
            UserError: a file cannot be read, is damaged, or changed.
        """
        parts: list[ImageRecords] = []
        for file in self._files:
            with opened(file) as reader:
                count = reader.num_records()
            parts += [
                ImageRecords(file, *span, self._fields)
                for span in spans(file, 0, count, total=count)
            ]
        return parts

    def digest(self) -> str:
        """Hash of the files' names and bytes, and of the fields."""
        return digest(self._files, "array_record", self._fields)


@dataclass(frozen=True)
class ImageFields:
    """The features of a record that are read.

    Attributes:
        image: the file; empty where it is the record itself.
        label: the class; none where there is none. ``label`` may be absent.
    """

    image: str = "image"
    label: str | None = "label"

    def names(self) -> list[str]:
        """All that are read."""
        return [name for name in (self.image, self.label) if name]

    def picture(self, record: bytes, place: str) -> Picture:
        """The image of a record.

        Raises:
            UnreadableError: it is no Example, or a feature is not there, or holds something else.
        """
        if not self.image:
            return Picture(record, place)
        found = features(
            record,
            self.names(),
            otherwise="no tf.train.Example; where records are image files, give no field: --data.field ''.",
        )
        if self.image not in found:
            raise UnreadableError(
                f"there is no feature {self.image!r} (--data.field), only {listed(found)}."
            )
        content = found[self.image]
        if not isinstance(content, bytes):
            kind = "nothing" if content is None else "a number"
            raise UnreadableError(f"the feature {self.image!r} holds {kind} (--data.field).")
        return Picture(content, place, self._label(found))

    def _label(self, found: dict[str, object]) -> str | int | None:
        if self.label is None or (self.label == "label" and self.label not in found):
            return None
        if self.label not in found:
            raise UnreadableError(
                f"there is no feature {self.label!r} (--data.label-field), only {listed(found)}."
            )
        value = found[self.label]
        if isinstance(value, float):
            raise UnreadableError(
                f"the feature {self.label!r} holds a fraction, not a string or an integer "
                "(--data.label-field)."
            )
        if isinstance(value, bytes):
            return utf8(value)
        return value if isinstance(value, int) else None


@dataclass(frozen=True)
class ImageRecords:
    """A range of a file's records.

    Attributes:
        file: the file.
        start: number of the first record, from 0.
        stop: number of the record before which to stop.
        size: bytes, about.
        fields: what to read of a record.
    """

    file: File
    start: int
    stop: int
    size: int
    fields: ImageFields

    @property
    def name(self) -> str:
        """The file, and where in it."""
        return f"{self.file.shown}, from record {self.start}" if self.start else self.file.shown

    def read(self, broken: Broken) -> Iterator[Picture]:
        """The images; a record that is none is left out, if ``broken`` allows it.

        Raises:
            UserError: the file cannot be read, is damaged, or changed.
        """
        for number, record in records(self.file, self.start, self.stop, size=self.size):
            place = f"{self.file.shown}, record {number}"
            try:
                picture = self.fields.picture(record, place)
            except UnreadableError as why:
                broken(f"{place} (from 0): {why}")
                continue
            yield picture
