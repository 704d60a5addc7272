"""Normalising and splitting into sentences."""

import itertools
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from mlmjax.data.documents import normalise
from mlmjax.data.sentences import sentence_starts

TEXT = st.text(st.sampled_from("aB é.\n\r\t \x00\x1b\u0301\ufeff\u2028!?)。日e.g "), max_size=60)


@given(text=TEXT)
def test_normalised_text_is_canonical(text):
    found = normalise(text)
    assert normalise(found) == found
    assert unicodedata.is_normalized("NFC", found)
    assert not any(unicodedata.category(c) == "Cc" and c != "\n" for c in found)
    assert "  " not in found
    assert "\n" not in found.replace("\n\n", "")


def test_paragraphs_are_kept_and_lines_joined():
    assert normalise("One\r\n line\n \n\n\nTwo\x00\tthree \n") == "One line\n\nTwo three"


@given(text=TEXT.map(normalise))
def test_sentences_partition_a_text(text):
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
