"""ArrayRecord: three kinds of record, ranges, and files that cannot be read."""

import json
import pickle

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from made_records import example, write

from mlmjax.core.errors import UserError
from mlmjax.data.documents import Document, documents_of
from mlmjax.data.sources import ArrayRecordFiles, Fields, files

ALL = Fields("text", "id", "group")


def test_json_examples_and_plain_text(tmp_path):
    root = write(
        tmp_path / "a.array_record",
        '{"text": "One.", "id": 7, "group": null}',
        example(text="Zwei: ü.".encode(), id=5, group=b"g", other=[1, 2], share=0.5),
        '{"text": null, "id": "x", "group": "h"}',
        example(text=[], id=b"y", group=3, image=b"\xff"),
    )
    assert list(documents_of(ArrayRecordFiles(root, ALL))) == [
        Document("One.", id="7", place=f"{root}, record 0"),
        Document("Zwei: ü.", "g", id="5", place=f"{root}, record 1"),
        Document(None, "h", id="x", place=f"{root}, record 2"),
        Document(None, "3", id="y", place=f"{root}, record 3"),
    ]
    root = write(tmp_path / "b.array_record", "One.", "", "{not JSON", "\nTwo: ü.")
    found = list(documents_of(ArrayRecordFiles(root, Fields(""))))
    assert [document.text for document in found] == ["One.", "", "{not JSON", "\nTwo: ü."]


@pytest.mark.parametrize("options", ["group_size:1", "group_size:16"])
def test_ranges_have_all_records(tmp_path, monkeypatch, options):
    texts = [f"{number} " * 50 for number in range(500)]
    path = tmp_path / "a.array_record"
    records = [json.dumps({"text": text}) for text in texts]
    root = write(path, *records, options=options)
    write(tmp_path / "b.array_record-00000-of-00001", *records[:3])
    write(tmp_path / "empty.arrayrecord")
    monkeypatch.setattr(files, "PART", path.stat().st_size // 4)
    parts = pickle.loads(pickle.dumps(ArrayRecordFiles(str(tmp_path), Fields()).parts()))
    of_a = [part for part in parts if part.file.name == path.name]
    assert 4 <= len(of_a) <= 5
    assert of_a == parts[: len(of_a)]
    assert abs(sum(part.size for part in of_a) - path.stat().st_size) < len(parts)
    found = [document.text for part in parts for document in part.read(pytest.fail)]
    assert found == texts + texts[:3]
    assert parts[1].name == f"{root}, from record {parts[1].start}"


def test_records_that_cannot_be_read(tmp_path):
    broken = {
        b"text": "neither a JSON object nor a tf.train.Example; where records are plain text, give no "
        "field: --data.field ''.",
        b"\nx": "neither",
        b"": "there is no field 'text' (--data.field), only none.",
        b'{"text"': "not JSON: Expecting ':' delimiter at column 8.",
        b'{"text": "\xff"}': "not UTF-8: byte 10 is 0xff.",
        b'{"id": 1}': "there is no field 'text' (--data.field), only id.",
        example(body=b"a", id=1): "there is no field 'text' (--data.field), only ",
        example(text=b"\xff", id=1): "not UTF-8: byte 0 is 0xff.",
        example(text=[b"a", b"b"], id=1): "the feature 'text' holds 2 values (--data.field).",
        example(text=3, id=1): "the field 'text' holds a number, not a string (--data.field).",
        example(text=b"a", id=0.5): "the field 'id' holds a number, not a string or an integer",
    }
    good = '{"text": "good", "id": 0}'
    root = write(tmp_path / "a.array_record", *(r for record in broken for r in (good, record)))
    told = []
    source = ArrayRecordFiles(root, Fields(id="id"))
    found = [document.text for document in documents_of(source, told.append)]
    assert found == ["good"] * len(broken)
    for number, (message, expected) in enumerate(zip(told, broken.values(), strict=True)):
        assert message.startswith(f"{root}, record {2 * number + 1} (from 0): {expected}")
    with pytest.raises(UserError, match="record 1"):
        list(documents_of(source))


def test_files_that_cannot_be_read(tmp_path):
    path = tmp_path / "a.array_record"
    write(path, *(f"{number:01000}" for number in range(1000)))
    content = path.read_bytes()
    (part,) = ArrayRecordFiles(str(path), Fields("")).parts()
    for broken in (b"", b"no" * 100_000, content[: len(content) // 2]):
        path.write_bytes(broken)
        with pytest.raises(UserError, match=r"a.array_record is no ArrayRecord file, or damaged"):
            ArrayRecordFiles(str(path), Fields("")).parts()
    with pytest.raises(UserError, match="changed"):
        list(part.read(pytest.fail))
    path.write_bytes(content[:70_000] + b"\0" * 1000 + content[71_000:])
    with pytest.raises(UserError, match=r"a.array_record is no ArrayRecord file, or damaged"):
        list(documents_of(ArrayRecordFiles(str(path), Fields(""))))
    MemoryFileSystem().pipe("/records/a.array_record", b"")
    with pytest.raises(
        UserError, match=r"memory://records is remote .--data.root.*local folder only"
    ):
        ArrayRecordFiles("memory://records", Fields())


def test_the_digest_follows_the_fields(tmp_path):
    root = write(tmp_path / "a.array_record", "{}")
    assert len({ArrayRecordFiles(root, Fields(name)).digest() for name in ("", "a", "b")}) == 3
