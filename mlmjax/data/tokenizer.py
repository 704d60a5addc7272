"""Tokenizers: loaded or trained, with word starts that come from offsets."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import Annotated, Literal, SupportsInt

import numpy as np
import tokenizers
from etils import epath
from jaxtyping import Int
from pydantic import Field
from tokenizers import processors

from mlmjax.core.config import Config
from mlmjax.core.errors import UserError
from mlmjax.core.vocabulary import Vocabulary
from mlmjax.data import tokenizer_files as files
from mlmjax.data import tokenizer_training as training
from mlmjax.data.documents import normalise
from mlmjax.data.encoding import Encoding, Encodings, Memory, divisible, edges, joined
from mlmjax.data.words import one_text, word_starts

_NAMES = {
    "padding": ("[PAD]", "<pad>"),
    "unknown": ("[UNK]", "<unk>"),
    "start": ("[CLS]", "<s>", "<cls>"),
    "separator": ("[SEP]", "</s>", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}


class TokenizerConfig(Config):
    """Which tokenizer: one that is loaded, or the kind and size of one that is trained."""

    path: str | None = None
    """A ``tokenizer.json``, a WordPiece ``vocab.txt``, or a byte-level ``vocab.json`` with its ``merges.txt``; none
    trains one on the training part."""
    model: Literal["wordpiece", "byte_bpe", "unigram"] = "wordpiece"
    """The kind to train: WordPiece (BERT), byte-level BPE (RoBERTa) or Unigram (ALBERT)."""
    vocabulary: Annotated[int, Field(ge=64)] = 4096
    """Number of token ids to train, special ones included; fewer if the text has no more."""
    lowercase: bool = True
    """Lower case and strip accents, in WordPiece (trained, or from a ``vocab.txt``); lower case in
    Unigram. Byte-level BPE keeps the text as it is."""

    def fingerprint(self) -> dict[str, object]:
        """What determines the tokenizer, given the text: settings, or the content of the file."""
        if self.path is None:
            return {
                "model": self.model,
                "vocabulary": self.vocabulary,
                "lowercase": self.lowercase,
                "training": training.VERSION,
                "tokenizers": tokenizers.__version__,
            }
        return {"hash": self.load().hash}

    def load(self) -> "Tokenizer":
        """The tokenizer at ``path``."""
        if self.path is None:
            raise ValueError("this configuration trains a tokenizer; it has no path to load")
        return Tokenizer.load(self.path, lowercase=self.lowercase)

    def train(self, texts: Iterable[str]) -> "Tokenizer":
        """A tokenizer trained on texts: the same bytes for the same texts, in every process."""
        make = {
            "wordpiece": training.wordpiece,
            "byte_bpe": training.byte_bpe,
            "unigram": training.unigram,
        }[self.model]
        return Tokenizer(make(texts, vocabulary=self.vocabulary, lowercase=self.lowercase))


class Tokenizer:
    """A ``tokenizers.Tokenizer`` that adds no special tokens and reads none out of a text."""

    def __init__(self, raw: tokenizers.Tokenizer, source: str = "The tokenizer") -> None:
        """Wrap a tokenizer.

        Raises:
            UserError: it lacks a special token that masked prediction needs.
        """
        raw.no_truncation()
        raw.no_padding()
        # Not part of tokenizer.json, so it is set anew on whatever was loaded.
        raw.encode_special_tokens = True
        self._raw = raw
        self.vocabulary = _vocabulary(raw, source)
        named = self.vocabulary.special
        self._reserved = np.array([i for i in named if i != self.vocabulary.unknown], np.int32)
        self._encode = Memory(self._encode_whole).encode if divisible(raw) else self._encode_whole

    @cached_property
    def hash(self) -> str:
        """Hash of the content of ``tokenizer.json``."""
        return hashlib.blake2b(self._raw.to_str().encode(), digest_size=16).hexdigest()

    @property
    def mask_token(self) -> str:
        """How the mask is written in a prompt, such as ``[MASK]``."""
        return self.token(self.vocabulary.mask)

    def token(self, id: SupportsInt) -> str:
        """The token of an id, as the vocabulary spells it; empty for an id that is unused."""
        return self._raw.id_to_token(int(id)) or ""

    def decode(self, ids: Iterable[SupportsInt]) -> str:
        """The text of ids, special tokens included."""
        return self._raw.decode([int(i) for i in ids], skip_special_tokens=False)

    def spelled(self, token: str) -> str:
        """A token as it stands in a text: without the signs for spaces that some vocabularies have."""
        decoder = self._raw.decoder
        return token if decoder is None else decoder.decode([token]).strip()

    def encode(self, texts: Sequence[str]) -> list[Encoding]:
        """Tokens of each text; no special tokens are added.

        The literal ``[MASK]`` or ``[PAD]`` in a text is text.
        """
        return self._encode(texts).split() if texts else []

    def encode_with_masks(self, text: str) -> Encoding:
        """Tokens of a prompt in which the literal mask token stands for the mask.

        Other special tokens in it are text; none are added. The text is normalised like a document.
        """
        # A space before the mask belongs to the token that the mask hides.
        parts = normalise(text).split(self.mask_token)
        parts = [part.rstrip() for part in parts[:-1]] + parts[-1:]
        mask = Encoding(
            np.array([self.vocabulary.mask], np.int32), np.ones(1, bool), np.zeros(1, int)
        )
        pieces: list[Encoding] = []
        offset = 0
        for place, one in enumerate(self.encode(parts)):
            if place:
                pieces.append(Encoding(mask.ids, mask.word_starts, mask.offsets + offset))
                offset += len(self.mask_token)
            pieces.append(Encoding(one.ids, one.word_starts, one.offsets + offset))
            offset += len(parts[place])
        return joined(pieces)

    def with_special_tokens(self) -> tokenizers.Tokenizer:
        """The library's tokenizer, which adds start and separator around a text or a pair of them."""
        whole = tokenizers.Tokenizer.from_str(self._raw.to_str())
        start, separator = self.vocabulary.start, self.vocabulary.separator
        first, last = self.token(start), self.token(separator)
        whole.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}",
            pair=f"{first} $A {last} $B:1 {last}:1",
            special_tokens=[(first, start), (last, separator)],
        )
        return whole

    def save(self, path: epath.PathLike) -> None:
        """Write ``tokenizer.json``."""
        epath.Path(path).write_text(self._raw.to_str(pretty=True))

    @classmethod
    def load(cls, path: epath.PathLike, *, lowercase: bool = True) -> "Tokenizer":
        """Read a ``tokenizer.json``, a WordPiece ``vocab.txt`` (one token a line), or the ``vocab.json`` and
        ``merges.txt`` of RoBERTa's byte-level BPE.

        Args:
            path: the file, for a pair either of them, or a folder that holds one of the three.
            lowercase: whether the tokenizer of a ``vocab.txt`` lowers case and strips accents.

        Raises:
            UserError: the file is missing, not a tokenizer, or lacks a special token.
        """
        file = files.find(path)
        if file.name in (files.VOCABULARY, files.MERGES):
            return cls(files.byte_bpe(file.parent), f"{file.parent / files.VOCABULARY}")
        if file.suffix == ".txt":
            return cls(files.wordpiece(file, lowercase=lowercase), f"{file}")
        text = files.read(file)
        try:
            json.loads(text)
            raw = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exception
            raise UserError(
                f"{file} is not a tokenizer: {error}. Give a tokenizer.json of the tokenizers "
                "library, a WordPiece vocab.txt, or a vocab.json with its merges.txt (--data.tokenizer.path)."
            ) from error
        return cls(raw, f"{file}")

    def _encode_whole(self, texts: Sequence[str]) -> Encodings:
        """Tokens of each text, by the library, in threads."""
        raw = self._raw.encode_batch(list(texts), add_special_tokens=False)
        sizes = np.array([len(one) for one in raw], np.int64)
        tokens = int(sizes.sum())
        ids = np.fromiter(chain.from_iterable(one.ids for one in raw), np.int32, tokens)
        begins = _begins(raw, tokens)
        if np.isin(ids, self._reserved).any():
            ids, begins, sizes = self._spell_specials(ids, begins, edges(sizes))
        ends = edges(sizes)
        text, shifts = one_text(texts)
        shift = np.repeat(shifts, sizes)
        starts, first = word_starts(text, begins + shift)
        first = np.minimum(first - shift, np.repeat([len(one) for one in texts], sizes))
        # A token of mere space at the end of a text would lend its word to the next text.
        starts[ends[:-1][sizes > 0]] = True
        return Encodings(Encoding(ids, starts, first), ends)

    def _spell_specials(
        self,
        ids: Int[np.ndarray, " tokens"],
        begins: Int[np.ndarray, " tokens"],
        ends: Int[np.ndarray, " texts_and_1"],
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids, begins and sizes of the texts without special tokens that the model read in a text.

        Some vocabularies hold them as ordinary pieces. Each is spelled in two pieces.
        """
        counts = np.ones(len(ids), np.int64)
        spelled = {
            place: self._spelling[int(ids[place])] for place in self._places_of_specials(ids)
        }
        for place, some in spelled.items():
            counts[place] = len(some)
        last = edges(counts)
        ids, begins = np.repeat(ids, counts), np.repeat(begins, counts)
        for place, some in spelled.items():
            here = slice(last[place], last[place + 1])
            ids[here] = [id for id, _ in some]
            begins[here] += np.array([offset for _, offset in some], begins.dtype)
        return ids, begins, np.diff(last[ends])

    def _places_of_specials(self, ids: Int[np.ndarray, " tokens"]) -> list[int]:
        places: list[int] = np.flatnonzero(np.isin(ids, self._reserved)).tolist()
        return places

    @cached_property
    def _spelling(self) -> dict[int, list[tuple[int, int]]]:
        """Of each special token, tokens that spell it, and the character at which each begins."""
        found = {}
        for reserved in self._reserved.tolist():
            name = self.token(reserved)
            parts = ((0, name[:1]), (1, name[1:]))
            some = [
                (token.id, offset + token.offsets[0])
                for offset, part in parts
                if part
                for token in self._raw.model.tokenize(part)
            ]
            unknown, known = self.vocabulary.unknown, set(self._reserved.tolist())
            some = [(unknown if id in known else id, at) for id, at in some]
            found[reserved] = some or [(unknown, 0)]
        return found


def _begins(encodings: Sequence[tokenizers.Encoding], tokens: int) -> Int[np.ndarray, " tokens"]:
    """The character at which each token starts."""
    spans = chain.from_iterable(one.offsets for one in encodings)
    return np.fromiter(map(itemgetter(0), spans), np.int32, tokens)


def _vocabulary(raw: tokenizers.Tokenizer, source: str) -> Vocabulary:
    named: dict[str, int] = {}
    for role, names in _NAMES.items():
        found = [raw.token_to_id(name) for name in names]
        known = [id for id in found if id is not None]
        if not known:
            raise UserError(
                f"{source} has no {role} token ({' or '.join(names)}); masked prediction needs "
                "padding, unknown, start, separator and mask tokens. Choose another with "
                "--data.tokenizer.path, or leave it out to train one."
            )
        named[role] = known[0]
    added: set[int] = {i for i, token in raw.get_added_tokens_decoder().items() if token.special}
    special = tuple(sorted(added | set(named.values())))
    size = max(raw.get_vocab().values()) + 1
    if len(special) >= size:
        raise UserError(
            f"{source} has special tokens only, so there is nothing to predict. Choose another with "
            "--data.tokenizer.path, or leave it out to train one."
        )
    return Vocabulary(size=size, special=special, **named)
