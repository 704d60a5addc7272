"""The steps that drop documents."""

import sys
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mlmjax.core.errors import UserError
from mlmjax.data.documents import normalise
from mlmjax.data.preparation import cleaning as module
from mlmjax.data.preparation.cleaning import Cleaning, repeated_lines, symbols

CHARACTERS = st.sampled_from(
    "aZ9 .\n\r\t-é\u0301日ไ่🙂€½\u200d\u202e\ufe0f\ud800\ue000\u0378\U000e0101"
)
TEXT = st.text(CHARACTERS, max_size=40)


def dropped(text, **steps):
    return Cleaning(**steps).drop_reason(text, normalise(text))


@given(text=TEXT)
def test_nothing_is_dropped_unless_asked_for(text):
    assert dropped(text) is None
    assert not Cleaning().near_duplicate(np.zeros((3, 128), np.uint32)).any()


def test_length_is_that_of_the_normalised_text():
    assert dropped("abc  \n d", shortest=5) is None
    assert dropped("abc  \n d", shortest=6) == "shortest"
    assert dropped("abc  \n d", longest=5) is None
    assert dropped("abc  \n d", longest=4) == "longest"


def test_repeated_lines():
    text = "one\ntwo\n\n  one \r\n\r\nthree\rone\n"
    assert repeated_lines(text) == pytest.approx(2 / 5)
    assert dropped(text, repeated_lines=0.4) is None
    assert dropped(text, repeated_lines=0.39) == "repeated_lines"
    ten = "\n".join("abcdefgaaa")
    assert dropped(ten, repeated_lines=0.3) is None
    assert repeated_lines("") == repeated_lines("\n \n") == 0


@given(lines=st.lists(st.sampled_from(["", " ", "a", "a ", "b", "\ud800"]), max_size=12))
def test_repeated_lines_by_definition(lines):
    kept = [line.strip() for line in lines if line.strip()]
    repeats = sum(line in kept[:place] for place, line in enumerate(kept))
    assert repeated_lines("\n".join(lines)) == pytest.approx(repeats / max(len(kept), 1))


def test_symbols_in_any_script():
    for text in ("Déjà vu 42", "日本語の文", "हिन्दी में", "می‌خواهم", "שָׁלוֹם", "ภาษาไทย", "½ Ⅳ"):
        assert symbols(text) == 0
    assert symbols("👩‍👩‍👧 ❤️ 👍🏽") == 1
    assert symbols("a+b= c?") == pytest.approx(3 / 6)
    assert symbols(" \n\n ") == 0
    assert dropped("a+b= c?", symbols=0.5) is None
    assert dropped("a+b= c?!", symbols=0.5) == "symbols"


@given(text=TEXT, size=st.integers(1, 5))
def test_symbols_by_definition(text, size):
    skipped = [*map(chr, range(0xFE00, 0xFE10)), *map(chr, range(0xE0100, 0xE01F0))]
    counted = [unicodedata.category(c) for c in text if c not in skipped]
    counted = [c for c in counted if c[0] != "Z" and c not in ("Cc", "Cf")]
    share = sum(c[0] not in "LMN" for c in counted) / max(len(counted), 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PIECE", size)
        assert symbols(text) == pytest.approx(share)


def test_the_first_step_that_drops_gives_the_reason():
    steps = {"shortest": 9, "longest": 20, "repeated_lines": 0.1, "symbols": 0.1}
    assert dropped("!\n!", **steps) == "shortest"
    assert dropped("!!!!!!!!!!\n" * 3, **steps) == "longest"
    assert dropped("!!!!!!!\n" * 2, **steps) == "repeated_lines"
    assert dropped("!!!!!!!!!!!", **steps) == "symbols"
    assert dropped("Words alone", **steps) is None


def test_near_duplicates_by_the_config():
    cleaning = Cleaning(near_duplicates=0.8, shingle=2, permutations=64)
    cleaning.check()
    texts = ["one two three four", "five six seven", "One two\n\nthree four"]
    signatures = np.stack([cleaning.signature(text) for text in texts])
    assert signatures.shape == (3, 64)
    assert cleaning.near_duplicate(signatures).tolist() == [False, False, True]


def test_a_missing_package_is_told_before_anything_is_read(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasketch", None)
    Cleaning().check()
    with pytest.raises(UserError, match=r"pip install 'mlmjax\[deduplicate\]'"):
        Cleaning(near_duplicates=0.8).check()


def test_bounds_are_validated():
    for wrong in (
        {"shortest": 0},
        {"longest": 0},
        {"repeated_lines": 1.5},
        {"symbols": -0.1},
        {"near_duplicates": 0},
        {"near_duplicates": 1.1},
        {"shingle": 0},
        {"permutations": 8},
    ):
        with pytest.raises(ValidationError):
            Cleaning(**wrong)
    with pytest.raises(ValidationError, match="must not exceed longest"):
        Cleaning(shortest=10, longest=9)
    assert Cleaning(shortest=9, longest=9).longest == 9


def test_json_round_trip():
    cleaning = Cleaning(shortest=3, symbols=0.5, near_duplicates=0.75)
    assert Cleaning.from_json(cleaning.to_json()) == cleaning
