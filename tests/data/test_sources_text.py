"""Plain text: documents, parts, encodings, packed files."""

import gzip
import itertools
import os
import pickle
import re
import sys
from pathlib import Path

import pytest
import zstandard
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mlmjax.core.errors import UserError
from mlmjax.data.documents import Part, Source, documents_of
from mlmjax.data.sources import TextFiles, files, lines

MODES = ("blank_lines", "blank_line", "line", "file")
PIECES = [
    *"ab \t\x00\x0c\u200f\ufeff\u3000",
    "\n",
    "\r",
    "\r\n",
    "ü",
    "€",
    "😀",
    "e\u0301",
    "\n\n\n",
    "\r\n\r\n",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=60).map("".join)


def texts_of(source):
    return [document.text for document in documents_of(source)]


def plainly(text, mode):
    """The documents of a text, in another way."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    text = re.sub(r"(?m)^[ \t\x0c]+$", "", text)
    gaps = {"blank_lines": r"\n{3,}", "blank_line": r"\n{2,}", "line": r"\n", "file": r"\Z"}
    found = (part.strip("\n") for part in re.split(gaps[mode], text))
    return [part for part in found if part.strip()]


@given(TEXTS, st.sampled_from(MODES))
@example("\ufeff\n\na\r\n\r\n\r\nb", "blank_lines")
@example("\r\n\r\n a\r\r\rb", "blank_lines")
def test_documents_are_what_blank_lines_separate(tmp_path, text, mode):
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    found = texts_of(TextFiles(str(path), mode))
    found = [re.sub(r"(?m)^[ \t\x0c]+$", "", text) for text in found]  # as the other way
    assert found == plainly(text, mode)


@settings(max_examples=150)
@given(
    text=TEXTS,
    mode=st.sampled_from(MODES),
    part=st.integers(1, 30),
    block=st.integers(1, 9),
    longest=st.sampled_from([8, 13, 1000]),
)
def test_parts_have_the_documents_of_the_file(
    tmp_path, monkeypatch, text, mode, part, block, longest
):
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    monkeypatch.setattr(lines, "LONGEST", longest)
    monkeypatch.setattr(files, "PART", 1 << 25)
    (one,) = TextFiles(str(path), mode).parts()
    whole = list(one.read(pytest.fail))
    monkeypatch.setattr(files, "PART", part)
    monkeypatch.setattr(files, "BLOCK", block)
    parts = pickle.loads(pickle.dumps(TextFiles(str(path), mode).parts()))
    assert [document for each in parts for document in each.read(pytest.fail)] == whole
    assert sum(each.size for each in parts) == one.size == len(text.encode())
    assert all(each.start < each.stop for each in parts[:-1])
    # None lost, whatever is cut; and none too long.
    assert re.sub(r"\s", "", "".join(d.text for d in whole)) == re.sub(
        r"\s", "", text.removeprefix("\ufeff")
    )
    assert all(len(document.text.encode()) <= longest for document in whole)


def test_large_parts_begin_with_documents(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PART", 1000)
    path = tmp_path / "a.txt"
    path.write_text("\n\n\n".join(f"Document {number}.\n\nIts end." for number in range(500)))
    parts = TextFiles(str(path)).parts()
    assert len(parts) == 13
    assert all(1000 <= part.size <= 1030 for part in parts[:-1])
    assert [next(part.read(pytest.fail)).text[:9] for part in parts] == ["Document "] * 13
    assert parts[1].name == f"{path}, from byte {parts[1].start}"
    assert isinstance(parts[0], Part)
    assert isinstance(TextFiles(str(path)), Source)
    assert len(TextFiles(str(path), "file").parts()) == 1
    path.write_text("x" * 5000)
    assert len(TextFiles(str(path)).parts()) == 1


def test_documents_of_an_only_file_are_their_own_groups(tmp_path):
    (tmp_path / "a.txt").write_text("One.\n\n\nTwo.")
    found = documents_of(TextFiles(str(tmp_path / "a.txt")))
    assert [(document.text, document.group) for document in found] == [("One.", ""), ("Two.", "")]


def test_a_file_is_a_group(tmp_path):
    for name in ("b.txt", "sub/a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("One.\n\n\nTwo.")
    found = [(d.text, d.group, d.id, d.place) for d in documents_of(TextFiles(str(tmp_path)))]
    assert found == [
        (text, name, "", f"{tmp_path}/{name}")
        for name in ("b.txt", "sub/a.txt")
        for text in ("One.", "Two.")
    ]


def test_packed_files(tmp_path):
    text = "One ü.\n\n\nTwo.\r\n\r\n\r\nThree."
    whole = text.encode()
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + whole))
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(whole[:5]) + gzip.compress(whole[5:]))
    pack = zstandard.ZstdCompressor().compress
    (tmp_path / "c.txt.zst").write_bytes(pack(whole[:6]) + pack(b"") + pack(whole[6:]))
    stream = zstandard.ZstdCompressor().compressobj()  # does not say how long it is
    (tmp_path / "d.ZST").write_bytes(stream.compress(whole) + stream.flush())
    source = TextFiles(str(tmp_path))
    assert texts_of(source) == ["One ü.", "Two.", "Three."] * 4
    assert [part.name for part in source.parts()] == [
        f"{tmp_path}/{name}" for name in ("a.txt.gz", "b.txt.gz", "c.txt.zst", "d.ZST")
    ]
    assert [part.size for part in source.parts()] == [
        path.stat().st_size for path in sorted(tmp_path.iterdir())
    ]


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.zst"])
def test_packed_files_that_are_cut_off_or_damaged(tmp_path, name):
    noise = "".join(f"{os.urandom(50).hex()}\n" for _ in range(200)).encode()
    pack = gzip.compress if name.endswith("gz") else zstandard.ZstdCompressor().compress
    packed = pack(noise)
    for broken in (packed[:-1], packed[: len(packed) // 2], packed[:5], packed[4:], b"not packed"):
        (tmp_path / name).write_bytes(broken)
        with pytest.raises(UserError, match=rf"{name} cannot be read \(--data.root\): \w"):
            texts_of(TextFiles(str(tmp_path / name), "line"))


def test_zstd_that_is_not_installed(tmp_path, monkeypatch):
    (tmp_path / "a.txt.zst").write_bytes(zstandard.ZstdCompressor().compress(b"a"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(UserError, match="pip install zstandard"):
        texts_of(TextFiles(str(tmp_path)))


def test_a_line_of_50_mb_stays_whole(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"Short.\n\n\n" + b"word " * 10_000_000 + b"\n\n\nEnd.")
    first, long, last = texts_of(TextFiles(str(path)))
    assert (first, last) == ("Short.", "End.")
    assert len(long) == 50_000_000


def test_a_very_long_document_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "LONGEST", 20)
    path = tmp_path / "a.txt"
    path.write_bytes(b"1234567890\n12345678\n1234567890\n\n\n" + "ü".encode() * 25)
    assert texts_of(TextFiles(str(path))) == [
        "1234567890\n12345678",
        "1234567890",
        "ü" * 10,
        "ü" * 10,
        "ü" * 5,
    ]


def test_files_are_streamed(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BLOCK", 100)
    path = tmp_path / "a.txt"
    path.write_text("One.\n\n\n" * 1000)
    (part,) = TextFiles(str(path)).parts()
    read = []
    blocks = files.File.blocks

    def counted(file, *where):
        for block in blocks(file, *where):
            read.append(block)
            yield block

    monkeypatch.setattr(files.File, "blocks", counted)
    assert len(list(itertools.islice(part.read(pytest.fail), 20))) == 20
    assert len(read) <= 3


def test_bytes_that_are_not_utf8(tmp_path, monkeypatch):
    good = "Gr\u00fc\u00dfe.\n\n\n"
    latin = "Gr\u00fc\u00dfe.".encode("latin-1")
    content = good.encode() * 3 + latin + b"\n\n\nEnd. \xed\xa0\x80\n\n\nLast."
    place = len(good.encode()) * 3 + 2
    (tmp_path / "a.txt").write_bytes(content)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(content))
    for part in (10, 1 << 25):
        monkeypatch.setattr(files, "PART", part)
        for name in ("a.txt", "b.txt.gz"):
            told = []
            source = TextFiles(str(tmp_path / name))
            texts = [document.text for document in documents_of(source, told.append)]
            assert texts == ["Grüße."] * 3 + ["Last."]
            assert [message.split(" Convert")[0] for message in told] == [
                f"{tmp_path}/{name}: not UTF-8: byte {place} is 0xfc.",
                f"{tmp_path}/{name}: not UTF-8: byte {len(content) - 11} is 0xed.",
            ]
            with pytest.raises(UserError, match=r"byte \d+ is 0xfc.*--data.root.*iconv"):
                texts_of(source)


def test_a_file_that_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BLOCK", 8)
    path = tmp_path / "a.txt"
    path.write_text("One.\n\n\nTwo.\n\n\nThree.")
    source = TextFiles(str(path))
    (part,) = source.parts()
    reading = part.read(pytest.fail)
    assert next(reading).text == "One."
    os.utime(path, ns=(0, 0))
    for late in (reading, part.read(pytest.fail)):
        with pytest.raises(
            UserError, match=r"a.txt changed while it was read; run the command again"
        ):
            list(late)
    with pytest.raises(UserError, match="changed"):
        source.digest()
    path.unlink()
    with pytest.raises(UserError, match=r"a.txt cannot be read .*No such file"):
        list(part.read(pytest.fail))


def test_the_digest_follows_names_content_and_mode(tmp_path):
    path = tmp_path / "b.txt"
    path.write_text("One.")
    first = TextFiles(str(tmp_path)).digest()
    assert TextFiles(str(tmp_path)).digest() == first
    assert TextFiles(str(tmp_path), "line").digest() != first
    os.utime(path, ns=(0, 0))
    assert TextFiles(str(tmp_path)).digest() == first
    path.write_text("Two.")
    second = TextFiles(str(tmp_path)).digest()
    path.rename(tmp_path / "c.txt")
    assert len({first, second, TextFiles(str(tmp_path)).digest()}) == 3


def test_remote_files(monkeypatch):
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    system = MemoryFileSystem()
    text = "\n\n\n".join(f"Document {number}." for number in range(50))
    system.pipe({"/c/a.txt": text.encode(), "/c/d/b.txt.gz": gzip.compress(text.encode())})
    monkeypatch.setattr(files, "PART", 200)
    source = TextFiles("memory://c")
    parts = source.parts()
    assert [part.file.name for part in parts] == ["a.txt"] * 4 + ["d/b.txt.gz"]
    found = list(documents_of(source))
    assert [document.text for document in found] == text.split("\n\n\n") * 2
    assert found[0].place == "memory://c/a.txt"
    assert len(TextFiles("memory://c/**/*.gz").parts()) == 1
    first = source.digest()
    assert TextFiles("memory://c").digest() == first
    system.pipe(
        "/c/a.txt", text.encode()
    )  # another time of the same content may be another content
    assert TextFiles("memory://c").digest() != first
    with pytest.raises(UserError, match=r"memory://c/a.txt changed"):
        list(parts[0].read(pytest.fail))


class SignedOutError(Exception):
    """As file systems have their own, which are none of the operating system's."""


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("One.")
    part, *_ = TextFiles(str(tmp_path)).parts()

    def denied(*arguments, **options):
        raise PermissionError(13, "Permission denied", "a.txt")

    monkeypatch.setattr(LocalFileSystem, "open", denied)
    for read in (lambda: list(part.read(pytest.fail)), TextFiles(str(tmp_path)).digest):
        with pytest.raises(
            UserError, match=r"a.txt cannot be read .--data.root.: Permission denied"
        ):
            read()

    MemoryFileSystem().pipe("/one/a.txt", b"One.")
    part, *_ = TextFiles("memory://one").parts()

    def signed_out(*arguments, **options):
        raise SignedOutError

    monkeypatch.setattr(MemoryFileSystem, "open", signed_out)
    with pytest.raises(UserError, match=r"memory://one/a.txt cannot be read .*: SignedOutError"):
        list(part.read(pytest.fail))
    monkeypatch.setattr(MemoryFileSystem, "info", signed_out)
    with pytest.raises(UserError, match="memory://one cannot be read"):
        TextFiles("memory://one")


def test_a_name_that_is_not_utf8(tmp_path):
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt")).write_text("One.")
    (document,) = documents_of(TextFiles(str(tmp_path)))
    assert document.place.endswith("/\ufffd.txt")
    assert TextFiles(str(tmp_path)).digest()
