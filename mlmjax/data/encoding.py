"""Tokens of texts, and a memory of them: most of a text is words that were seen before."""

import json
import re
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import numpy as np
import tokenizers
from jaxtyping import Bool, Int

_BY_CHARACTER = frozenset({"NFC", "NFD", "NFKC", "NFKD", "Lowercase"})
"""Normalisers that change characters or what composes with them, and remove none."""
_REMOVING = frozenset({"BertNormalizer", "StripAccents"})
_DROP_SPACES = frozenset({"BertPreTokenizer", "Whitespace", "WhitespaceSplit"})
_KEEP_SPACES = frozenset({"ByteLevel", "Metaspace"})
# A piece reaches to the next single character of space that is " " and stands behind one that is none.
_PIECE = re.compile(r"\s*\S+(?:[^\S ]\s*\S+)*(?:[^\S ]\s*\Z)?|\s+")
_AT_ONCE = 1 << 11
_EACH = 16
"""What a piece takes beside its characters, in characters."""
_COLUMNS = ("ids", "word_starts", "offsets")


@dataclass(frozen=True)
class Encoding:
    """Tokens of one text.

    Attributes:
        ids: token ids.
        word_starts: whether each token starts a word (see :func:`mlmjax.data.words.word_starts`).
        offsets: the character of the text at which each token starts, leading space skipped.
    """

    ids: Int[np.ndarray, " tokens"]
    word_starts: Bool[np.ndarray, " tokens"]
    offsets: Int[np.ndarray, " tokens"]


@dataclass(frozen=True)
class Encodings:
    """Tokens of several texts, one after the other.

    Attributes:
        tokens: of all texts; offsets are those in the token's own text.
        edges: where the tokens of each text start, and where those of the last one end.
    """

    tokens: Encoding
    edges: Int[np.ndarray, " texts_and_1"]

    def split(self) -> list[Encoding]:
        """Those of each text."""
        columns = (np.split(getattr(self.tokens, name), self.edges[1:-1]) for name in _COLUMNS)
        return [Encoding(*each) for each in zip(*columns, strict=True)]

    def take(self, places: Int[np.ndarray, " some"]) -> "Encodings":
        """Those of the texts at some places, in that order."""
        first = self.edges[places]
        sizes = self.edges[places + 1] - first
        ends = edges(sizes)
        taken = np.arange(ends[-1]) + np.repeat(first - ends[:-1], sizes)
        return Encodings(Encoding(*(getattr(self.tokens, name)[taken] for name in _COLUMNS)), ends)

    def __add__(self, more: "Encodings") -> "Encodings":
        """These, and those of more texts behind them."""
        ends = np.append(self.edges, self.edges[-1] + more.edges[1:])
        return Encodings(joined([self.tokens, more.tokens]), ends)


def joined(parts: Sequence[Encoding]) -> Encoding:
    """One of several, whose offsets are those in the whole."""
    return Encoding(*(np.concatenate([getattr(each, name) for each in parts]) for name in _COLUMNS))


def edges(sizes: Sequence[int] | np.ndarray) -> Int[np.ndarray, " sizes_and_1"]:
    """Where each of some parts that follow one another starts, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def divisible(raw: tokenizers.Tokenizer) -> bool:
    """Whether a text gives the same tokens if it is encoded in the pieces that :class:`Memory` makes.

    It does if whatever comes before the model looks at single characters, or at what lies between
    spaces, as in BERT, RoBERTa and the Unigram models trained here. What is not known to be so counts
    as not so.
    """
    splitters, normalizers = _kinds(raw.pre_tokenizer), _kinds(raw.normalizer)
    # Of a piece whose characters are all removed a space is left, which runs into the next one.
    harmless = _BY_CHARACTER | (_REMOVING if splitters <= _DROP_SPACES else set())
    return (
        bool(splitters)
        and splitters <= _DROP_SPACES | _KEEP_SPACES
        and normalizers <= harmless
        and all(token.special for token in raw.get_added_tokens_decoder().values())
    )


def _kinds(part: Any) -> set[str]:
    """The kinds of a normaliser or a splitter and of all that it is made of."""

    def kinds(part: dict[str, Any]) -> set[str]:
        if part["type"] == "Sequence":
            members = part.get("normalizers", part.get("pretokenizers", ()))
            return set().union(*map(kinds, members))
        divides = part.get("use_regex", True) and part.get("split", True)
        return {part["type"] if divides else f"{part['type']} that does not split"}

    return set() if part is None else kinds(json.loads(part.__getstate__()))


class Memory:
    """Encodes texts piece by piece, each piece once, for tokenizers that are :func:`divisible`.

    A piece starts at the text's start, or at a space (U+0020) with no other white space before it. The
    memory is bounded: when it is full, only pieces stay that were met again since the last time.
    """

    def __init__(
        self, encode: Callable[[Sequence[str]], Encodings], *, limit: int = 1 << 20
    ) -> None:
        """Remember what ``encode`` returns for pieces of about ``limit`` characters, 16 more counted for each."""
        self._encode, self._limit = encode, limit
        self._lock = threading.Lock()
        self._places: dict[str, int] = {}
        self._size = 0
        self._uses = np.zeros(0, np.int64)
        none = Encoding(np.zeros(0, np.int32), np.zeros(0, bool), np.zeros(0, np.int32))
        self._known = Encodings(none, np.zeros(1, np.int64))

    def encode(self, texts: Sequence[str]) -> Encodings:
        """Tokens of each text: what ``encode`` gives for the whole."""
        by_text = [_PIECE.findall(text) for text in texts]
        pieces = list(chain.from_iterable(by_text))
        with self._lock:
            self._learn(pieces)
            places = np.fromiter(map(self._places.__getitem__, pieces), np.int64, len(pieces))
            self._uses += np.bincount(places, minlength=len(self._uses))
            known = self._known
        found = known.take(places)
        in_text = edges([len(some) for some in by_text])
        # The character at which each piece starts: in all texts put together, then in its own.
        start = edges([len(piece) for piece in pieces])[:-1]
        start -= np.repeat(edges([len(text) for text in texts])[:-1], np.diff(in_text))
        offsets = found.tokens.offsets + np.repeat(start, np.diff(found.edges))
        tokens = Encoding(found.tokens.ids, found.tokens.word_starts, offsets)
        return Encodings(tokens, found.edges[in_text])

    def _learn(self, pieces: Sequence[str]) -> None:
        """Encode the pieces that are new."""
        distinct = dict.fromkeys(pieces)
        new = [piece for piece in distinct if piece not in self._places]
        if self._size + _cost(new) > self._limit:
            self._forget()
            new = [piece for piece in distinct if piece not in self._places]
        # Those that may follow one another make a text of their own, which saves calls.
        inner = [piece for piece in new if piece[0] == " " and not piece[-1].isspace()]
        others = [piece for piece in new if piece[0] != " " or piece[-1].isspace()]
        for begin in range(0, len(inner), _AT_ONCE):
            some = inner[begin : begin + _AT_ONCE]
            self._add(some, self._apart(some))
        if others:
            self._add(others, self._encode(others))

    def _add(self, pieces: Sequence[str], found: Encodings) -> None:
        self._places.update(zip(pieces, count(len(self._places)), strict=False))
        self._known += found
        self._uses = np.append(self._uses, np.zeros(len(pieces), np.int64))
        self._size += _cost(pieces)

    def _apart(self, pieces: Sequence[str]) -> Encodings:
        """Tokens of each piece, from one text of all of them."""
        whole = self._encode(["".join(pieces)]).tokens
        starts = edges([len(piece) for piece in pieces])
        ends = np.searchsorted(whole.offsets, starts)
        offsets = whole.offsets - np.repeat(starts[:-1], np.diff(ends))
        return Encodings(Encoding(whole.ids, whole.word_starts, offsets), ends)

    def _forget(self) -> None:
        pieces = list(self._places)
        kept = np.flatnonzero(self._uses > 1)
        if _cost([pieces[place] for place in kept]) > self._limit // 2:
            kept = kept[:0]
        self._places = {pieces[place]: new for new, place in enumerate(kept.tolist())}
        self._known, self._uses = self._known.take(kept), np.zeros(len(kept), np.int64)
        self._size = _cost(self._places)


def _cost(pieces: Collection[str]) -> int:
    """What pieces take of the memory's limit."""
    return sum(map(len, pieces)) + _EACH * len(pieces)
