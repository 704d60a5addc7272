"""What one name finds, and what the files hold by their names."""

import os
import sys

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from mlmjax.core.errors import UserError
from mlmjax.data.sources import TextFiles
from mlmjax.data.sources.finding import find, kind_of


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("b.txt", "sub/a.txt", "c.md", "sub/notes", "meta.json"):
        (tmp_path / name).write_text("One.\n\n\nTwo.\n")
    return tmp_path


def names(root):
    return [part.file.name for part in TextFiles(str(root)).parts()]


def test_a_file_a_folder_and_patterns(folder):
    assert (
        names(folder) == names(f"{folder}/") == names(f"file://{folder}") == ["b.txt", "sub/a.txt"]
    )
    assert names(folder / "b.txt") == ["b.txt"]
    assert names(folder / "c.md") == ["c.md"]
    assert names(f"{folder}/**/*.txt") == ["b.txt", "sub/a.txt"]
    assert names(f"file://{folder}/**/*.txt") == ["b.txt", "sub/a.txt"]
    assert names(f"{folder}/s*/?.txt") == ["sub/a.txt"]
    assert names(f"{folder}/[a-c].*") == ["b.txt", "c.md"]
    assert names(f"{folder}/*") == ["b.txt", "c.md", "meta.json"]
    assert len(names(f"{folder}/**")) == 5


def test_relative_names(folder, monkeypatch):
    home = folder / "[home]"  # looks like a pattern
    home.mkdir()
    monkeypatch.chdir(home)
    (home / "d.txt").write_text("One.")
    assert names("*.txt") == names("./*.txt") == ["d.txt"]
    assert names("../*home*/d.*") == ["[home]/d.txt"]
    assert names("d.txt") == names(".") == names(home) == ["d.txt"]
    (part,) = TextFiles("*.txt").parts()
    assert part.file.shown == "d.txt"
    monkeypatch.chdir(folder)  # what was found is read from anywhere
    assert next(part.read(pytest.fail)).text == "One."
    monkeypatch.setenv("HOME", str(home))
    assert names("~/d.txt") == names("~/*.txt") == names("~") == ["d.txt"]


def test_links_are_followed_and_folders_entered_once(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (folder / "sub" / "round").symlink_to(folder)
    (folder / "other").symlink_to(folder / "sub")
    (folder / "sub" / "elsewhere").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(folder / "sub")
    (elsewhere / "e.txt").write_text("One.")
    (folder / "link.txt").symlink_to(folder / "b.txt")
    assert names(folder) == ["b.txt", "link.txt", "sub/a.txt", "sub/elsewhere/e.txt"]
    (folder / "gone.txt").symlink_to(folder / "nowhere")
    with pytest.raises(UserError, match=r"gone.txt is a link to nothing"):
        names(folder)


def test_a_folder_elsewhere(folder):
    system = MemoryFileSystem()
    system.pipe({f"/elsewhere/{name}": b"One." for name in ("b.txt", "sub/a.txt", "c.md")})
    assert names("memory://elsewhere") == ["b.txt", "sub/a.txt"]
    assert names("memory://elsewhere/sub/a.txt") == ["a.txt"]
    assert names("memory://elsewhere/**/*.txt") == ["b.txt", "sub/a.txt"]
    assert names("memory://elsewhere/s*/?.txt") == ["sub/a.txt"]
    for root, message in {
        "memory://nowhere": "no file or folder memory://nowhere",
        "memory://elsewhere/*.parquet": "No file matches the pattern: memory://elsewhere/",
        "memory://elsewhere/a**b": "pattern memory://elsewhere/a..b cannot be used",
    }.items():
        with pytest.raises(UserError, match=message):
            find(root)


@pytest.mark.parametrize(
    ("root", "message"),
    [
        ("gs://bucket/a", "gs://bucket/a cannot be read .--data.root.: .*pip install gcsfs"),
        ("s3://bucket/a", "pip install s3fs"),
        ("nothing://a", "nothing://a cannot be read .--data.root.: Protocol not known"),
    ],
)
def test_file_systems_that_are_not_installed(monkeypatch, root, message):
    for package in ("gcsfs", "s3fs"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=message):
        find(root)


def test_what_is_not_there_is_told(tmp_path, monkeypatch):
    def told(root, match):
        with pytest.raises(UserError, match=match):
            TextFiles(str(root))

    told(tmp_path / "none", r"no file or folder .*none .--data.root")
    told(tmp_path, r"no .txt file: .*--data.root")
    told(f"{tmp_path}/*.txt", "No file matches")
    told(f"{tmp_path}/none/*.txt", "No file matches")
    told(f"{tmp_path}/a**b/*.txt", "cannot be used")
    (tmp_path / "a.txt").write_text("a")
    told(tmp_path / "a.txt" / "b", "no file or folder")
    (tmp_path / "a.txt").unlink()
    with pytest.raises(UserError, match=r"no .txt, .jsonl, .parquet or .array_record file"):
        find(str(tmp_path)).kind()

    def denied(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "sub").mkdir()
    monkeypatch.setattr(os, "scandir", denied)
    told(tmp_path, "cannot be read .--data.root.: Permission denied")


def test_kinds():
    kinds = {
        "text": ["a.txt", "A.TXT", "b/a.txt.gz", "a.txt.zst", "a.gz", "a.txt-00000-of-00002"],
        "jsonl": ["a.jsonl", "a.ndjson", "a.json", "a.jsonl.gz", "c4-train.00000-of-01024.json.gz"],
        "parquet": ["a.parquet", "train-00000-of-00010.parquet"],
        "array_record": ["a.array_record", "a.arrayrecord", "d-train.array_record-00000-of-00001"],
        None: ["a", "a.tar.gz", "a.parquet.gz", "a.pdf", ".txt", "a.csv"],
    }
    assert {kind: [kind_of(name) for name in names] for kind, names in kinds.items()} == {
        kind: [kind] * len(names) for kind, names in kinds.items()
    }
