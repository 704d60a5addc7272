"""JSON lines: fields, parts, and lines that cannot be read."""

import gzip
import json
import pickle

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from mlmjax.core.errors import UserError
from mlmjax.data.documents import Document, documents_of
from mlmjax.data.sources import Fields, JsonLines, files, lines

ALL = Fields("text", "id", "group")


def write(path, *records):
    path.write_text("".join(f"{each}\n" for each in records))
    return str(path)


def test_fields(tmp_path):
    root = write(
        tmp_path / "a.jsonl",
        '{"text": "One.", "id": 7, "group": "g", "other": [1]}',
        "",
        ' {"id": "x", "group": 3, "text": null} \r',
        '{"text": "Th\\u0000ree \\ud83d\\ude00", "id": null, "group": null}',
    )
    assert list(documents_of(JsonLines(root, ALL))) == [
        Document("One.", "g", id="7", place=f"{root}:1"),
        Document(None, "3", id="x", place=f"{root}:3"),
        Document("Th\x00ree 😀", place=f"{root}:4"),
    ]
    plain = list(documents_of(JsonLines(root, Fields())))
    assert [(d.text, d.group, d.id, d.place) for d in plain[:1]] == [("One.", "", "", root)]


def test_halves_of_surrogate_pairs_are_replaced(tmp_path):
    root = write(tmp_path / "a.jsonl", '{"text": "a\\ud800b\\udc00c", "id": "\\ud800", "group": 1}')
    (document,) = documents_of(JsonLines(root, ALL))
    assert (document.text, document.id) == ("a\ufffdb\ufffdc", "\ufffd")


@settings(max_examples=60)
@given(
    texts=st.lists(st.none() | st.text(max_size=12), max_size=12),
    part=st.integers(1, 60),
    block=st.integers(1, 20),
    mark=st.sampled_from(["", "\ufeff"]),
    end=st.sampled_from(["\n", "\r\n", "\n\n"]),
    last=st.booleans(),
)
def test_parts_have_all_lines(tmp_path, monkeypatch, texts, part, block, mark, end, last):
    monkeypatch.setattr(files, "PART", part)
    monkeypatch.setattr(files, "BLOCK", block)
    made = [
        json.dumps({"text": text, "id": i}, ensure_ascii=i % 2 > 0) for i, text in enumerate(texts)
    ]
    path = tmp_path / "a.jsonl"
    content = mark + end.join(made) + (end if last else "")
    path.write_bytes(content.encode(errors="surrogatepass"))
    parts = pickle.loads(pickle.dumps(JsonLines(str(path), Fields(id="id")).parts()))
    found = [document for each in parts for document in each.read(pytest.fail)]
    assert [document.text for document in found] == texts
    step = len(end.replace("\r", ""))
    assert [d.place for d in found] == [f"{path}:{1 + i * step}" for i in range(len(texts))]
    assert sum(each.size for each in parts) == path.stat().st_size


def test_packed_files(tmp_path):
    content = "".join(f'{{"text": "{number}"}}\n' for number in range(100)).encode()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(content))
    (tmp_path / "b.ndjson.zst").write_bytes(zstandard.ZstdCompressor().compress(content))
    (tmp_path / "c.00000-of-00001.json.gz").write_bytes(gzip.compress(content))
    (tmp_path / "about.json").write_text("{}")
    found = [document.text for document in documents_of(JsonLines(str(tmp_path), Fields()))]
    assert found == [str(number) for number in range(100)] * 3


BROKEN = {
    '{"text": "cut o': "not JSON: Unterminated string starting at column 10.",
    "[" * 100_000: "JSON that is nested too deeply.",
    '{"text": ' + "1" * 5000 + "}": "a whole number of more than 4300 digits.",
    '["a"]': "a list, not an object with fields.",
    '"a"': "a string, not an object with fields.",
    "null": "null, not an object with fields.",
    '{"id": 1, "body": "b"}': "there is no field 'text' (--data.field), only id, body.",
    "{}": "there is no field 'text' (--data.field), only none.",
    '{"text": 3, "id": 1}': "the field 'text' holds a number, not a string (--data.field).",
    '{"text": ["a"], "id": 1}': "the field 'text' holds a list, not a string (--data.field).",
    '{"text": "a"}': "there is no field 'id' (--data.id-field), only text.",
    '{"text": "a", "id": true}': "the field 'id' holds true or false, not a string or an integer",
    '{"text": "a", "id": {}}': "the field 'id' holds an object, not a string or an integer",
    json.dumps(
        {f"f{n}": 0 for n in range(30)}
    ): "only f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11,",
    '{"text": "Gr\udcfc\udcdfe"}': "not UTF-8: byte {at} is 0xfc.",
}


@pytest.mark.parametrize("part", [1 << 25, 10])
def test_lines_that_cannot_be_read(tmp_path, monkeypatch, part):
    monkeypatch.setattr(files, "PART", part)
    good = '{"text": "good", "id": 0}'
    path = tmp_path / "a.jsonl"
    content = "".join(f"{good}\n\n{line}\n" for line in BROKEN).encode(errors="surrogateescape")
    path.write_bytes(content)
    source = JsonLines(str(path), Fields(id="id"))
    told = []
    assert [d.text for d in documents_of(source, told.append)] == ["good"] * len(BROKEN)
    for number, (message, expected) in enumerate(zip(told, BROKEN.values(), strict=True)):
        assert message.startswith(f"{path}:{3 + 3 * number}: ")
        assert expected.format(at=content.index(b"\xfc")) in message
    with pytest.raises(UserError, match=r"a.jsonl:3: not JSON"):
        list(documents_of(source))


def test_a_line_that_is_much_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "LONGEST_RECORD", 1 << 20)
    monkeypatch.setattr(files, "BLOCK", 1 << 12)
    record = json.dumps({"text": "x" * (1 << 19)})
    root = write(tmp_path / "a.jsonl", record, '{"text": "' + "y" * (1 << 21) + '"}', record)
    told = []
    assert [len(d.text) for d in documents_of(JsonLines(root, Fields()), told.append)] == [
        1 << 19
    ] * 2
    assert told == [f"{root}:2: longer than 1 MiB."]


def test_line_ends_are_counted_once(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PART", 1000)
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n' * 1000 + "broken\n" * 1000)
    counted = []
    blocks = files.File.blocks

    def seen(file, start=0, stop=None):
        counted.append((start, stop))
        return blocks(file, start, stop)

    source = JsonLines(str(path), Fields())
    parts = source.parts()
    monkeypatch.setattr(files.File, "blocks", seen)
    told = []
    for part in parts:
        list(part.read(told.append))
    assert [message.split(":")[1] for message in told] == [str(n) for n in range(1001, 2001)]
    before = [
        where for where in counted if where not in [(part.start, part.stop) for part in parts]
    ]
    assert before[0] == (0, before[0][1])
    assert len(counted) <= 2 * len(parts)


def test_the_digest_follows_the_fields(tmp_path):
    root = write(tmp_path / "a.jsonl", '{"text": "One.", "b": "Two."}')
    digests = {
        JsonLines(root, fields).digest() for fields in (Fields(), Fields("b"), Fields("text", "b"))
    }
    assert len(digests) == 3
    assert JsonLines(root, Fields()).digest() in digests
