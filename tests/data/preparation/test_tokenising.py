"""Tokens of long documents, which are encoded in parts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_texts import make_texts

from mlmjax.data.documents import normalise
from mlmjax.data.preparation import tokenising
from mlmjax.data.preparation.sentences import sentence_starts
from mlmjax.data.tokenizer import TokenizerConfig

KINDS = ("wordpiece", "byte_bpe", "unigram")


@pytest.fixture(scope="module")
def tokenizers():
    return [TokenizerConfig(model=k, vocabulary=400).train(make_texts(100)) for k in KINDS]


def pieces(tokenizer, texts):
    """The tokens of each text, which come in turn, the last of each marked."""
    found = [[] for _ in texts]
    for place, tokens, last in tokenising.encode(tokenizer, texts):
        assert not any(found[place + 1 :])
        found[place].append((tokens, last))
    assert all([last for _, last in text] == [False] * (len(text) - 1) + [True] for text in found)
    return [np.concatenate([tokens for tokens, _ in text]) for text in found]


WORDS = ["Return", "a", "new", "list.", "Raise", "ValueError.", "naïve", "日本語", "\n\n", "“No.”"]


@given(st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=60), min_size=1, max_size=4))
def test_parts_of_a_document_have_the_tokens_of_the_whole(tokenizers, words):
    texts = [text for text in (normalise(" ".join(some)) for some in words) if text]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tokenising, "_PART", 20)
        patched.setattr(tokenising, "_LONGEST", 1000)
        patched.setattr(tokenising, "_BATCH", 50)
        for tokenizer in tokenizers:
            whole = tokenizer.encode(texts)
            for text, one, tokens in zip(texts, whole, pieces(tokenizer, texts), strict=True):
                np.testing.assert_array_equal(tokens["id"], one.ids)
                np.testing.assert_array_equal(tokens["word"], one.word_starts)
                first = np.searchsorted(one.offsets, sentence_starts(text))
                expected = np.zeros(len(tokens), bool)
                expected[first[first < len(tokens)]] = True
                np.testing.assert_array_equal(tokens["sentence"], expected)


def test_an_endless_word_is_cut(tokenizers):
    (tokens,) = pieces(tokenizers[1], ["ab" * 100_000])
    assert np.flatnonzero(tokens["word"]).size == 4
