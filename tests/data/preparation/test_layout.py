"""Rows lose no token, are nearly full, and are well formed."""

import itertools
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlmjax.core.vocabulary import Vocabulary
from mlmjax.data.preparation import layout
from mlmjax.data.preparation.layout import TOKEN, FullRows, PackedRows, PairRows, piece_id

PAD, UNK, CLS, SEP, MASK = range(5)
VOCABULARY = Vocabulary(
    size=10_000,
    padding=PAD,
    unknown=UNK,
    start=CLS,
    separator=SEP,
    mask=MASK,
    special=(0, 1, 2, 3, 4),
)
SIZES = st.lists(st.integers(1, 150), min_size=1, max_size=30)


def documents(sizes, seed=0):
    """Documents whose ids count up, so that order and loss show."""
    rng = np.random.default_rng(seed)
    number = 5
    for place, size in enumerate(sizes):
        table = np.zeros(size, TOKEN)
        table["id"] = np.arange(number, number + size)
        table["word"] = rng.random(size) < 0.7
        table["sentence"] = table["word"] & (rng.random(size) < 0.1)
        table["word"][0] = table["sentence"][0] = True
        number += size
        yield place + 1, table


def rows_of(maker, tables):
    return np.concatenate([*[maker.add(table, id) for id, table in tables], maker.finish()])


def owners_of(tables):
    return {token: id for id, table in tables for token in table["id"].tolist()}


def ids_of(tables):
    return np.concatenate([table["id"] for _, table in tables])


def check_form(rows, length):
    for row in rows:
        used = row["used"]
        assert 3 <= used <= length
        assert row["tokens"][0] == CLS
        assert row["tokens"][used - 1] == SEP
        assert (row["tokens"][used:] == PAD).all()
        assert (row["tokens"][:used] != PAD).all()
        assert row["word_starts"][1]
        assert row["sentence_starts"][1]
        assert not (row["sentence_starts"] & ~row["word_starts"]).any()
        special = np.isin(row["tokens"], VOCABULARY.special)
        assert not row["word_starts"][special].any()
        assert not row["segments"][used:].any()


@given(sizes=SIZES, length=st.sampled_from([8, 16, 64]))
def test_full_rows_hold_every_token_once_in_order(sizes, length):
    tables = list(documents(sizes))
    rows = rows_of(FullRows(length, VOCABULARY), tables)
    check_form(rows, length)
    tokens = rows["tokens"].ravel()
    np.testing.assert_array_equal(tokens[tokens > MASK], ids_of(tables))
    owner = owners_of(tables)
    for row in rows:
        assert owner[row["tokens"][1]] == row["document"]
        inner = row["tokens"][1 : row["used"] - 1]
        separators = np.flatnonzero(inner == SEP)
        assert all(owner[inner[i - 1]] != owner[inner[i + 1]] for i in separators)
        changes = [owner[a] != owner[b] for a, b in itertools.pairwise(inner) if a > 4 < b]
        assert not any(changes)


def test_full_rows_are_full():
    rows = rows_of(FullRows(64, VOCABULARY), documents([37] * 200))
    assert rows["used"][:-1].mean() / 64 > 0.97


@given(
    sizes=SIZES,
    length=st.sampled_from([8, 16, 64]),
    most=st.integers(1, 9),
    window=st.integers(1, 9),
)
def test_packed_rows_hold_every_document_whole_and_apart(sizes, length, most, window):
    tables = list(documents(sizes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "WINDOW", window)
        rows = rows_of(PackedRows(length, VOCABULARY, documents=most), tables)
    check_form(rows, length)
    pieces = {}
    for row in rows:
        numbers = row["documents"][: row["used"]]
        assert (row["documents"][row["used"] :] == most).all()
        assert numbers[0] == 0
        assert set(np.diff(numbers).tolist()) <= {0, 1}
        assert (row["document_ids"] != 0).sum() == numbers[-1] + 1
        for number in range(numbers[-1] + 1):
            piece = row["tokens"][: row["used"]][numbers == number]
            assert (piece[0], piece[-1]) == (CLS, SEP)
            assert not np.isin(piece[1:-1], [CLS, SEP]).any()
            pieces[int(row["document_ids"][number])] = piece[1:-1]
    for id, table in tables:
        found = []
        while (name := piece_id(id, len(found))) in pieces:
            found.append(pieces.pop(name))
        np.testing.assert_array_equal(np.concatenate(found), table["id"])
        assert all(len(piece) <= length - 2 for piece in found)
    assert not pieces


@given(sizes=SIZES, length=st.sampled_from([8, 64]), step=st.integers(1, 40))
def test_a_document_may_come_in_pieces(sizes, length, step):
    tables = list(documents(sizes))
    for make in (FullRows, PairRows, partial(PackedRows, documents=3)):
        maker = make(length, VOCABULARY)
        found = [
            maker.add(table[at : at + step], id, last=at + step >= len(table))
            for id, table in tables
            for at in range(0, len(table), step)
        ]
        whole = make(length, VOCABULARY)
        np.testing.assert_array_equal(
            np.concatenate([*found, maker.finish()]), rows_of(whole, tables)
        )
        assert maker.cut == whole.cut


def test_packed_rows_are_full():
    sizes = np.random.default_rng(0).geometric(1 / 100, 1000).tolist()
    rows = rows_of(PackedRows(512, VOCABULARY, documents=32), documents(sizes))
    assert rows["used"].mean() / 512 > 0.98


@given(sizes=SIZES, length=st.sampled_from([8, 64]))
def test_rows_that_cut_a_document_are_counted(sizes, length):
    tables = list(documents(sizes))
    for maker in (FullRows(length, VOCABULARY), PackedRows(length, VOCABULARY, documents=3)):
        rows = rows_of(maker, tables)
        owner, last = owners_of(tables), {table["id"][-1] for _, table in tables}
        ends = [
            row["tokens"][i - 1]
            for row in rows
            for i in np.flatnonzero(row["tokens"] == SEP)
            if isinstance(maker, PackedRows) or i == row["used"] - 1
        ]
        assert maker.cut == sum(end in owner and end not in last for end in ends)


@given(sizes=SIZES, length=st.sampled_from([8, 16, 64]))
def test_pairs_are_continuations_of_one_document(sizes, length):
    tables = list(documents(sizes))
    maker = PairRows(length, VOCABULARY)
    rows = rows_of(maker, tables)
    check_form(rows, length)
    by_document = {id: table["id"] for id, table in tables}
    for index, row in enumerate(rows):
        used, ids = int(row["used"]), by_document[row["document"]]
        middle = used - int(row["segments"].sum())
        first, second = row["tokens"][1 : middle - 1], row["tokens"][middle : used - 1]
        assert row["tokens"][middle - 1] == SEP
        assert len(first)
        assert len(second)
        text = np.concatenate([first, second])
        np.testing.assert_array_equal(text, np.arange(text[0], text[0] + len(text)))
        assert np.isin(text, ids).all()
        if len(ids) >= length - 3 + length:  # up to a word more or less in the last row
            assert used > 0.7 * length
        assert row["first"] <= index < row["first"] + row["siblings"]
        assert rows[row["first"]]["document"] == row["document"]
    kept = [table for id, table in tables if id in set(rows["document"].tolist())]
    assert len(kept) == maker.documents == len(tables) - maker.single
    tokens = set(rows["tokens"].ravel().tolist())
    assert all(set(table["id"].tolist()) <= tokens for table in kept)


@pytest.mark.parametrize("maker", [FullRows, PairRows, partial(PackedRows, documents=4)])
def test_a_word_without_end_makes_progress(maker):
    table = np.zeros(500, TOKEN)
    table["id"] = 7
    table["word"][0] = table["sentence"][0] = True
    rows = rows_of(maker(32, VOCABULARY), [(1, table)])
    check_form(rows, 32)
    assert len(rows) >= 500 // 30
