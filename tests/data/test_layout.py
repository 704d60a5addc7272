"""Rows lose no token, are nearly full, and are well formed."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlmjax.core.vocabulary import Vocabulary
from mlmjax.data.layout import TOKEN, FullRows, PairRows

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
        table["document"] = place + 1
        number += size
        yield table


def rows_of(maker, tables):
    return np.concatenate([*[maker.add(table) for table in tables], maker.finish()])


def check_form(rows, length):
    for row in rows:
        used = row["used"]
        assert 3 <= used <= length
        assert row["tokens"][0] == CLS
        assert row["tokens"][used - 1] == SEP
        assert (row["tokens"][used:] == PAD).all()
        assert (row["tokens"][:used] != PAD).all()
        assert row["word_starts"][1]
        special = np.isin(row["tokens"], VOCABULARY.special)
        assert not row["word_starts"][special].any()
        assert not row["segments"][used:].any()


@given(sizes=SIZES, length=st.sampled_from([8, 16, 64]))
def test_full_rows_hold_every_token_once_in_order(sizes, length):
    tables = list(documents(sizes))
    rows = rows_of(FullRows(length, VOCABULARY), tables)
    check_form(rows, length)
    tokens = rows["tokens"].ravel()
    np.testing.assert_array_equal(tokens[tokens > MASK], np.concatenate(tables)["id"])
    owner = dict(zip(np.concatenate(tables)["id"], np.concatenate(tables)["document"], strict=True))
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


@given(sizes=SIZES, length=st.sampled_from([8, 16, 64]))
def test_pairs_are_continuations_of_one_document(sizes, length):
    tables = list(documents(sizes))
    maker = PairRows(length, VOCABULARY)
    rows = rows_of(maker, tables)
    check_form(rows, length)
    by_document = {table["document"][0]: table["id"] for table in tables}
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
    kept = [table for table in tables if table["document"][0] in set(rows["document"])]
    assert len(kept) == maker.documents == len(tables) - maker.single
    tokens = set(rows["tokens"].ravel().tolist())
    assert all(set(table["id"].tolist()) <= tokens for table in kept)


@pytest.mark.parametrize("maker", [FullRows, PairRows])
def test_a_word_without_end_makes_progress(maker):
    table = np.zeros(500, TOKEN)
    table["id"] = 7
    table["word"][0] = table["sentence"][0] = True
    rows = rows_of(maker(32, VOCABULARY), [table])
    check_form(rows, 32)
    assert len(rows) >= 500 // 30
