"""Normalising and splitting into sentences."""

import functools
import itertools
import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mlmjax.data import documents
from mlmjax.data.documents import normalise
from mlmjax.data.preparation.sentences import sentence_starts

COMPOSING = "\u0301\u0308\u0327\u0345\u1161\u11a8\u09be"
SPACES = ["\r\n", "\n\n", *" \n\r\t\x0b\x1c\u2000\u2028"]
SPACED = st.lists(st.sampled_from([*SPACES, *"aé\u1100\x00\x1b\ufeff", *COMPOSING]), max_size=40)
TEXT = st.text(st.sampled_from("aB é.\n\r\t \x00\x1b\u0301\ufeff\u2028!?)。日e.g "), max_size=60)


def plainly_normalised(text):
    """The definition, without regard to memory."""
    kept = "".join(c for c in text if c.isspace() or c.isprintable() or ord(c) >= 0xA0)
    kept = kept.translate(dict.fromkeys([0xFEFF, 0xFFFE, 0xFFFF]))
    kept = unicodedata.normalize("NFC", kept.replace("\r\n", "\n").replace("\r", "\n"))
    paragraphs = re.split(r"\n[ \t]*\n", kept)
    return "\n\n".join(" ".join(part.split()) for part in paragraphs if part.strip())


@given(text=TEXT)
def test_normalised_text_is_canonical(text):
    found = normalise(text)
    assert normalise(found) == found
    assert unicodedata.is_normalized("NFC", found)
    assert not any(unicodedata.category(c) == "Cc" and c != "\n" for c in found)
    assert "  " not in found
    assert "\n" not in found.replace("\n\n", "")


@example(text="a\n\x00\nb", size=1)
@example(text="a \u0301b\n\n \u0327\u0301c", size=1)
@given(text=SPACED.map("".join), size=st.integers(1, 8))
def test_long_texts_are_normalised_in_pieces_as_a_whole(text, size):
    whole = normalise(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "_PIECE", size)
        assert normalise(text) == whole
    assert whole == plainly_normalised(text)


def test_nothing_composes_with_white_space():
    nfc = functools.partial(unicodedata.normalize, "NFC")
    spaces = [c for c in map(chr, range(0x3001)) if c.isspace()]
    changing = [c for c in map(chr, range(0x110000)) if not unicodedata.is_normalized("NFC", c + c)]
    for space, c in itertools.product(spaces, [*COMPOSING, *changing]):
        assert nfc(space + c) == nfc(space) + nfc(c)


def test_paragraphs_are_kept_and_lines_joined():
    assert normalise("One\r\n line\n \n\n\nTwo\x00\tthree \n") == "One line\n\nTwo three"


@given(text=TEXT)
def test_sentences_partition_a_text(text):
    text = normalise(text)
    starts = sentence_starts(text)
    assert starts[0] == 0
    assert starts == sorted(set(starts))
    assert all(start < len(text) or start == 0 for start in starts)
    assert all(not text[start].isspace() for start in starts[1:])


def split(text):
    starts = [*sentence_starts(text), len(text)]
    return [text[a:b].strip() for a, b in itertools.pairwise(starts)]


def test_sentences():
    assert split("It is. (See J. Doe et al. 2019, e.g. Fig. 3.) Is it? Yes!") == [
        "It is.",
        "(See J. Doe et al. 2019, e.g. Fig. 3.)",
        "Is it?",
        "Yes!",
    ]
    assert split("Use os.path here. it goes on 3.5 times") == [
        "Use os.path here. it goes on 3.5 times"
    ]
    assert split("A title\n\nA text") == ["A title", "A text"]
    assert split("これは文。「二つ」。三つ") == ["これは文。", "「二つ」。", "三つ"]
