"""Near-duplicates: signatures, and what they find against a comparison of all pairs."""

import os
import random
import subprocess
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_texts import make_texts

from mlmjax.core.errors import UserError
from mlmjax.data.preparation import near_duplicates as module
from mlmjax.data.preparation.near_duplicates import (
    band_hashes,
    bands,
    earlier_similar,
    near_duplicates,
    signature,
)

TEXT = st.text(st.sampled_from("ab é  \n日本คำß\u0301\ud800🙂"), max_size=40)
THRESHOLDS = st.sampled_from([0.2, 0.5, 0.75, 0.8, 1.0])


def similar(signatures, i, j, threshold):
    return np.mean(signatures[i] == signatures[j]) >= threshold


def all_pairs(signatures, threshold):
    """By the definition, with values of bands in place of their hashes."""
    number, rows = bands(threshold, signatures.shape[1])
    found = np.zeros(len(signatures), bool)
    for i in range(len(signatures)):
        for j in range(i):
            both = signatures[i] == signatures[j]
            shares = both[: number * rows].reshape(number, rows).all(1).any()
            found[i] |= shares and similar(signatures, i, j, threshold)
    return found


@st.composite
def collections(draw, permutations=16):
    """Signatures that descend from one another, so that all degrees of similarity occur."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    count, changed = draw(st.integers(1, 40)), draw(st.sampled_from([0.0, 0.05, 0.2, 0.5]))
    found = rng.integers(0, 2**32, (count, permutations), dtype=np.uint32)
    for i in range(1, count):
        parent = rng.integers(i)
        kept = rng.random(permutations) >= changed
        if rng.random() < 0.8:
            found[i, kept] = found[parent, kept]
    return found


@given(signatures=collections(), threshold=THRESHOLDS)
def test_as_a_comparison_of_all_pairs(signatures, threshold):
    expected = all_pairs(signatures, threshold)
    np.testing.assert_array_equal(near_duplicates(signatures, threshold=threshold), expected)


@given(signatures=collections(), threshold=THRESHOLDS, rows=st.integers(1, 5))
def test_the_size_of_the_pieces_changes_nothing(signatures, threshold, rows, tmp_path):
    whole = near_duplicates(signatures, threshold=threshold)
    np.save(tmp_path / "signatures.npy", signatures)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"_ROWS": rows, "_EARLIER": 2, "_BAND_BYTES": 1}.items():
            patch.setattr(module, name, value)
        mapped = np.load(tmp_path / "signatures.npy", mmap_mode="r")
        np.testing.assert_array_equal(near_duplicates(mapped, threshold=threshold), whole)


def test_no_document_is_no_duplicate():
    nothing = np.zeros((0, 16), np.uint32)
    assert near_duplicates(nothing, threshold=0.8).shape == (0,)
    assert earlier_similar(nothing, threshold=0.8).shape == (0,)


@given(signatures=collections(), threshold=THRESHOLDS, seed=st.integers(0, 2**32))
def test_a_bucket_is_compared_with_its_earlier_members(signatures, threshold, seed):
    in_bucket, known = np.random.default_rng(seed).random((2, len(signatures))) < 0.5
    members, known = np.flatnonzero(in_bucket), known[in_bucket]
    expected = np.array(
        [
            any(similar(signatures, i, j, threshold) for j in members[:place])
            for place, i in enumerate(members)
        ],
        bool,
    )
    for size in (4096, 3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_ROWS", size)
            found = earlier_similar(signatures, threshold=threshold, members=members, known=known)
            alone = earlier_similar(signatures[members], threshold=threshold)
        np.testing.assert_array_equal(alone, expected)
        np.testing.assert_array_equal(found, known | expected)


def test_each_earlier_member_of_a_bucket_is_compared_with():
    different = np.random.default_rng(0).integers(0, 2**32, (700, 16), dtype=np.uint32)
    copies = np.tile(different, (2, 1))
    np.testing.assert_array_equal(earlier_similar(copies, threshold=1.0), np.arange(1400) >= 700)


def test_the_third_of_a_bucket_may_resemble_the_second_alone():
    _, rows = bands(0.8, 128)
    signatures = np.random.default_rng(0).integers(0, 2**32, (3, 128), dtype=np.uint32)
    signatures[1, :rows] = signatures[0, :rows]
    signatures[2] = signatures[1]
    signatures[2, rows::rows] += 1  # so that no other band is shared
    assert near_duplicates(signatures, threshold=0.8).tolist() == [False, False, True]


def test_counts_of_equal_values_of_long_signatures():
    values = np.random.default_rng(0).integers(0, 2, (70, 600), dtype=np.uint32)
    expected = (values[:, None] == values[:65]).sum(-1)
    np.testing.assert_array_equal(module._equal(values, values[:65]), expected)
    np.testing.assert_array_equal(module._equal(values[:65], values), expected.T)


def test_many_copies_are_all_found():
    rng = np.random.default_rng(0)
    signatures = rng.integers(0, 2**32, (20_000, 128), dtype=np.uint32)
    of = rng.integers(0, 10, 20_000)
    signatures[10:] = signatures[of[10:]]
    found = near_duplicates(signatures, threshold=0.8)
    np.testing.assert_array_equal(found, np.arange(20_000) >= 10)


def pairs(similarity, count, *, shared=90, seed=0):
    """Signatures of pairs of sets of words of a given Jaccard similarity."""
    rng = random.Random(seed)
    for _ in range(count):
        own = round(shared * (1 - similarity) / similarity / 2)
        words = [f"{rng.getrandbits(40):x}" for _ in range(shared + 2 * own)]
        common, first, second = words[:shared], words[shared : shared + own], words[shared + own :]
        yield [signature(" ".join(common + rest), shingle=1) for rest in (first, second)]


@pytest.mark.parametrize("similarity", [0.5, 0.6, 0.75, 0.9])
def test_similarity_is_estimated_and_what_is_similar_found(similarity):
    drawn = np.array(list(pairs(similarity, 150)))
    estimates = (drawn[:, 0] == drawn[:, 1]).mean(1)
    deviation = np.sqrt(similarity * (1 - similarity) / 128)
    assert abs(estimates.mean() - similarity) < 4 * deviation / np.sqrt(150)
    assert 0.8 < estimates.std() / deviation < 1.2
    found = near_duplicates(drawn.reshape(-1, 128), threshold=0.75).reshape(-1, 2)
    assert not found[:, 0].any()
    rate = found[:, 1].mean()
    assert rate == {0.5: 0, 0.6: 0, 0.9: 1}.get(similarity, rate)
    if similarity == 0.75:  # half of the estimates reach the threshold, and bands miss few of those
        assert 0.35 < rate <= (estimates >= 0.75).mean()


def test_bands_share_as_often_as_the_law_says():
    similarity, count = 0.8, 400
    drawn = np.array(list(pairs(similarity, count, seed=1)))
    hashes = band_hashes(drawn, threshold=0.8)
    number, rows = bands(0.8, 128)
    assert hashes.shape == (count, 2, number)
    both = (hashes[:, 0] == hashes[:, 1]).mean()
    assert abs(both - similarity**rows) < 4 * np.sqrt(0.17 * 0.83 / (count * number))


def test_bands_fit_every_threshold():
    for permutations in (16, 128):
        for threshold in (0.01, 0.3, 0.5, 0.8, 0.95, 0.99, 1.0):
            number, rows = bands(threshold, permutations)
            assert number >= 2
            assert rows >= 1
            assert number * rows <= permutations
    number, rows = bands(0.8, 128)
    assert 1 - (1 - 0.8**rows) ** number > 0.9
    assert 1 - (1 - 0.4**rows) ** number < 0.02


def test_copies_in_another_case_or_with_a_changed_word_are_found():
    texts = make_texts(30, sentences=12)
    long = max(texts, key=len)
    words = long.split()
    words[len(words) // 2] = "otherwise"
    others = [long.upper(), "\n\n".join(long.split(" ", 3)), " ".join(words), "Short", "short"]
    found = near_duplicates(np.stack([signature(t) for t in texts + others]), threshold=0.7)
    np.testing.assert_array_equal(found, [False] * 30 + [True, True, True, False, True])


def test_scripts_without_spaces_are_compared_by_characters():
    draw = random.Random(0)
    text = "".join(chr(draw.randrange(0x4E00, 0x9000)) for _ in range(300))
    first, changed, other = signature(text), signature(text[:150] + "的" + text[151:]), text[::-1]
    assert (first == changed).mean() > 0.9
    assert (first == signature(other)).mean() < 0.1


def test_order_and_shingles_count():
    assert (signature("a b c d e f") != signature("f e d c b a")).all()
    np.testing.assert_array_equal(signature("a b a b", shingle=2), signature("b a b a", shingle=2))
    np.testing.assert_array_equal(signature("a b", shingle=9), signature("a b", shingle=2))
    assert signature("", permutations=16).shape == (16,)


@given(text=TEXT, shingle=st.integers(1, 4), size=st.integers(1, 5))
def test_a_text_in_pieces_has_the_same_signature(text, shingle, size):
    whole = signature(text, shingle=shingle, permutations=16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PIECE", size)
        patch.setattr(module, "_SHINGLES", size)
        pieces = signature(text, shingle=shingle, permutations=16)
    np.testing.assert_array_equal(whole, pieces)


def test_signatures_and_bands_are_the_same_in_every_process():
    # Other values would make prepared text of another version look up to date.
    code = """
import zlib
import numpy as np
from mlmjax.data.preparation.near_duplicates import band_hashes, signature
found = signature("The quick brown fox jumps over the lazy dog. Übung 日本")
print(zlib.crc32(found.astype("<u4")), zlib.crc32(band_hashes(found, threshold=0.8).astype("<u8")))
"""
    here = signature("The quick brown fox jumps over the lazy dog. Übung 日本")
    hashes = band_hashes(here, threshold=0.8)
    expected = f"{zlib.crc32(here.astype('<u4'))} {zlib.crc32(hashes.astype('<u8'))}"
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", code]
    there = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert there.stdout.strip() == expected == "2727977895 3146898358"


def test_nothing_asks_for_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasketch", None)
    module._sketch.cache_clear()
    with pytest.raises(UserError, match=r"pip install 'mlmjax\[deduplicate\]'"):
        signature("a text")
