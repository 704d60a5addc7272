"""Training tokenizers so that the same text gives the same bytes in every process.

The trainers of the ``tokenizers`` library visit words in an order that differs between processes.
Where that order shows in the result, it is taken out: WordPiece is given its alphabet in a fixed
order, and Unigram is estimated from whole-number counts.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

VERSION = 1
"""Goes up when the same text gives another tokenizer."""

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
"""The special tokens of a trained tokenizer, ids 0 to 4."""

_COVERAGE = 0.9998
_ROUNDS = 4


def wordpiece(texts: Iterable[str], *, vocabulary: int, lowercase: bool) -> tokenizers.Tokenizer:
    """WordPiece as in BERT (Devlin et al. 2019, appendix A.2; Wu et al. 2016), merges by frequency.

    Args:
        texts: read twice, so a collection and not an iterator.
        vocabulary: the number of ids to aim at, special ones included.
        lowercase: whether to lower case and strip accents.
    """
    draft = dress_wordpiece(
        tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]")), lowercase=lowercase
    )
    letters = _alphabet(texts, draft.normalizer, limit=vocabulary // 4)
    inside = [f"##{c}" for c in letters if len(draft.pre_tokenizer.pre_tokenize_str(f"a{c}")) == 1]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL + inside,
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    draft.train_from_iterator(iter(texts), trainer)
    model = models.WordPiece(draft.get_vocab(), unk_token="[UNK]", max_input_chars_per_word=100)
    return dress_wordpiece(tokenizers.Tokenizer(model), lowercase=lowercase)


def dress_wordpiece(raw: tokenizers.Tokenizer, *, lowercase: bool) -> tokenizers.Tokenizer:
    """BERT's normaliser, splitter, decoder and special tokens around a WordPiece model."""
    raw.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.decoder = decoders.WordPiece()
    return _with_specials(raw)


def byte_bpe(texts: Iterable[str], *, vocabulary: int, lowercase: bool) -> tokenizers.Tokenizer:
    """Byte-level BPE (Radford et al. 2019, section 2.2; RoBERTa): no text is ever unknown.

    Case is kept, whatever ``lowercase`` says, as in the published models.
    """
    del lowercase
    raw = tokenizers.Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    raw.train_from_iterator(iter(texts), trainer)
    return _with_specials(raw)


def unigram(texts: Iterable[str], *, vocabulary: int, lowercase: bool) -> tokenizers.Tokenizer:
    """A Unigram model (Kudo 2018, section 3.2), estimated by hard EM.

    Candidate pieces come from BPE, twice as many as wanted. Each round counts the pieces on the
    best path of every text, sets log-probabilities to their share, and drops the least used; single
    characters stay. Counts are whole numbers, so the result is the same in every process, which
    that of the library's trainer (soft EM) is not.

    Args:
        texts: read several times, so a collection and not an iterator.
        vocabulary: the number of ids to aim at, special ones included.
        lowercase: whether to lower case.
    """
    normalizer = normalizers.Lowercase() if lowercase else normalizers.Sequence([])
    splitter = pre_tokenizers.Metaspace()
    letters = sorted({*_alphabet(texts, normalizer, limit=vocabulary // 2), "▁"})
    wanted = vocabulary - len(SPECIAL)
    draft = tokenizers.Tokenizer(models.BPE())
    draft.normalizer, draft.pre_tokenizer = normalizer, splitter
    trainer = trainers.BpeTrainer(
        vocab_size=2 * wanted,
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    draft.train_from_iterator(iter(texts), trainer)
    # All alike at first, so that the best path is the one of fewest pieces.
    scores = dict.fromkeys(sorted(draft.get_vocab()), -10.0)
    for size in np.linspace(2 * wanted, wanted, _ROUNDS + 1)[1:].astype(int):
        raw = _unigram_of(scores, normalizer, splitter)
        counts = _count(raw, texts)
        used = {piece: int(counts[raw.token_to_id(piece)]) for piece in scores}
        keep = sorted(scores, key=lambda piece: (len(piece) > 1, -used[piece], piece))[:size]
        total = np.log(sum(used[piece] + 1 for piece in keep))
        # Few digits, so that reading the saved file gives the same numbers.
        scores = {piece: round(float(np.log(used[piece] + 1) - total), 6) for piece in keep}
    return _with_specials(_unigram_of(scores, normalizer, splitter))


def _unigram_of(
    scores: dict[str, float],
    normalizer: normalizers.Normalizer,
    splitter: pre_tokenizers.PreTokenizer,
) -> tokenizers.Tokenizer:
    pieces = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    raw = tokenizers.Tokenizer(models.Unigram([(name, 0.0) for name in SPECIAL] + pieces, unk_id=1))
    raw.normalizer, raw.pre_tokenizer, raw.decoder = normalizer, splitter, decoders.Metaspace()
    return raw


def _count(raw: tokenizers.Tokenizer, texts: Iterable[str]) -> np.ndarray:
    counts = np.zeros(raw.get_vocab_size(), np.int64)
    for group in batched(texts, 1000):
        for one in raw.encode_batch_fast(group, add_special_tokens=False):
            counts += np.bincount(one.ids, minlength=len(counts))
    return counts


def batched(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Lists of ``size`` texts; the last one may be shorter."""
    remaining = iter(texts)
    while group := list(islice(remaining, size)):
        yield group


def _alphabet(texts: Iterable[str], normalizer: normalizers.Normalizer, *, limit: int) -> list[str]:
    """The most frequent characters, which make up 99.98% of the text; in code point order."""
    raw: Counter[str] = Counter()
    for group in batched(texts, 1000):
        raw.update("".join(group))
    counts: Counter[str] = Counter()
    for character, times in raw.items():
        for c in normalizer.normalize_str(character):
            counts[c] += times
    ranked = sorted((-n, c) for c, n in counts.items() if not c.isspace())
    share = np.cumsum([-n for n, _ in ranked]) / max(1, sum(-n for n, _ in ranked))
    enough = int(np.searchsorted(share, _COVERAGE)) + 1
    return sorted(c for _, c in ranked[: min(enough, limit)])


def _with_specials(raw: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    known = [name for name in SPECIAL if raw.token_to_id(name) is not None]
    raw.add_special_tokens([tokenizers.AddedToken(name, special=True) for name in known])
    if {"[CLS]", "[SEP]"} <= set(known):
        ends = [(name, raw.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
        raw.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
        )
    return raw
