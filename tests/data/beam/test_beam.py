"""Preparation on Apache Beam gives what the local one gives, byte for byte, or a sentence."""

import errno
import json
import random
import sys
from collections import defaultdict
from dataclasses import dataclass

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_texts import Documents, DocumentsPart, make_texts

from mlmjax.cli import main
from mlmjax.core.errors import UserError
from mlmjax.data.beam import prepare as beam
from mlmjax.data.beam import steps as beam_steps
from mlmjax.data.beam.steps import FindExtremes
from mlmjax.data.documents import Document
from mlmjax.data.preparation import cache, prepare, reading
from mlmjax.data.preparation.choosing import ENTRY, Fate, choose
from mlmjax.data.preparation.cleaning import Cleaning
from mlmjax.data.preparation.destination import Folder
from mlmjax.data.preparation.near_duplicates import near_duplicates
from mlmjax.data.preparation.prepare import Recipe
from mlmjax.data.preparation.tokenising import RowSettings
from mlmjax.data.tokenizer import TokenizerConfig
from tests.commands import printed, refused

CLEANING = Cleaning(near_duplicates=0.5, shortest=30)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> TokenizerConfig:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    TokenizerConfig(vocabulary=200).train(make_texts(100)).save(path)
    return TokenizerConfig(path=str(path))


@pytest.fixture
def mixture(monkeypatch):
    """Two sources of several tasks and blocks each, with groups, copies and near-copies in both."""
    monkeypatch.setattr(reading, "BLOCK", 8000)
    monkeypatch.setattr(reading, "MOST", 10**9)
    texts = make_texts(120)
    near = [f"{text} And a new end." for text in texts[:40]]
    documents = [
        *(Document(text, f"g{i % 30}", id=f"a{i}") for i, text in enumerate(texts)),
        *(Document(text, f"g{i % 50}", id=f"b{i}") for i, text in enumerate(near)),
        *(Document(text) for text in texts[::9]),
        *(Document(None), Document(" \n"), Document("Too short."), "a:7: it is broken."),
    ]
    random.Random(0).shuffle(documents)
    first, second = documents[:90], documents[90:]
    return [Documents(first, per_part=50, name="one"), Documents(second, per_part=50, name="two")]


def recipe(tokenizer, *, layout="full", documents=0, cleaning=CLEANING, on_error="skip"):
    return Recipe(tokenizer, RowSettings(32, layout, documents), 0.2, cleaning, on_error)


def run(sources, recipe, folder, **options):
    return beam.prepare(sources, recipe, runner="DirectRunner", folder=str(folder), **options)


def names(url):
    """What lies in a folder."""
    system, path = fsspec.url_to_fs(str(url))
    return sorted(file.rsplit("/", 1)[-1] for file in system.ls(path, detail=False))


def contents(folder):
    """The files of a folder by name."""
    system, path = fsspec.url_to_fs(str(folder))
    return {name: system.cat_file(f"{path}/{name}") for name in names(folder)}


@pytest.mark.parametrize(
    ("layout", "documents", "where"),
    [("full", 0, ""), ("pairs", 0, "file://"), ("packed", 4, "memory://")],
)
def test_it_gives_what_the_local_preparation_gives(
    mixture, tokenizer, tmp_path, monkeypatch, capfd, layout, documents, where
):
    how = recipe(tokenizer, layout=layout, documents=documents)
    expected = prepare.prepare(mixture, how, folder=tmp_path / "local", workers=1)
    manifest = json.loads((expected / "manifest.json").read_text())
    counted = manifest["documents"]
    assert all(counted[kind] for kind in ("null", "empty", "broken", "shortest", "duplicates"))
    assert counted["near_duplicates"] > 10
    assert len({shard["source"] for shard in manifest["shards"]}) == 2
    assert len(manifest["shards"]) > 5
    folder = f"{where}{tmp_path / 'beam'}"
    found = run(mixture, how, folder)
    assert found.manifest == manifest
    assert contents(found.folder) == contents(str(expected))
    assert names(folder) == [expected.name]
    assert not any(capfd.readouterr())
    monkeypatch.setattr(beam, "_make", None)
    assert run(mixture, how, folder) == found  # from the cache


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 4), st.sampled_from([0.5, 0.8]))
def test_what_becomes_of_documents_is_decided_as_locally(seed, count, groups, threshold):
    rng = np.random.default_rng(seed)
    texts = rng.integers(0, 2**64, (count, 2), np.uint64)
    signatures = rng.integers(0, 2, (count, 32)).astype(np.uint32)
    close = rng.integers(0, count, count)
    same = rng.integers(33)
    signatures[:, :same] = signatures[close, :same]
    units = rng.integers(0, 2**64, groups, np.uint64)
    entries = np.zeros(2 * count, ENTRY)
    which = rng.integers(0, count, len(entries))
    entries["text"], entries["group"] = texts[which], rng.choice(units, len(entries))
    near = near_duplicates(signatures[which], threshold=threshold)
    expected = choose(entries, near, heldout=0.3)

    facts = defaultdict(list)
    places = [(i // 20, i % 20 // 5, i) for i in range(len(entries))]
    for place, entry, text in zip(places, entries, which, strict=True):
        key, group = (np.array(entry[name]).astype(">u8").tobytes() for name in ("text", "group"))
        facts[key].append((place, group, signatures[text].tobytes()))
    different = [beam_steps.place((key, min(same))) for key, same in facts.items()]
    buckets = defaultdict(list)
    for fact in different:
        for key, member in beam_steps.bands(fact, threshold):
            buckets[key].append(member)
    dropped = defaultdict(list)
    for bucket in buckets.items():
        for place, found in beam_steps.near(bucket, threshold):
            dropped[place].append(found)
    joined = [
        (place, {"units": [found], "near": dropped[place]})
        for place, found in map(beam_steps.units, different)
    ]
    chosen = [one for each in joined for one in beam_steps.not_near(each)]
    combine = FindExtremes()
    parts = [combine.create_accumulator() for _ in range(3)]
    for place, found in chosen:
        parts[place[0] % 3] = combine.add_input(parts[place[0] % 3], found)
    extremes = combine.extract_output(combine.merge_accumulators(parts))

    kept = expected.count(Fate.TRAIN, Fate.HELDOUT, Fate.BOTH)
    assert extremes.documents == kept
    assert len(entries) - len(different) == expected.count(Fate.DUPLICATE)
    if kept > 1:
        assert extremes.split_by == expected.split_by
        numbered = [(place[2], found) for place, found in chosen]
        fates = extremes.fates(numbered, documents=len(entries), heldout=0.3)
        expected.fates[expected.fates == Fate.NEAR_DUPLICATE] = Fate.DUPLICATE
        np.testing.assert_array_equal(fates, expected.fates)


def test_ids_must_differ_over_all_sources(mixture, tokenizer, tmp_path):
    again = Document("The same id once more, in another source.", id="a3", place="third:9")
    sources = [*mixture, Documents([again])]
    with pytest.raises(UserError, match=r"'a3' occurs twice, at .*and at third:9.*--data.id-field"):
        run(sources, recipe(tokenizer), tmp_path)
    assert not [name for name in names(tmp_path) if not name.startswith(".")]


@dataclass(frozen=True)
class Interrupting(DocumentsPart):
    """A part in the midst of which the user interrupts."""

    def read(self, broken):
        yield Document("One text.")
        raise KeyboardInterrupt


def test_an_interruption_is_none_of_the_pipelines_errors(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(Documents, "parts", lambda self: [Interrupting(())])
    with pytest.raises(KeyboardInterrupt):
        run([Documents([])], recipe(tokenizer), tmp_path)
    (work,) = names(tmp_path)
    assert names(tmp_path / work) == [cache.LOCK]


def test_one_document_is_left_to_the_local_preparation(tokenizer, tmp_path):
    url = f"memory://{tmp_path}"
    with pytest.raises(UserError, match=r"the test's text holds one document.*without --runner"):
        run([Documents([Document(text) for text in make_texts(1) * 3])], recipe(tokenizer), url)
    assert [names(f"{url}/{name}") for name in names(url)] in ([], [[]])


def test_a_remote_folder_is_whole_or_not_there(mixture, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(
        beam, "_make", lambda job, work, *_: work.system.pipe_file(f"{work.path}/a", b"x") or {}
    )
    url = f"memory://{tmp_path}"
    found = run(mixture, recipe(tokenizer), url)
    assert set(contents(found.folder)) == {"a", "manifest.json"}
    system, path = fsspec.url_to_fs(found.folder)
    for name, content in (("a", b"xy"), ("manifest.json", b"{")):
        system.pipe_file(f"{path}/{name}", content)
        system.pipe_file(f"{path}/left", b"behind")
        assert run(mixture, recipe(tokenizer), url) == found
        assert set(contents(found.folder)) == {"a", "manifest.json"}


def test_a_full_disk_is_told(tokenizer, tmp_path, monkeypatch):
    put = Folder.put

    def full(folder, file, name):
        if name.startswith("train"):
            raise OSError(errno.ENOSPC, "No space left on device")
        put(folder, file, name)

    monkeypatch.setattr(Folder, "put", full)
    with pytest.raises(UserError, match=r"no room.*--data.cache"):
        run([Documents([Document(text) for text in make_texts(20)])], recipe(tokenizer), tmp_path)
    assert names(tmp_path) == []


def test_workers_that_write_elsewhere_are_told(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(beam.Job, "run", lambda job, graph: None)
    with pytest.raises(UserError, match=r"wrote elsewhere.*--data.cache"):
        run([Documents([])], recipe(tokenizer), tmp_path)
    assert names(tmp_path) == []


def test_a_tokenizer_must_be_there(mixture, tmp_path):
    with pytest.raises(UserError, match=r"--data.tokenizer.path.*without --runner"):
        run(mixture, recipe(TokenizerConfig()), tmp_path)


def test_beam_must_be_there(mixture, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(UserError, match=r"pip install 'mlmjax\[beam\]'"):
        run(mixture, recipe(tokenizer), tmp_path)


def test_the_command_line(config, tokenizer, tmp_path, capsys):
    records = [{"text": text, "author": f"g{i % 9}"} for i, text in enumerate(make_texts(60))]
    root = tmp_path / "a.jsonl"
    root.write_text("".join(f"{json.dumps(record)}\n" for record in records) + "{no json\n")
    arguments = ["prepare", config, "--data.root", str(root), "--data.group-field", "author"]
    arguments += [
        "--data.tokenizer.path",
        str(tokenizer.path),
        "--data.cache",
        str(tmp_path),
        "--json",
    ]
    direct = ["--runner", "DirectRunner"]
    said = refused(capsys, *arguments, *direct)
    assert said.startswith(f"mlmjax: {root}:61: not JSON")
    assert said.endswith("--data.on-error skip.")
    skip = ["--data.on-error", "skip"]
    main([*arguments, *skip, *direct, "--", "--direct_num_workers", "1"])
    found = json.loads(capsys.readouterr().out)
    assert found["documents"] == {"read": 61, "broken": 1, "duplicates": 0, "kept": 60}
    assert found == printed(capsys, *arguments, *skip)  # without Beam, from the cache

    def told(*options):
        return refused(capsys, *arguments, *options)

    assert "no runner NoRunner here" in told("--runner", "NoRunner")
    assert "Did you mean --direct_num_workers?" in told(*direct, "--", "--direct_num_worker", "2")
    assert "--direct_num_workers: invalid int" in told(*direct, "--", "--direct_num_workers", "x")
    assert "The runner stands before --" in told(*direct, "--", "--runner", "DirectRunner")
    assert "is for --runner" in told("--", "--direct_num_workers", "2")
    assert "none://c cannot be written (--data.cache)" in told(*direct, "--data.cache", "none://c")
    assert "memory://c (--data.cache) is remote" in told("--data.cache", "memory://c")
    assert "do not see" in told("--runner", "DataflowRunner")
