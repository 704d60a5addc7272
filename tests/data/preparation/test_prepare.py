"""Prepared text: split, without duplicates, nearly full; cached, and whole or absent."""

import json
import multiprocessing
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_texts import Documents, DocumentsPart, make_texts
from pydantic import ValidationError

from mlmjax.core.errors import UserError
from mlmjax.data import samples
from mlmjax.data.documents import Document, normalise
from mlmjax.data.preparation import cache
from mlmjax.data.preparation import prepare as room
from mlmjax.data.preparation.choosing import held_out
from mlmjax.data.preparation.prepare import Recipe, prepare
from mlmjax.data.preparation.tokenising import RowSettings
from mlmjax.data.prepared import PreparedText
from mlmjax.data.text import TextData
from mlmjax.data.tokenizer import TokenizerConfig

TOKENIZER = TokenizerConfig(vocabulary=200)


def recipe(
    *,
    tokenizer=TOKENIZER,
    length=32,
    layout="full",
    heldout=0.2,
    documents=0,
    **options,
):
    return Recipe(tokenizer, RowSettings(length, layout, documents), heldout, **options)


def make(source, folder, *, report=None, workers=1, **options):
    sources = source if isinstance(source, list) else [source]
    made = prepare(sources, recipe(**options), folder=folder, report=report, workers=workers)
    return PreparedText.open(made)


def all_rows(rows):
    return rows.read(range(len(rows)))


def text_of(prepared, rows):
    return [" ".join(map(prepared.tokenizer.token, row["tokens"])) for row in all_rows(rows)]


def everything(folder):
    return sorted(path.name for path in folder.iterdir())


def test_rows_are_nearly_full_and_of_one_shape(source, tmp_path):
    found = make(source, tmp_path, length=64)
    for split, rows in (("train", found.train), ("heldout", found.heldout)):
        table = all_rows(rows)
        assert table["tokens"].shape == (len(rows), 64)
        numbers = found.manifest["splits"][split]
        assert numbers["rows"] == len(rows)
        assert numbers["tokens"] == table["used"].sum()
        assert numbers["fill"] == pytest.approx(table["used"].mean() / 64)
    assert found.manifest["splits"]["train"]["fill"] > 0.95


def test_every_token_of_every_document_is_in_the_rows(source, tmp_path):
    found = make(source, tmp_path)
    encoded = found.tokenizer.encode([normalise(d.text) for d in source.documents])
    counts = sum(np.bincount(e.ids, minlength=found.vocabulary.size) for e in encoded)
    tables = np.concatenate([all_rows(found.train), all_rows(found.heldout)])
    in_rows = np.bincount(tables["tokens"].ravel(), minlength=found.vocabulary.size)
    named = list(found.vocabulary.special)
    counts[named] = in_rows[named] = 0
    np.testing.assert_array_equal(in_rows, counts)


def test_training_counts_leave_specials_out(source, tmp_path):
    found = make(source, tmp_path)
    tokens = all_rows(found.train)["tokens"].ravel()
    expected = np.bincount(tokens, minlength=found.vocabulary.size)
    expected[list(found.vocabulary.special)] = 0
    np.testing.assert_array_equal(found.token_counts, expected)


def test_groups_lie_on_one_side_and_texts_occur_once(texts, tmp_path):
    twice = [
        Document(t, f"g{i % 17}")
        for i, t in enumerate([*texts, *texts, " ", texts[0] + "\0 ", None])
    ]
    found = make(Documents(twice, per_part=50), tmp_path, length=256)
    assert found.manifest["documents"] == {
        "read": 403,
        "empty": 1,
        "null": 1,
        "duplicates": 201,
        "kept": 200,
    }
    splits = found.manifest["splits"]
    assert splits["train"]["documents"] + splits["heldout"]["documents"] == 200
    sides = [
        {
            int(n)
            for row in text_of(found, rows)
            for n in re.findall(r"number (\d+) \.", joined(row))
        }
        for rows in (found.train, found.heldout)
    ]
    assert sorted(sides[0] | sides[1]) == list(range(200))
    assert not {n % 17 for n in sides[0]} & {n % 17 for n in sides[1]}


def joined(row):
    """A row's text with its numbers in one piece."""
    return re.sub(r" ##", "", row)


@given(st.integers(2, 60), st.sampled_from([0.001, 0.5, 0.999]), st.integers(0, 2**32))
def test_neither_side_is_empty(count, share, seed):
    units = np.random.default_rng(seed).integers(0, 2**64, count, np.uint64)
    held = held_out(units, share)
    assert 0 < held.sum() < count
    np.testing.assert_array_equal(held_out(units[::-1], share), held[::-1])


def test_one_group_is_split_by_document(texts, tmp_path):
    found = make(Documents([Document(text, "one") for text in texts]), tmp_path)
    assert found.manifest["split_by"] == "document"
    assert not set(text_of(found, found.train)) & set(text_of(found, found.heldout))


def test_one_document_is_split_by_position(texts, tmp_path):
    found = make(Documents([Document(" ".join(texts), "one")]), tmp_path)
    assert found.manifest["split_by"] == "position"
    first = list(all_rows(found.train)["document"])
    assert len(set(first) | set(all_rows(found.heldout)["document"])) == 2
    share = len(found.heldout) / (len(found.heldout) + len(found.train))
    assert 0.1 < share < 0.3
    last = texts[-1].split()[-1].rstrip(".")
    assert text_of(found, found.heldout)[-1].split(" . [SEP]")[0].endswith(last)


def test_the_second_time_comes_from_the_cache(source, tmp_path, monkeypatch):
    first = make(source, tmp_path)
    monkeypatch.setattr(room._Job, "run", None)
    second = make(source, tmp_path)
    assert second.fingerprint == first.fingerprint
    assert second.manifest == first.manifest
    assert second.tokenizer.hash == first.tokenizer.hash
    np.testing.assert_array_equal(all_rows(second.train), all_rows(first.train))


def test_another_setting_tokenizer_or_text_is_another_fingerprint(source, texts, tmp_path):
    found = {
        make(source, tmp_path).fingerprint,
        make(source, tmp_path, length=16).fingerprint,
        make(source, tmp_path, heldout=0.3).fingerprint,
        make(source, tmp_path, layout="pairs").fingerprint,
        make(source, tmp_path, tokenizer=TokenizerConfig(vocabulary=180)).fingerprint,
        make(Documents([Document(t, t) for t in texts]), tmp_path).fingerprint,
    }
    assert len(found) == 6


def test_the_same_in_another_cache(source, tmp_path):
    first, second = make(source, tmp_path / "a"), make(source, tmp_path / "b")
    np.testing.assert_array_equal(all_rows(first.train), all_rows(second.train))
    assert first.manifest == second.manifest


@pytest.mark.parametrize("stage", ["reading", "training the tokenizer", "tokenising"])
def test_what_was_interrupted_goes_on_and_gives_the_same_bytes(source, tmp_path, stage):
    source = Documents(source.documents, per_part=60)
    expected = contents(make(source, tmp_path / "a").folder)
    told = []

    def interrupt(name, _done, _total):
        told.append(name)
        if told.count(stage) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(source, tmp_path / "b", report=interrupt)
    (left,) = (tmp_path / "b").iterdir()
    assert left.name.startswith(".")
    again = []
    found = make(source, tmp_path / "b", report=lambda *numbers: again.append(numbers))
    assert contents(found.folder) == expected
    assert everything(tmp_path / "b") == [found.folder.name]
    if stage != "training the tokenizer":
        first = next(done / total for name, done, total in again if name == stage)
        assert first > 0.5  # two of four tasks were done before, this is the third


@dataclass(frozen=True)
class DeadlyPart(DocumentsPart):
    """Kills any other process that reads it, as long as a file is there."""

    marker: str = ""

    def read(self, broken):
        if Path(self.marker).exists() and os.getpid() != int(Path(self.marker).read_text()):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.5)  # so that the other process has its turn
        yield from super().read(broken)


class Deadly(Documents):
    def parts(self):
        return [DeadlyPart(each.documents, marker=self.name) for each in super().parts()]


def test_what_is_finished_stays_when_a_worker_is_killed(source, tmp_path):
    marker = tmp_path / "marker"
    deadly = Deadly(source.documents, per_part=20, name=str(marker))
    expected = contents(make(deadly, tmp_path / "a").folder)
    marker.write_text(str(os.getpid()))
    with pytest.raises(UserError, match=r"was killed, .*--data\.workers 1\)\. The same command"):
        make(deadly, tmp_path / "b", workers=2)
    (work,) = (tmp_path / "b").iterdir()
    assert list((work / "documents").glob("*.json"))
    marker.unlink()
    assert contents(make(deadly, tmp_path / "b", workers=2).folder) == expected
    assert len(everything(tmp_path / "b")) == 1


def test_what_was_finished_but_not_named_is_found(source, tmp_path, monkeypatch):
    expected = contents(make(source, tmp_path / "a").folder)

    def interrupt(path, **options):
        next(path.iterdir()).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(cache.shutil, "rmtree", interrupt)
        with pytest.raises(KeyboardInterrupt):
            make(source, tmp_path / "b")
    stages = []
    found = make(source, tmp_path / "b", report=lambda *numbers: stages.append(numbers))
    assert contents(found.folder) == expected
    assert not stages
    assert everything(tmp_path / "b") == [found.folder.name]


def test_what_killed_processes_did_not_finish_is_removed(source, tmp_path):
    expected = contents(make(source, tmp_path / "a").folder)
    work = tmp_path / "b" / f".{make(source, tmp_path / 'a').folder.name}.unfinished"
    (work / "documents").mkdir(parents=True)
    (work / "documents" / "000000-0000.jsonl.17.unfinished").write_text("{")
    (work / "train-00000.array_record.17.unfinished").write_text("half")
    assert contents(make(source, tmp_path / "b").folder) == expected


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_number_of_processes_changes_no_byte(source, tmp_path):
    source = Documents(source.documents, per_part=60)
    one = make(source, tmp_path / "one", layout="packed", documents=8)
    many = make(source, tmp_path / "many", layout="packed", documents=8, workers=2)
    assert contents(one.folder) == contents(many.folder)
    assert len(one.manifest["shards"]) == 4


def damage_missing(folder):
    (folder / "train-00000.array_record").unlink()


def damage_truncated(folder):
    path = folder / "heldout-00000.array_record"
    path.write_bytes(path.read_bytes()[:-100])


def damage_manifest(folder):
    (folder / "manifest.json").write_text("{")


def damage_no_manifest(folder):
    (folder / "manifest.json").unlink()


@pytest.mark.parametrize(
    "damage", [damage_missing, damage_truncated, damage_manifest, damage_no_manifest]
)
def test_a_damaged_cache_is_built_again(source, tmp_path, damage):
    first = make(source, tmp_path)
    expected = all_rows(first.train)
    damage(first.folder)
    second = make(source, tmp_path)
    np.testing.assert_array_equal(all_rows(second.train), expected)
    assert everything(tmp_path) == [first.folder.name]


def test_damage_inside_a_file_is_told(source, tmp_path):
    found = make(source, tmp_path)
    path = found.folder / "train-00000.array_record"
    content = bytearray(path.read_bytes())
    content[200:4000] = bytes(3800)
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"train-00000.array_record"):
        all_rows(make(source, tmp_path).train)


def test_two_at_once_do_not_harm_each_other(source, tmp_path):
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: make(source, tmp_path), range(3)))
    assert everything(tmp_path) == [found[0].folder.name]
    for one in found[1:]:
        np.testing.assert_array_equal(all_rows(one.train), all_rows(found[0].train))


def test_a_work_folder_that_goes_while_it_is_looked_for(source, tmp_path, monkeypatch):
    """Another process publishes it between ``mkdir`` finding it there and seeing that it is a folder."""
    make_folder, once = Path.mkdir, [True]

    def mkdir(path, *arguments, **options):
        if path.name.endswith(".unfinished") and once:
            once.pop()
            raise FileExistsError(17, "File exists", str(path))
        make_folder(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    found = make(source, tmp_path)
    assert not once
    assert everything(tmp_path) == [found.folder.name]


def test_progress_is_reported(source, tmp_path):
    seen = []
    make(source, tmp_path, report=lambda *numbers: seen.append(numbers))
    stages = list(dict.fromkeys(stage for stage, _, _ in seen))
    assert stages == ["reading", "training the tokenizer", "tokenising"]
    assert all(done <= total or total == 0 for _, done, total in seen)
    assert all(any(s == stage and d == t for s, d, t in seen) for stage in stages)


def test_the_manifest_is_json_and_says_what_was_done(source, tmp_path):
    found = make(source, tmp_path)
    written = json.loads((found.folder / "manifest.json").read_text())
    assert written == found.manifest
    rows = {"length": 32, "layout": "full", "documents": 0}
    assert written["settings"] == {**rows, "heldout": 0.2, "on_error": "stop"}
    assert 1 <= written["tokens_per_word"] < 6
    assert {"python", "numpy", "tokenizers", "array_record"} <= set(written["versions"])
    assert {name.split("-")[0].split(".")[0] for name in everything(found.folder)} == {
        *("train", "heldout", "manifest", "token_counts", "tokenizer")
    }
    lengths = written["splits"]["train"]["lengths"]
    assert sum(lengths) == written["splits"]["train"]["documents"]


def test_pairs_count_documents_of_one_piece(texts, tmp_path):
    short = [Document("Too short.", "s"), *[Document(t, f"g{i % 9}") for i, t in enumerate(texts)]]
    found = make(Documents(short), tmp_path, layout="pairs")
    splits = found.manifest["splits"].values()
    assert sum(one["documents_of_one_piece"] for one in splits) >= 1


def test_sources_that_give_no_row_are_told(tmp_path):
    def told(texts, match, **options):
        with pytest.raises(UserError, match=match):
            make(Documents([Document(t, str(i)) for i, t in enumerate(texts)]), tmp_path, **options)
        assert everything(tmp_path) == []

    told([], "no text.*--data.root")
    told([" ", "\0"], "no text in .* .of 2 documents: 2 empty")
    told(["One sentence only."], "a single sentence.*--data.root")
    told(["Same. Same."], "repeats one text")
    told(["A b.", "C d."], "no training row.*--data.length", layout="pairs")
    told(make_texts(2), "one document.*--data.layout full", layout="pairs", length=8)


def test_a_cache_that_cannot_be_written_is_told(source, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--data.cache"):
        make(source, tmp_path / "file" / "cache")


def test_the_cache_lies_where_xdg_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.default() == tmp_path / "mlmjax"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.default() == tmp_path / ".cache" / "mlmjax"


def test_the_config_prepares_files(tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    for place, text in enumerate(make_texts(20)):
        (texts / f"{place}.txt").write_text(text)
    tokenizer = TokenizerConfig(vocabulary=150)
    data = TextData(root=str(texts), cache=str(tmp_path / "cache"), length=16, tokenizer=tokenizer)
    found = data.prepare()
    assert found.folder.parent == tmp_path / "cache"
    assert found.vocabulary == found.tokenizer.vocabulary
    assert len(found.train) > len(found.heldout) > 0
    loaded = data.updated(tokenizer=TokenizerConfig(path=str(found.folder / "tokenizer.json")))
    assert loaded.prepare().tokenizer.hash == found.tokenizer.hash


def test_the_config_prepares_documentation(tmp_path, monkeypatch):
    monkeypatch.setattr("mlmjax.data.text.PyDocs", lambda: samples.PyDocs(("jaxtyping",)))
    monkeypatch.setattr(samples.sysconfig, "get_path", lambda name: str(tmp_path / "none"))
    data = TextData(cache=str(tmp_path), length=32, tokenizer=TokenizerConfig(vocabulary=500))
    found = data.prepare()
    assert found.manifest["splits"]["train"]["fill"] > 0.95
    assert data.prepare().fingerprint == found.fingerprint


def test_configs_reject_what_is_out_of_range():
    for options in (
        {"length": 4},
        {"heldout": 0.0},
        {"heldout": 1.0},
        {"batch": 0},
        {"threads": 0},
    ):
        with pytest.raises(ValidationError):
            TextData(**options)
    with pytest.raises(ValidationError):
        TokenizerConfig(vocabulary=3)
    with pytest.raises(ValidationError):
        TokenizerConfig(model="other")
    data = TextData(examples=("A [MASK].",), layout="pairs")
    assert TextData.from_json(data.to_json()) == data
    assert hash(data) == hash(TextData(examples=("A [MASK].",), layout="pairs"))


def test_a_row_holds_no_more_documents_than_fit():
    data = TextData(length=64, layout="packed", documents_per_row=65535)
    assert data.spec()["document_ids"].shape[1] == data.recipe().rows.documents == 21
    assert TextData(length=64).recipe().rows.documents == 0


def test_the_abstract_vocabulary_has_the_asked_size():
    found = TextData(tokenizer=TokenizerConfig(vocabulary=1000)).abstract_vocabulary()
    assert found.size == 1000
    assert found.special == (0, 1, 2, 3, 4)


@pytest.mark.slow
def test_all_documentation(tmp_path):
    data = TextData(cache=str(tmp_path), length=64)
    found = data.prepare()
    train = found.manifest["splits"]["train"]
    assert train["fill"] > 0.95
    assert train["rows"] > 20_000
    assert multiprocessing.active_children() == []
