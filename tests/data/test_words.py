"""Word starts come from offsets, for every kind of tokenizer."""

import re

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_texts import make_texts

from mlmjax.core import prng
from mlmjax.data.tokenizer import TokenizerConfig
from mlmjax.data.words import word_starts
from mlmjax.masking import (
    BalancedSelection,
    HierarchicalSelection,
    NGramSelection,
    Row,
    SpanSelection,
    WordSelection,
)

KINDS = ("wordpiece", "byte_bpe", "unigram")
TEXT = st.text(st.sampled_from("aAbé ß_.,-'([日本語한0９½ﬁ\n😀 \u0301x"), max_size=40)


@pytest.fixture(scope="module")
def tokenizers():
    texts = [*make_texts(100), "aAbé ß_.,-'([日本語한0９½ﬁ 😀 x" * 3]
    return {kind: TokenizerConfig(model=kind, vocabulary=400).train(texts) for kind in KINDS}


def words_of(text):
    """The word of every character, as the definition says; none for space."""
    owner = {}
    for number, match in enumerate(re.finditer(r"\w+|[^\w\s]", text)):
        owner |= dict.fromkeys(range(*match.span()), number)
    return owner


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXT)
def test_a_token_starts_a_word_iff_its_word_is_another(tokenizers, kind, text):
    found = tokenizers[kind].encode([text])[0]
    owner = words_of(text)
    expected = [owner.get(int(place)) for place in found.offsets]
    differs = [i == 0 or expected[i] != expected[i - 1] for i in range(len(expected))]
    assert found.word_starts.tolist() == differs


@pytest.mark.parametrize("kind", KINDS)
@given(texts=st.lists(TEXT, max_size=5))
def test_a_text_is_encoded_alike_alone_and_among_others(tokenizers, kind, texts):
    together = tokenizers[kind].encode(texts)
    for text, one in zip(texts, together, strict=True):
        alone = tokenizers[kind].encode([text])[0]
        for name in ("ids", "word_starts", "offsets"):
            np.testing.assert_array_equal(getattr(one, name), getattr(alone, name))


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_counted_alike_by_every_kind(tokenizers, kind):
    text = "Return a new_list of it, don't (sort) values-of 3.5."
    found = tokenizers[kind].encode([text])[0]
    starts = {m.start() for m in re.finditer(r"\w+|[^\w\s]", text)}
    assert set(found.offsets[found.word_starts].tolist()) <= starts
    if kind != "unigram":  # which may join a word and the point after it in one piece
        assert found.word_starts.sum() == len(starts)


SELECTIONS = {
    "words": WordSelection(ratio=0.3),
    "bernoulli": WordSelection(ratio=0.3, count="bernoulli"),
    "spans": SpanSelection(ratio=0.3),
    "n-grams": NGramSelection(ratio=0.3),
    "balanced": BalancedSelection(ratio=0.3),
    "hierarchical": HierarchicalSelection(ratio=0.3),
}
LONGEST = 400


@pytest.fixture(scope="module", params=SELECTIONS)
def select(request):
    """One selection of a whole-word kind, compiled."""
    selection = SELECTIONS[request.param]
    assert selection.whole_words

    def dense(key, eligible, word_starts, sentence_starts, frequency):
        row = Row(eligible, word_starts, sentence_starts, frequency)
        return selection(key, row).dense(LONGEST)

    return jax.jit(dense)


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.lists(TEXT, min_size=1, max_size=6).map(" ".join), seed=st.integers(0, 99))
@settings(max_examples=10)
def test_selections_of_words_split_none_of_any_tokenizer(tokenizers, select, kind, text, seed):
    found = tokenizers[kind].encode([text])[0]
    size = min(len(found.ids), LONGEST)
    eligible, starts = np.zeros((2, LONGEST), bool)
    eligible[:size], starts[:size] = True, found.word_starts[:size]
    frequency = np.full(LONGEST, 0.01, np.float32)
    hit = np.asarray(select(prng.root(seed), eligible, starts, starts & False, frequency))
    owner = words_of(text)
    fates = {}
    for place, offset in enumerate(found.offsets[:size].tolist()):
        fates.setdefault(owner.get(offset), set()).add(hit[place])
    assert all(len(fate) == 1 for fate in fates.values())
    assert not hit[size:].any()


def test_bytes_of_one_character_are_one_word(tokenizers):
    found = tokenizers["byte_bpe"].encode(["x 龘"])[0]
    assert len(found.ids) > 3
    assert found.word_starts.sum() == 2


def test_space_goes_with_the_word_after_it():
    starts, first = word_starts("a  b", np.array([0, 1, 2, 3]))
    assert starts.tolist() == [True, True, False, False]
    assert first.tolist() == [0, 3, 3, 3]
