"""A source as an option of the command line."""

import gzip
import re
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tyro
from array_record.python.array_record_module import ArrayRecordWriter
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mlmjax.core.config import Config
from mlmjax.core.errors import UserError
from mlmjax.data.documents import Source, documents_of
from mlmjax.data.sources import (
    ArrayRecordFiles,
    JsonLines,
    MixturePart,
    ParquetFiles,
    TextFiles,
    TextSource,
)
from mlmjax.data.sources.config import parse, written


@pytest.fixture
def folder(tmp_path):
    """A folder of each kind."""
    for kind in ("text", "jsonl", "parquet", "records"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "README.md").write_text("Read me.")
    (tmp_path / "text" / "a.txt.gz").write_bytes(gzip.compress(b"One."))
    (tmp_path / "jsonl" / "a.jsonl").write_text('{"text": "One."}')
    (tmp_path / "jsonl" / "meta.json").write_text("{}")
    pq.write_table(pa.table({"text": ["One."]}), tmp_path / "parquet" / "a.parquet")
    writer = ArrayRecordWriter(str(tmp_path / "records" / "a.array_record"), "group_size:1")
    writer.write(b'{"text": "One."}')
    writer.close()
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("text", TextFiles),
        ("jsonl", JsonLines),
        ("parquet", ParquetFiles),
        ("records", ArrayRecordFiles),
    ],
)
def test_the_format_is_told_by_the_names(folder, kind, source):
    for root in (f"{folder}/{kind}", f"{folder}/{kind}/a*", f"{folder}/{kind}/../{kind}/a.*"):
        opened = TextSource(root=root).open()
        assert type(opened) is source
        assert isinstance(opened, Source)
        assert str(opened) == root
        assert [document.text for document in documents_of(opened)] == ["One."]


def test_the_format_is_given(folder):
    (folder / "jsonl" / "b.txt").write_text("Two.\n\nThree.")
    root = str(folder / "jsonl")
    with pytest.raises(
        UserError, match=r"several kinds .* a.jsonl \(jsonl\), b.txt \(text\).*--data.format"
    ):
        TextSource(root=root).open()
    assert len(TextSource(root=root, format="jsonl").open().parts()) == 1
    found = documents_of(TextSource(root=root, format="text", documents="blank_line").open())
    assert [document.text for document in found] == ["Two.", "Three."]
    with pytest.raises(UserError, match=r"no .parquet file"):
        TextSource(root=root, format="parquet").open()
    with pytest.raises(UserError, match=r"no .jsonl or .ndjson file"):
        TextSource(root=str(folder / "text"), format="jsonl").open()
    with pytest.raises(UserError, match="no finished TFDS dataset"):
        TextSource(root=root, format="tfds").open()
    (document,) = documents_of(TextSource(root=f"{root}/meta.json", format="text").open())
    assert document.text == "{}"


def test_fields_are_passed_on(folder):
    (folder / "jsonl" / "a.jsonl").write_text('{"body": "One.", "key": 1, "site": "s"}')
    source = TextSource(
        root=str(folder / "jsonl"), field="body", id_field="key", group_field="site"
    )
    (document,) = documents_of(source.open())
    assert (document.text, document.id, document.group) == ("One.", "1", "s")


class Mixed(Config):
    """As an experiment holds sources."""

    mixture: tuple[MixturePart, ...] = ()
    """Several sources."""


def test_a_mixture_on_the_command_line():
    words = [
        "--mixture",
        "wiki/*.jsonl=0.7",
        "books/=.3",
        "a=b/c.parquet=2,field=body,id_field=url",
    ]
    assert tyro.cli(Mixed, args=words).mixture == (
        TextSource(root="wiki/*.jsonl", weight=0.7),
        TextSource(root="books/", weight=0.3),
        TextSource(root="a=b/c.parquet", weight=2, field="body", id_field="url"),
    )
    default = Mixed(mixture=(TextSource(root="books/", weight=0.25, field="body"),))
    assert tyro.cli(Mixed, args=[], default=default) == default
    assert tyro.cli(Mixed, args=["--mixture", "a=1"], default=default) == Mixed(
        mixture=(TextSource(root="a"),)
    )
    (source,) = default.mixture
    assert TextSource.from_json(source.to_json()) == source


def test_help_shows_the_mixture(capsys):
    default = Mixed(mixture=(TextSource(root="books/", weight=0.25, field="body"),))
    with pytest.raises(SystemExit):
        tyro.cli(Mixed, args=["--help"], default=default)
    shown = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    assert "ROOT=WEIGHT" in shown
    assert "books/=0.25,field=body" in shown


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("books", ". Write ROOT=WEIGHT, such as 'wiki/*.jsonl=0.7', or"),
        ("=0.5", ". Write ROOT=WEIGHT"),
        ("books=0", "weight: Input should be greater than 0"),
        ("books=-1", "weight: Input should be greater than 0"),
        ("books=much", "weight: Input should be a valid number"),
        ("books=", "weight: Input should be a valid number"),
        ("books=nan", "weight: Input should be a finite number"),
        ("books=inf", "weight: Input should be a finite number"),
        ("books=1,format=csv", "format: Input should be 'auto', 'text'"),
        ("books=1,fields=body", "fields: Extra inputs are not permitted"),
        ("books=1,split=", "split: String should have at least 1 character"),
    ],
)
def test_a_mixture_that_is_wrong(word, message):
    for words in ([word], ["wiki/=1", word], [word, "wiki/=1"]):
        with pytest.raises(UserError) as told:
            tyro.cli(Mixed, args=["--mixture", *words])
        assert str(told.value).startswith(f"'{word}' is no source (--data.mixture)")
        assert message in str(told.value)


@given(
    root=st.text(min_size=1),
    weight=st.floats(1e-6, 1e6).map(lambda weight: float(f"{weight:.6g}")),
    field=st.text("abc_.-/"),
    mode=st.sampled_from(["blank_lines", "blank_line", "line", "file"]),
    split=st.sampled_from(["train", "test[:10%]"]),
)
def test_what_is_written_is_read(root, weight, field, mode, split):
    source = TextSource(root=root, weight=weight, field=field, documents=mode, split=split)
    assert parse(written(source)) == source


def test_reading_needs_nothing_of_the_training_side():
    """Processes that read start quickly, and import a format's library when it is read."""
    program = "import sys, mlmjax.data.sources, mlmjax.data.samples; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    modules = found.stdout.decode().split()
    assert "mlmjax.data.sources.parquet" in modules
    unwanted = {
        "jax",
        "grain",
        "orbax",
        "flax",
        "pyarrow",
        "tensorflow_datasets",
        "mlmjax.data.base",
    }
    assert not unwanted & {*modules}


def test_values_are_checked():
    for wrong in ({"root": ""}, {"root": "a", "weight": 0}, {"root": "a", "format": "csv"}):
        with pytest.raises(ValidationError):
            TextSource(**wrong)
