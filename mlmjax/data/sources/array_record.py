"""ArrayRecord: a record a document: a JSON object, a ``tf.train.Example``, or plain text."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from mlmjax.core.errors import UserError
from mlmjax.data.documents import Broken, Document
from mlmjax.data.sources import files
from mlmjax.data.sources.fields import Fields, parsed
from mlmjax.data.sources.files import File, digest, telling
from mlmjax.data.sources.finding import Found, find
from mlmjax.data.sources.lines import UnreadableError, utf8

_AT_ONCE = 256
"""Records that are read at once, or fewer where they are long."""


class ArrayRecordFiles:
    """A document a record, in the order of the files' names.

    A record is a JSON object or a serialised ``tf.train.Example``, of which one field is the text; without
    a field (the empty string) it is the text, in UTF-8.
    """

    def __init__(self, root: str | Found, fields: Fields) -> None:
        """Find the files.

        Args:
            root: a file, a folder (all ``.array_record`` in it, also shards such as
                ``a.array_record-00000-of-00002``, at any depth) or a pattern; local.
            fields: what to read of a record.

        Raises:
            UserError: there is nothing, or no such file.
        """
        found = root if isinstance(root, Found) else find(root)
        check_local(found, "ArrayRecord files are")
        self.root = found.root
        self.fields = fields
        self._files = found.files("array_record")

    def __str__(self) -> str:
        return self.root

    def parts(self) -> list["ArrayRecordPart"]:
        """Ranges of records.

        Raises:
            UserError: a file cannot be read, is damaged, or changed.
        """
        parts: list[ArrayRecordPart] = []
        for file in self._files:
            with opened(file) as reader:
                count = reader.num_records()
            parts += ranges(file, 0, count, total=count, fields=self.fields)
        return parts

    def digest(self) -> str:
        """Hash of the files' names and bytes, and of the fields."""
        return digest(self._files, "array_record", self.fields)


@dataclass(frozen=True)
class ArrayRecordPart:
    """A range of a file's records.

    Attributes:
        file: the file.
        start: number of the first record, from 0.
        stop: number of the record before which to stop.
        size: bytes, about.
        fields: what to read of a record.
        absent: whether a feature may be absent, which then is a null.
    """

    file: File
    start: int
    stop: int
    size: int
    fields: Fields
    absent: bool = False

    @property
    def name(self) -> str:
        """The file, and where in it."""
        return f"{self.file.shown}, from record {self.start}" if self.start else self.file.shown

    def read(self, broken: Broken) -> Iterator[Document]:
        """The documents; a record that is none is left out, if ``broken`` allows it.

        Raises:
            UserError: the file cannot be read, is damaged, or changed.
        """
        for number, record in records(self.file, self.start, self.stop, size=self.size):
            place = f"{self.file.shown}, record {number}"
            try:
                document = self._document(record, place)
            except UnreadableError as why:
                broken(f"{place} (from 0): {why}")
                continue
            yield document

    def _document(self, record: bytes, place: str) -> Document:
        if not self.fields.text:
            return Document(utf8(record), place=place)
        if record.startswith(b"{"):
            return self.fields.document(parsed(utf8(record)), place)
        values = _features(record, self.fields)
        if self.absent:
            values = {**dict.fromkeys(self.fields.names()), **values}
        return self.fields.document(values, place)


def check_local(found: Found, what: str) -> None:
    """Refuse what lies elsewhere.

    Raises:
        UserError: says what to do.
    """
    if not found.local:
        raise UserError(
            f"{found.root} is remote (--data.root), but {what} read from a local folder only: copy it, "
            "or mount it."
        )


def ranges(
    file: File, start: int, stop: int, *, total: int, fields: Fields, absent: bool = False
) -> Iterator[ArrayRecordPart]:
    """Parts of some of a file's records.

    Args:
        file: the file.
        start: number of the first record.
        stop: number of the record before which to stop.
        total: records in the file.
        fields: what to read of a record.
        absent: whether a feature may be absent.
    """
    for first, last, size in spans(file, start, stop, total=total):
        yield ArrayRecordPart(file, first, last, size, fields, absent)


def spans(file: File, start: int, stop: int, *, total: int) -> Iterator[tuple[int, int, int]]:
    """(first record, record before which to stop, bytes) of the parts to read some records in."""
    each = file.size / max(total, 1)
    step = max(int(files.PART / max(each, 1)), 1)
    for first in range(start, stop, step):
        last = min(first + step, stop)
        yield first, last, int(each * (last - first))


def records(file: File, start: int, stop: int, *, size: int) -> Iterator[tuple[int, bytes]]:
    """(number, content) of some of a file's records, a few read at once.

    Args:
        file: the file.
        start: number of the first record.
        stop: number of the record before which to stop.
        size: bytes of these records, about.

    Raises:
        UserError: the file cannot be read, is damaged, or changed.
    """
    step = min(max(files.BLOCK * (stop - start) // max(size, 1), 1), _AT_ONCE)
    with opened(file) as reader:
        for first in range(start, stop, step):
            yield from enumerate(reader.read(first, min(first + step, stop)), first)


@contextmanager
def opened(file: File) -> Iterator[Any]:
    """``ArrayRecordReader``, for reading in order.

    Raises:
        UserError: the file cannot be read, is damaged, or changed.
    """
    from array_record.python.array_record_module import ArrayRecordReader

    file.check()
    with telling(file.shown, file.system):
        try:
            reader = ArrayRecordReader(file.path, "readahead_buffer_size:4M,max_parallelism:1")
            if not reader.ok():
                reader.close()  # says what is wrong
            yield reader
            reader.close()
        except (RuntimeError, IndexError) as error:
            why = str(error).rstrip(".") or "its end is missing"
            raise UserError(
                f"{file.shown} is no ArrayRecord file, or damaged (--data.root): {why}."
            ) from error
    file.check()


def _features(record: bytes, fields: Fields) -> dict[str, object]:
    """Values of an Example's features by name: those that are read, and None for all others."""
    found = features(
        record,
        fields.names(),
        otherwise="neither a JSON object nor a tf.train.Example; where records are plain text, give no field: "
        "--data.field ''.",
    )
    return {k: utf8(v) if isinstance(v, bytes) else v for k, v in found.items()}


def features(record: bytes, names: Sequence[str], *, otherwise: str) -> dict[str, object]:
    """Values of a ``tf.train.Example`` by name: bytes or numbers of the features that are read, and None for all
    others.

    Args:
        record: the Example, serialised.
        names: of the features that are read.
        otherwise: what is said of a record that is none.

    Raises:
        UnreadableError: it is none, or a feature has several values.
    """
    from google.protobuf.message import DecodeError

    example = _example()()
    try:
        # An Example begins with the tag of its only field.
        if record and not record.startswith(b"\n"):
            raise DecodeError
        example.ParseFromString(record)
    except DecodeError as error:
        raise UnreadableError(otherwise) from error
    found: dict[str, object] = dict.fromkeys(example.features.feature)
    for name in names:
        if name in found:
            found[name] = _one(example.features.feature[name], name)
    return found


def _one(feature: Any, name: str) -> object:
    kind = feature.WhichOneof("kind")
    values = getattr(feature, kind).value if kind else ()
    if len(values) > 1:
        raise UnreadableError(f"the feature {name!r} holds {len(values)} values (--data.field).")
    return values[0] if values else None


@cache
def _example() -> Any:
    """The message ``tf.train.Example``, without TensorFlow."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    package = "mlmjax.example"
    file = descriptor_pb2.FileDescriptorProto(
        name="mlmjax/example.proto", package=package, syntax="proto3"
    )

    def add(message: Any, name: str, number: int, type: int | str, label: int) -> Any:
        added = message.field.add(name=name, number=number, label=label)
        if isinstance(type, str):
            added.type, added.type_name = field.TYPE_MESSAGE, f".{package}.{type}"
        else:
            added.type = type
        return added

    lists = {
        "BytesList": field.TYPE_BYTES,
        "FloatList": field.TYPE_FLOAT,
        "Int64List": field.TYPE_INT64,
    }
    feature = descriptor_pb2.DescriptorProto(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, type) in enumerate(lists.items(), 1):
        add(file.message_type.add(name=name), "value", 1, type, field.LABEL_REPEATED)
        kind = add(feature, name.lower(), number, name, field.LABEL_OPTIONAL)
        kind.oneof_index = 0
    file.message_type.append(feature)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    add(entry, "key", 1, field.TYPE_STRING, field.LABEL_OPTIONAL)
    add(entry, "value", 2, "Feature", field.LABEL_OPTIONAL)
    add(features, "feature", 1, "Features.FeatureEntry", field.LABEL_REPEATED)
    add(file.message_type.add(name="Example"), "features", 1, "Features", field.LABEL_OPTIONAL)

    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Example"))
