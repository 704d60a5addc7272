"""Batches depend on (seed, step) alone; pairs on (seed, epoch, id)."""

import gc
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_texts import Documents, make_texts

from mlmjax.data.documents import Document
from mlmjax.data.draws import draws
from mlmjax.data.pipeline import batches, heldout_batches
from mlmjax.data.preparation.prepare import Recipe, prepare
from mlmjax.data.preparation.tokenising import RowSettings
from mlmjax.data.prepared import PreparedText
from mlmjax.data.text import TextData
from mlmjax.data.tokenizer import TokenizerConfig

LAYOUTS = ("full", "pairs", "packed")


def make(folder, layout, texts):
    source = Documents([Document(text, str(i)) for i, text in enumerate(texts)])
    return PreparedText.open(prepare([source], recipe(layout), folder=folder))


def recipe(layout):
    rows = RowSettings(32, layout, 4 if layout == "packed" else 0)
    return Recipe(TokenizerConfig(vocabulary=200), rows, heldout=0.3)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    return {layout: make(folder, layout, make_texts(80)) for layout in LAYOUTS}


def same(first, second):
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
        assert first[name].dtype == second[name].dtype


def ids(batch):
    high, low = batch["id"].astype(np.uint64).T
    return ((high << np.uint64(32)) | low).tolist()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches_have_the_shapes_that_the_config_tells(prepared, layout):
    data = TextData(layout=layout, length=32, batch=6, documents_per_row=4)
    batch = next(batches(prepared[layout].train, seed=0, batch=6))
    assert {name: (v.shape, v.dtype) for name, v in batch.items()} == {
        name: (s.shape, s.dtype) for name, s in data.spec().items()
    }


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("start", [1, 7, 1000])
def test_a_restart_gives_the_same_batches(prepared, layout, start):
    rows = prepared[layout].train
    later = list(batches(rows, seed=3, batch=8, start=start, stop=start + 3))
    if start < 1000:
        earlier = list(batches(rows, seed=3, batch=8, stop=start + 3))[start:]
        for first, second in zip(earlier, later, strict=True):
            same(first, second)
    again = list(batches(rows, seed=3, batch=8, start=start + 2, stop=start + 3, threads=1))
    same(later[-1], again[0])


def share(host, hosts):
    """The places of a batch of eight that one of some hosts reads."""
    return range(8 * host // hosts, 8 * (host + 1) // hosts)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("hosts", [2, 4, 8])
def test_hosts_take_slices_of_the_same_batch(prepared, layout, hosts):
    rows = prepared[layout].train
    whole = list(batches(rows, seed=1, batch=8, start=5, stop=8))
    parts = [
        list(batches(rows, seed=1, batch=8, start=5, stop=8, places=share(i, hosts)))
        for i in range(hosts)
    ]
    for step, batch in enumerate(whole):
        slices = [part[step] for part in parts]
        same(batch, {name: np.concatenate([s[name] for s in slices]) for name in batch})


def test_every_row_comes_once_an_epoch_in_another_order(prepared):
    rows = prepared["full"].train
    count = len(rows)
    stream = itertools.islice(batches(rows, seed=0, batch=7), -(-3 * count // 7))
    pairs = [p for batch in stream for p in zip(batch["epoch"].tolist(), ids(batch), strict=True)]
    orders = [[index for e, index in pairs if e == epoch] for epoch in range(3)]
    for order in orders:
        assert sorted(order) == list(range(count))
        assert order != list(range(count))
    assert orders[0] != orders[1] != orders[2]


def test_seeds_give_other_orders(prepared):
    rows = prepared["full"].train
    first, second = (next(batches(rows, seed=seed, batch=16)) for seed in (0, 1))
    assert ids(first) != ids(second)


def test_a_batch_larger_than_the_rows(prepared):
    rows = prepared["full"].heldout
    size = 2 * len(rows) + 1
    batch = next(batches(rows, seed=0, batch=size))
    assert np.bincount(batch["epoch"]).tolist() == [len(rows), len(rows), 1]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("hosts", [1, 4])
def test_heldout_rows_come_once_in_order(prepared, layout, hosts):
    rows = prepared[layout].heldout
    found = [
        list(heldout_batches(rows, seed=0, batch=8, places=share(i, hosts))) for i in range(hosts)
    ]
    assert {len(part) for part in found} == {-(-len(rows) // 8)}
    order = []
    for step in zip(*found, strict=True):
        for batch in step:
            real = batch["valid"].any(axis=1)
            order += [i for i, there in zip(ids(batch), real, strict=True) if there]
            assert batch["tokens"].shape == (8 // hosts, 32)
            assert (batch["tokens"][~real] == rows.padding).all()
            assert not batch["word_starts"][~real].any()
            assert (batch["epoch"] == 0).all()
            if layout == "pairs":
                assert not batch["is_next"][~real].any()
    assert order == list(range(len(rows)))


def test_places_need_not_lie_side_by_side(prepared):
    """As where a mesh puts the devices of one host apart."""
    rows, places = prepared["full"].train, [1, 2, 6]
    for whole, part in zip(
        batches(rows, seed=1, batch=8, start=2, stop=5),
        batches(rows, seed=1, batch=8, start=2, stop=5, places=places),
        strict=True,
    ):
        same({name: array[places] for name, array in whole.items()}, part)


def threads():
    return [t for t in threading.enumerate() if t.name.startswith("grain")]


@pytest.mark.parametrize("how", ["closed", "dropped", "exhausted"])
def test_threads_end(prepared, how):
    stream = batches(prepared["full"].train, seed=0, batch=8, stop=20)
    next(stream)
    assert threads()
    if how == "closed":
        stream.close()
    elif how == "exhausted":
        assert len(list(stream)) == 19
    del stream
    gc.collect()
    until = time.monotonic() + 5
    while threads() and time.monotonic() < until:
        time.sleep(0.01)
    assert not threads()


def test_rows_are_read_from_many_threads(prepared):
    rows = prepared["full"].train
    expected = rows.read(range(len(rows)))
    with ThreadPoolExecutor(16) as pool:
        for index, row in enumerate(pool.map(lambda i: rows.read([i])[0], range(len(rows)))):
            assert row == expected[index]


def test_frequency_is_each_tokens_share_of_the_training_text(prepared):
    found = prepared["full"]
    batch = next(batches(found.train, seed=0, batch=4))
    expected = found.token_counts / found.token_counts.sum()
    np.testing.assert_allclose(batch["frequency"], expected[batch["tokens"]], rtol=1e-6)
    assert found.train.frequency.sum() == pytest.approx(1, rel=1e-5)
    assert not batch["frequency"][~batch["valid"]].any()


def test_packed_documents_have_their_numbers_and_ids(prepared):
    rows = prepared["packed"].heldout
    for batch in heldout_batches(rows, seed=0, batch=4):
        np.testing.assert_array_equal(batch["documents"] < 4, batch["valid"])
        for numbers, ids in zip(batch["documents"], batch["document_ids"], strict=True):
            assert ids.any(axis=-1).sum() == len(set(numbers.tolist()) - {4})
    table = rows.read(range(len(rows)))
    assert set(table["document"].tolist()) <= set(table["document_ids"].ravel().tolist())


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    sources = [
        Documents([Document(text, str(i)) for i, text in enumerate(make_texts(60, seed=seed))])
        for seed in (1, 2, 3)
    ]
    folder = tmp_path_factory.mktemp("mixed")
    made = prepare(sources, recipe("full"), folder=folder, workers=1)
    return PreparedText.open(made, (6.0, 3.0, 1.0))


def source_of(rows, index):
    return np.searchsorted([end for _, end in rows.streams], index, "right")


def test_a_mixture_has_the_asked_shares(mixed):
    rows = mixed.train
    stream = mixed.batches(seed=0, batch=10, start=0, stop=60, threads=2)
    found = [source_of(rows, ids(batch)) for batch in stream]
    np.testing.assert_array_equal(np.bincount(np.concatenate(found)), [360, 180, 60])
    assert all(np.bincount(one, minlength=3)[0] in (5, 6, 7) for one in found)


def test_each_source_of_a_mixture_has_epochs_of_its_own(mixed):
    rows = mixed.train
    stream = mixed.batches(seed=0, batch=20, start=0, stop=30, threads=2)
    seen = [pair for b in stream for pair in zip(ids(b), b["epoch"].tolist(), strict=True)]
    assert len(set(seen)) == len(seen)
    for source, (begin, end) in enumerate(rows.streams):
        mine = [(i, e) for i, e in seen if source_of(rows, i) == source]
        for epoch in range(max(e for _, e in mine)):
            assert sorted(i for i, e in mine if e == epoch) == list(range(begin, end))


def test_a_mixture_restarts_anywhere_on_any_number_of_hosts(mixed):
    rows, weights = mixed.train, mixed.weights
    whole = list(batches(rows, seed=1, batch=8, stop=9, weights=weights))[6:]
    parts = [
        batches(
            rows,
            seed=1,
            batch=8,
            start=6,
            stop=9,
            places=share(i, 2),
            weights=weights,
        )
        for i in range(2)
    ]
    for one, *slices in zip(whole, *parts, strict=True):
        same(one, {name: np.concatenate([s[name] for s in slices]) for name in one})


def test_an_empty_slice_reads_nothing(prepared):
    assert len(prepared["full"].train.read([])) == 0
    assert list(batches(prepared["full"].train, seed=0, batch=4, start=3, stop=3)) == []


def parts(tokens, segments, used):
    middle = int(used) - int(segments.sum())
    return tokens[1 : middle - 1].tolist(), tokens[middle : used - 1].tolist()


def pairs_of(prepared, epoch, seed=0):
    rows = prepared["pairs"].train
    index = np.arange(len(rows))
    return rows.read(index), rows.assemble(index, np.full(len(rows), epoch), seed=seed)


def test_half_of_the_pairs_have_another_documents_text_of_the_same_length(prepared):
    share = []
    for epoch in range(20):
        stored, batch = pairs_of(prepared, epoch)
        share.append(batch["is_next"].mean())
        everyone = [parts(row["tokens"], row["segments"], row["used"]) for row in stored]
        for i, is_next in enumerate(batch["is_next"]):
            used = batch["valid"][i].sum()
            first, second = parts(batch["tokens"][i], batch["segments"][i], used)
            assert first == everyone[i][0]
            if is_next:
                assert second == everyone[i][1]
                assert (batch["tokens"][i] == stored["tokens"][i]).all()
                continue
            # Lengths are equal, except where no candidate of the sixteen is long enough.
            assert len(second) == len(everyone[i][1])
            origins = [
                j
                for j, (a, b) in enumerate(everyone)
                if second in (b[: len(second)], (a + b)[: len(second)])
            ]
            assert any(stored["document"][j] != stored["document"][i] for j in origins)
    assert abs(np.mean(share) - 0.5) < 4 * 0.5 / np.sqrt(20 * len(prepared["pairs"].train))


def test_pairs_are_drawn_anew_every_epoch_and_repeat_for_the_same(prepared):
    _, first = pairs_of(prepared, 0)
    _, again = pairs_of(prepared, 0)
    _, later = pairs_of(prepared, 1)
    _, other = pairs_of(prepared, 0, seed=1)
    same(first, again)
    assert (first["is_next"] != later["is_next"]).any()
    assert (first["is_next"] != other["is_next"]).any()
    replaced = (first["is_next"] == 0) & (later["is_next"] == 0)
    assert (first["tokens"][replaced] != later["tokens"][replaced]).any()


def test_a_pair_does_not_depend_on_its_batch(prepared):
    rows = prepared["pairs"].train
    _, whole = pairs_of(prepared, 2)
    for i in (0, 5, len(rows) - 1):
        alone = rows.assemble(np.array([i]), np.array([2]), seed=0)
        same(alone, {name: value[i : i + 1] for name, value in whole.items()})


def test_texts_too_short_give_the_longest_of_them(tmp_path):
    long = " ".join(["A long sentence of the text goes on and on and never ends."] * 30)
    found = make(tmp_path, "pairs", [long, *[f"Hi {i}. Yes." for i in range(12)]])
    table, batch = (f(found) for f in (lambda p: p.train.read(range(len(p.train))), all_pairs))
    shorter = batch["valid"].sum(axis=1) < table["used"]
    assert shorter.any()
    assert not (shorter & (batch["is_next"] == 1)).any()
    separator = found.vocabulary.separator
    for i in np.flatnonzero(shorter):
        used = batch["valid"][i].sum()
        assert batch["tokens"][i, used - 1] == separator
        assert (batch["tokens"][i, used:] == found.vocabulary.padding).all()
        assert not batch["segments"][i, used:].any()
        assert not batch["word_starts"][i, used - 1 :].any()
        assert not batch["sentence_starts"][i, used - 1 :].any()


def all_pairs(prepared):
    rows = prepared.train
    return rows.assemble(np.arange(len(rows)), np.zeros(len(rows), np.int64), seed=0)


@given(seed=st.integers(-(2**63), 2**63), index=st.integers(0, 2**63))
def test_draws_are_a_function_of_their_names(seed, index):
    assert draws("pair", seed, index, count=3) == draws("pair", seed, index, count=3)
    assert draws("pair", seed, index, count=3)[:2] == draws("pair", seed, index, count=2)
    assert draws("pair", seed, index, count=2) != draws("order", seed, index, count=2)
