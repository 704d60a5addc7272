"""Parquet: columns, row groups, and files that cannot be read."""

import pickle
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from mlmjax.core.errors import UserError
from mlmjax.data.documents import Document, documents_of
from mlmjax.data.sources import Fields, ParquetFiles

TYPES = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
}


def write(path, rows=100, **columns):
    table = pa.table(columns)
    pq.write_table(table, path, row_group_size=rows)
    return str(path)


@pytest.mark.parametrize("type", TYPES.values(), ids=TYPES)
def test_columns_of_strings(tmp_path, type):
    texts = ["One.", None, "", "Dr\u00fcben \x00 😀", "One."] * 30
    root = write(tmp_path / "a.parquet", 20, n=range(150), text=pa.array(texts).cast(type))
    source = ParquetFiles(root, Fields())
    parts = pickle.loads(pickle.dumps(source.parts()))
    assert len(parts) == 8
    found = [document for part in parts for document in part.read(pytest.fail)]
    assert [document.text for document in found] == texts
    assert {document.group + document.id for document in found} == {""}
    assert found[41].place == f"{root}, row 41"
    assert parts[2].name == f"{root}, from row 40"


def test_ids_and_groups(tmp_path):
    root = write(tmp_path / "a.parquet", text=["a", None], id=[7, None], group=["g", None])
    assert list(documents_of(ParquetFiles(root, Fields("text", "id", "group")))) == [
        Document("a", "g", id="7", place=f"{root}, row 0"),
        Document(None, place=f"{root}, row 1"),
    ]


def test_only_the_columns_that_are_read_count(tmp_path):
    large = [f"{number:0100}" for number in range(1000)]
    root = write(tmp_path / "a.parquet", 500, text=["a", "b"] * 500, other=large)
    small, large = (
        sum(part.size for part in ParquetFiles(root, Fields(name)).parts())
        for name in ("text", "other")
    )
    assert small < large / 3


def test_a_folder_a_pattern_and_a_remote_file(tmp_path):
    for name in ("b.parquet", "sub/a.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, text=[name])
    for root in (tmp_path, f"{tmp_path}/**/*.parquet"):
        found = [document.text for document in documents_of(ParquetFiles(str(root), Fields()))]
        assert found == ["b.parquet", "sub/a.parquet"]
    MemoryFileSystem().pipe("/parquet/a.parquet", (tmp_path / "b.parquet").read_bytes())
    source = ParquetFiles("memory://parquet", Fields())
    assert [document.text for document in documents_of(source)] == ["b.parquet"]
    first = source.digest()
    assert ParquetFiles("memory://parquet", Fields()).digest() == first
    assert ParquetFiles("memory://parquet", Fields("body")).digest() != first


def test_rows_that_are_not_utf8(tmp_path):
    data = pa.py_buffer(b"goodGr\xfc\xdfegood")
    offsets = pa.py_buffer(b"".join(at.to_bytes(4, "little") for at in (0, 4, 9, 13)))
    texts = pa.Array.from_buffers(pa.string(), 3, [None, offsets, data])
    root = write(tmp_path / "a.parquet", text=texts)
    told = []
    found = documents_of(ParquetFiles(root, Fields()), told.append)
    assert [document.text for document in found] == ["good", "good"]
    assert told == [f"{root}, row 1 (from 0): not UTF-8: byte 2 is 0xfc."]
    with pytest.raises(UserError, match="row 1"):
        list(documents_of(ParquetFiles(root, Fields())))


def test_columns_that_do_not_fit(tmp_path):
    columns = {"n": [1], "body": ["a"], "raw": [b"a"], "title": ["a"], "list": [["a"]]}
    root = write(tmp_path / "a.parquet", **columns)

    def told(fields, match):
        with pytest.raises(UserError, match=match):
            ParquetFiles(root, fields).parts()

    told(
        Fields(),
        r"a.parquet has no column 'text' .--data.field.; there are n, body, raw, title, list",
    )
    told(
        Fields("n"),
        r"'n' of .*a.parquet holds int64, not strings .--data.field.; .*: body, title\.",
    )
    told(Fields("raw"), "holds binary, not strings")
    told(Fields("list"), "holds list<.*, not strings")
    told(
        Fields("body", id="raw"),
        r"--data.id-field.; columns of strings or integers: n, body, title\.",
    )
    told(Fields("body", group="no"), "no column 'no' .--data.group-field")


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    write(path, 10, text=[f"{number:0100}" for number in range(100)])
    source = ParquetFiles(str(path), Fields())
    parts = source.parts()
    content = path.read_bytes()
    path.write_bytes(content + content)
    with pytest.raises(UserError, match=r"a.parquet changed"):
        list(parts[0].read(pytest.fail))
    for broken in (b"", b"PAR1", b"no" * 1000, content[:-100]):
        path.write_bytes(broken)
        with pytest.raises(
            UserError, match=r"a.parquet is no Parquet file, or damaged .--data.root"
        ):
            ParquetFiles(str(path), Fields()).parts()
    path.write_bytes(content[:100] + b"\xff" * 1000 + content[1100:])
    with pytest.raises(UserError, match=r"a.parquet (is no Parquet file|cannot be read)"):
        list(documents_of(ParquetFiles(str(path), Fields())))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pip install 'mlmjax\[parquet\]'"):
        ParquetFiles(str(path), Fields())
