"""``mlmjax prepare``: what it reports, and that bad data ends with a sentence that names the place."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from mlmjax.cli import main
from mlmjax.data.preparation import reading
from mlmjax.experiment import Experiment
from tests.commands import printed, refused

SENTENCES = [
    f"The list of values number {i} returns a new array. Path {i} given." for i in range(60)
]


@pytest.fixture
def prepare(config: str, tmp_path: Path, capsys: pytest.CaptureFixture):
    """Runs the command on a root, in a cache of the test's own; gives the record that it prints."""

    def run(root: object, *options: str) -> dict:
        arguments = [
            "prepare",
            config,
            "--data.root",
            str(root),
            "--data.cache",
            str(tmp_path / "c"),
        ]
        return printed(capsys, *arguments, "--json", *options)

    return run


@pytest.fixture
def told(config: str, tmp_path: Path, capsys: pytest.CaptureFixture):
    """Runs the command on a root, sees it refused with nothing left in the cache; what it says."""

    def run(root: object, *options: str) -> str:
        cache = tmp_path / "refused"
        arguments = ["prepare", config, "--data.root", str(root), "--data.cache", str(cache)]
        said = refused(capsys, *arguments, *options)
        assert not cache.exists() or not list(cache.iterdir())
        return said

    return run


def lines(path: Path, records: list) -> Path:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def test_it_reports_what_was_read_dropped_and_made(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    texts = [*SENTENCES, SENTENCES[0], "", None, "hi", "?!" * 40]
    root = lines(tmp_path / "a.jsonl", [{"text": text} for text in texts])
    options = ["--data.cleaning.shortest", "5", "--data.cleaning.symbols", "0.5"]
    main(["prepare", config, "--data.root", str(root), *options])
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for row in (
        "read 65",
        "null 1",
        "empty 1",
        "shorter than --data.cleaning.shortest 1",
        "too many symbols 1",
        "exact duplicates 1",
        "kept 60",
        "tokens a word",
        "rows that cut a document",
        "Tokens a document",
    ):
        assert row in said


def test_formats_give_the_same_rows(prepare, tmp_path: Path) -> None:
    records = [{"body": text, "other": 1} for text in SENTENCES]
    plain = lines(tmp_path / "a.jsonl", records)
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    parquet.write_table(pa.table({"body": SENTENCES}), tmp_path / "c.parquet", row_group_size=7)
    text = tmp_path / "d.txt"
    text.write_text("\n".join(SENTENCES))
    found = [
        prepare(plain, "--data.field", "body"),
        prepare(packed, "--data.field", "body"),
        prepare(tmp_path / "c.parquet", "--data.field", "body"),
        prepare(text, "--data.documents", "line"),
    ]
    rows = [(Path(one["folder"]) / "train-00000.array_record").read_bytes() for one in found]
    assert rows[0] == rows[1] == rows[2] == rows[3]
    assert len({one["fingerprint"] for one in found}) == 4


def test_a_mixture_is_prepared(config: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    one = lines(tmp_path / "a.jsonl", [{"text": text} for text in SENTENCES[:30]])
    (tmp_path / "b").mkdir()
    for number in range(6):
        text = "\n\n\n".join(SENTENCES[30 + 5 * number : 35 + 5 * number])
        (tmp_path / "b" / f"{number}.txt").write_text(text)
    mixture = ["--data.mixture", f"{one}=0.75", "b=0.25"]
    options = ["--data.workers", "1", "--data.cache", "c"]
    main(["prepare", config, *mixture, "--data.root", "None", *options])
    said = capsys.readouterr().out
    assert f"{one}: " in said
    assert "b: " in said
    assert "root and mixture" in refused(capsys, "prepare", config, *mixture)


def test_a_mixture_must_be_able_to_keep_its_weights(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    one = lines(tmp_path / "a.jsonl", [{"text": text} for text in SENTENCES])
    (tmp_path / "empty.jsonl").write_text("")
    command = ["prepare", config, "--data.root", "None", "--data.workers", "1", "--data.mixture"]
    said = refused(capsys, *command, f"{one}=0.5", "empty.jsonl=0.5")
    assert "empty.jsonl gives no training row" in said
    assert "--data.mixture" in said
    said = refused(capsys, *command, f"{one}=0.5", "none.jsonl=0.5")
    assert "There is no file or folder none.jsonl (--data.mixture)" in said
    said = refused(capsys, *command, f"{one}=1e-300", f"{one}=1e300")
    assert "the largest may be 1,000,000 times the smallest" in said


def test_text_that_is_hard_to_read_is_read(prepare, tmp_path: Path) -> None:
    hard = [
        "NUL \0 in the middle of a text that goes on.",
        "مرحبا بالعالم. هذا نص عربي قصير.",
        "שלום עולם. זה טקסט.",
        "Emoji 👩‍👩‍👧 and 🇩🇪 flags. 🙂 Yes.",
        "Combining e\u0301 a\u0308 marks. Z\u0335\u0321a\u0317lgo.",
    ]
    path = tmp_path / "a.jsonl"
    surrogate = '{"text": "Half \\ud800 of a pair. And \\udc00 the other."}\n'
    path.write_text(lines(path, [{"text": t} for t in [*SENTENCES, *hard]]).read_text() + surrogate)
    found = prepare(
        path, "--data.tokenizer.model", "byte_bpe", "--data.tokenizer.vocabulary", "400"
    )
    assert found["documents"] == {"read": 66, "duplicates": 0, "kept": 66}


def test_nothing_to_read(told, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    assert f"There is no text in {tmp_path}/empty.txt" in told(tmp_path / "empty.txt")
    assert "There is no file or folder" in told(tmp_path / "none.txt")
    lines(tmp_path / "null.jsonl", [{"text": None}, {"text": " "}])
    assert "2 documents: 1 empty, 1 null" in told(tmp_path / "null.jsonl")


def test_a_file_that_cannot_be_read(told, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").symlink_to("/proc/self/mem")
    assert "bad.txt cannot be read (--data.root)" in told(tmp_path / "bad.txt")


def test_text_that_is_not_utf8_is_told_with_its_byte(told, prepare, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\n\n\n".join(SENTENCES).encode() + b"\n\n\nCaf\xe9 latin.\n")
    place = path.read_bytes().index(b"\xe9")
    said = told(path)
    assert f"{path}" in said
    assert f"byte {place:,}" in said or f"byte {place}" in said
    assert "0xe9" in said
    assert prepare(path, "--data.on-error", "skip")["documents"]["broken"] == 1


def test_a_broken_line_is_told_or_skipped_and_counted(told, prepare, tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"text": text} for text in SENTENCES])
    path.write_text(path.read_text() + '{"text": "cut\n[1, 2]\n{"body": "x"}\n{"text": 3}\n')
    said = told(path)
    assert "a.jsonl:61" in said
    assert "--data.on-error skip" in said
    found = prepare(path, "--data.on-error", "skip")
    assert found["documents"] == {"read": 64, "broken": 4, "duplicates": 0, "kept": 60}
    for line, message in zip(range(61, 65), found["broken"], strict=True):
        assert f"a.jsonl:{line}" in message


def test_a_field_that_is_not_there(told, tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"body": text, "title": "x"} for text in SENTENCES])
    said = told(path)
    assert "a.jsonl:1" in said
    assert "body" in said
    assert "title" in said
    assert "--data.field" in said


def test_a_parquet_column_that_is_no_text(told, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": [1, 2], "body": ["a", "b"]}), path)
    said = told(path)
    assert "a.parquet" in said
    assert "int64" in said
    assert "body" in said
    assert "no column 'words'" in told(path, "--data.field", "words")


def test_columns_of_one_name(told, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table([["a"], ["b"]], names=["text", "text"]), path)
    assert "several columns 'text'" in told(path)


def test_a_tfds_folder_without_a_finished_dataset(told, tmp_path: Path) -> None:
    folder = tmp_path / "set" / "1.0.0.incompleteABC"
    folder.mkdir(parents=True)
    (folder / "set-train.array_record-00000-of-00001").write_text("")
    assert "no finished TFDS dataset" in told(tmp_path / "set", "--data.format", "tfds")


def test_a_source_that_changes_while_it_is_read(
    told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lines(tmp_path / "a.jsonl", [{"text": text} for text in SENTENCES])
    read = reading.read

    def changed(task, *rest):
        for place, each in enumerate(read(task, *rest)):
            if place == 30:
                path.write_text(path.read_text() + '{"text": "More."}\n')
            yield each

    monkeypatch.setattr(reading, "read", changed)
    assert "a.jsonl changed while it was read" in told(path)


def test_a_source_that_changed_is_prepared_anew(prepare, tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"text": text} for text in SENTENCES])
    first = prepare(path)
    stat = path.stat()
    path.write_text(path.read_text().replace("number 7 ", "number 8 "))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    second = prepare(path)
    assert second["fingerprint"] != first["fingerprint"]


def test_an_id_that_occurs_twice(config: str, capsys, tmp_path: Path) -> None:
    one = lines(tmp_path / "a.jsonl", [{"text": t, "key": str(i)} for i, t in enumerate(SENTENCES)])
    two = lines(tmp_path / "b.jsonl", [{"text": "Another text. Yes.", "key": 17}])
    mixture = ["--data.mixture", f"{one}=1", f"{two}=1", "--data.root", "None"]
    said = refused(
        capsys,
        *("prepare", config, *mixture, "--data.id-field", "key", "--data.workers", "1"),
        *("--data.cache", "c"),
    )
    assert "'17' occurs twice" in said
    assert "a.jsonl:18" in said
    assert "b.jsonl:1" in said


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, resource.RLIM_INFINITY))
from mlmjax.cli import main
main(sys.argv[1:])
"""


def test_a_full_disk_keeps_what_is_finished(prepare, config: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    texts = [" ".join(map(str, rng.integers(0, 9999, 40))) + ". End." for _ in range(2000)]
    path = lines(tmp_path / "a.jsonl", [{"text": text} for text in texts])
    cache = ["--data.root", str(path), "--data.cache", str(tmp_path / "c")]
    ended = subprocess.run(
        [sys.executable, "-c", LIMITED.format(size=800_000), "prepare", config, *cache],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "There is no room" in ended.stderr
    assert "--data.cache" in ended.stderr
    (left,) = (tmp_path / "c").iterdir()
    assert list((left / "documents").glob("*.json"))
    assert prepare(path)["documents"]["kept"] == 2000


OWN_SOURCE = """
from dataclasses import dataclass
from mlmjax.data.documents import Document
from mlmjax.data.preparation import reading
from mlmjax.experiment import Experiment
from mlmjax.data.text import TextData

@dataclass(frozen=True)
class Part:
    number: int
    name: str = "a part"
    size: int = reading.TASK

    def read(self, broken):
        for line in range(200):
            yield Document(f"Part {{self.number}} has a line {{line}} of its own. It ends here.")

class Own:
    def parts(self):
        return [Part(number) for number in range(4)]
    def digest(self):
        return "of four parts"
    def __str__(self):
        return "what the config makes"

class OwnText(TextData):
    def sources(self):
        return [Own()]

from pathlib import Path
from mlmjax.experiment import Experiment, load_experiment
small = Experiment.from_json(Path({json!r}).read_text())
fields = {{name: getattr(small.data, name) for name in type(small.data).model_fields}}
experiment = small.updated(data=OwnText(**(fields | {{"root": None}})))
"""


def test_a_source_of_the_config_file_is_read_in_several_processes(
    experiment: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "small.json").write_text(experiment.to_json())
    config = tmp_path / "own.py"
    config.write_text(OWN_SOURCE.format(json=str(tmp_path / "small.json")))
    found = printed(capsys, "prepare", str(config), "--json", "--data.workers", "2")
    assert found["documents"] == {"read": 800, "duplicates": 0, "kept": 800}
