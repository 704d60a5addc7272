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
    places = np.arange(len(kinds))
    runs_on = np.zeros(len(kinds), bool)
    runs_on[1:] = (kinds[1:] == _WORD) & (kinds[:-1] == _WORD)
    word = np.cumsum((kinds != _SPACE) & ~runs_on)
    solid = np.where(kinds == _SPACE, len(kinds) - 1, places)
    solid = np.minimum.accumulate(solid[::-1])[::-1]
    first = solid[starts]
    of_token = word[first]
    begins = np.ones(len(starts), bool)
    begins[1:] = of_token[1:] != of_token[:-1]
    return begins, first


def _kinds(text: str) -> Int[np.ndarray, " characters"]:
    """Space, word or other for each character; one more character closes the text."""
    codes = np.frombuffer((text + "\0").encode("utf-32-le", "surrogatepass"), np.uint32)
    table = np.zeros(sys.maxunicode + 1, np.int8)
    table[codes] = 1
    for code in np.flatnonzero(table):
        table[code] = _kind(chr(code))
    return table[codes]


def _kind(character: str) -> int:
    if character.isalnum() or character == "_":
        return _WORD
    return _SPACE if character.isspace() else _OTHER


def joined(texts: Sequence[str]) -> tuple[str, Int[np.ndarray, " texts"]]:
    """Texts in one string, a line break after each, and the offset at which each starts."""
    lengths = np.array([len(text) + 1 for text in texts], np.int64)
    return "\n".join(texts), np.cumsum(lengths) - lengths
