"""Which tokens start a word, from offsets alone, so for every kind of tokenizer."""

import sys
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int

_SPACE, _WORD, _OTHER = 0, 1, 2


def word_starts(
    text: str, starts: Int[np.ndarray, " tokens"]
) -> tuple[Bool[np.ndarray, " tokens"], Int[np.ndarray, " tokens"]]:
    r"""Which tokens start a word of the text.

    A word is a maximal run of ``\w`` or a single other character that is not a space. A token
    belongs to the word of the first non-space character at or after its start, and starts a word
    if the token before it belongs to another one; so the byte-level tokens of one character stay
    together, and a token of mere space goes with the word that follows it.

    Args:
        text: the text that was tokenised.
        starts: the offset, in characters, at which each token starts; ascending.

    Returns:
        Whether each token starts a word, and the offset of its first non-space character.
    """
    kinds = _kinds(text)
    places = np.arange(len(kinds), dtype=np.int32)
    runs_on = np.zeros(len(kinds), bool)
    runs_on[1:] = (kinds[1:] == _WORD) & (kinds[:-1] == _WORD)
    word = np.cumsum((kinds != _SPACE) & ~runs_on, dtype=np.int32)
    solid = np.where(kinds == _SPACE, np.int32(len(kinds) - 1), places)
    solid = np.minimum.accumulate(solid[::-1])[::-1]
    first = solid[starts]
    of_token = word[first]
    begins = np.ones(len(starts), bool)
    begins[1:] = of_token[1:] != of_token[:-1]
    return begins, first


def _kinds(text: str) -> Int[np.ndarray, " characters"]:
    """Space, word or other for each character; one more character closes the text."""
    codes = np.frombuffer((text + "\0").encode("utf-32-le", "surrogatepass"), np.uint32)
    kinds = _KNOWN[codes]
    if (kinds < 0).any():
        for code in np.unique(codes[kinds < 0]).tolist():
            _KNOWN[code] = _kind(chr(code))
        kinds = _KNOWN[codes]
    return kinds


_KNOWN = np.full(sys.maxunicode + 1, -1, np.int8)
"""The kind of each character that was seen before; -1 for others."""


def _kind(character: str) -> int:
    if character.isalnum() or character == "_":
        return _WORD
    return _SPACE if character.isspace() else _OTHER


def one_text(texts: Sequence[str]) -> tuple[str, Int[np.ndarray, " texts"]]:
    """Texts in one string, a line break after each, and the offset at which each starts."""
    lengths = np.array([len(text) + 1 for text in texts], np.int64)
    return "\n".join(texts), np.cumsum(lengths) - lengths
