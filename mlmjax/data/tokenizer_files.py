"""Vocabularies in the files that came before ``tokenizer.json``: WordPiece's ``vocab.txt``, and ``vocab.json`` with
``merges.txt``.
"""

import json
from collections.abc import Sequence
from typing import Any

import tokenizers
from etils import epath
from tokenizers import decoders, models, pre_tokenizers, processors

from mlmjax.core.errors import UserError
from mlmjax.data import tokenizer_training as training

VOCABULARY, MERGES = "vocab.json", "merges.txt"
FILES = ("tokenizer.json", "vocab.txt", VOCABULARY, MERGES)
"""What a tokenizer may be read from, first of all that which says most."""

_START, _SEPARATOR, _MASK = "<s>", "</s>", "<mask>"
_ROBERTA = (_START, "<pad>", _SEPARATOR, "<unk>", _MASK)


def find(path: epath.PathLike) -> epath.Path:
    """The file of a tokenizer: the path, or that in the folder there.

    Raises:
        UserError: there is none.
    """
    found = epath.Path(path)
    if found.is_dir():
        inside = [found / name for name in FILES]
        found = next((file for file in inside if file.exists()), inside[0])
    if not found.exists():
        raise UserError(f"There is no tokenizer at {found} (--data.tokenizer.path).")
    return found


def read(file: epath.Path) -> str:
    """A file's text.

    Raises:
        UserError: it cannot be read.
    """
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The tokenizer {file} cannot be read: {error}") from error


def wordpiece(file: epath.Path, *, lowercase: bool) -> tokenizers.Tokenizer:
    """BERT's tokenizer over a vocabulary of one token a line.

    Raises:
        UserError: the file cannot be read, or is no such vocabulary.
    """
    tokens = [line.strip() for line in read(file).splitlines()]
    while tokens and not tokens[-1]:
        tokens.pop()
    ids = {token: place for place, token in enumerate(tokens)}
    if not tokens or len(ids) < len(tokens):
        twice = next((t for i, t in enumerate(tokens) if ids[t] != i), None)
        what = f"repeats the token {twice!r}" if tokens else "is empty"
        raise UserError(f"The vocabulary {file} {what}; it must hold one token a line, each once.")
    raw = tokenizers.Tokenizer(
        models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100)
    )
    return training.dress_wordpiece(raw, lowercase=lowercase)


def byte_bpe(folder: epath.Path) -> tokenizers.Tokenizer:
    """RoBERTa's tokenizer: byte-level BPE over ``vocab.json``, merged in the order of ``merges.txt``.

    ``tokenizer_config.json``, where there is one, says whether a text is read as if a space stood before it. The
    mask takes the space before it.

    Raises:
        UserError: one of the two files is missing, or they are no such vocabulary.
    """
    vocabulary, merges = folder / VOCABULARY, folder / MERGES
    for file, other in ((vocabulary, merges), (merges, vocabulary)):
        if not file.exists():
            raise UserError(
                f"The tokenizer lacks {file}, without which {other.name} cannot be used: put it there."
            )
    ids = _ids(vocabulary)
    space = _adds_space(folder / "tokenizer_config.json")
    try:
        model = models.BPE(ids, _merges(merges))
    except Exception as error:  # the library raises bare Exception
        raise UserError(f"{merges} does not go with {VOCABULARY}: {error}.") from error
    raw = tokenizers.Tokenizer(model)
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(
        [
            tokenizers.AddedToken(name, special=True, normalized=False, lstrip=name == _MASK)
            for name in _ROBERTA
            if name in ids
        ]
    )
    if _START in ids and _SEPARATOR in ids:
        last, first = (_SEPARATOR, ids[_SEPARATOR]), (_START, ids[_START])
        raw.post_processor = processors.RobertaProcessing(last, first, add_prefix_space=space)
    return raw


def _ids(file: epath.Path) -> dict[str, int]:
    """The tokens of a ``vocab.json`` and their ids."""
    try:
        ids = json.loads(read(file))
    except ValueError as error:
        raise UserError(f"The vocabulary {file} is no JSON: {error}.") from error
    if not (
        isinstance(ids, dict)
        and all(type(each) is int and 0 <= each < 2**31 for each in ids.values())
        and len(set(ids.values())) == len(ids)
    ):
        raise UserError(f"The vocabulary {file} must be an object of tokens, each with its own id.")
    lacking = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - ids.keys())
    if lacking:
        raise UserError(
            f"The vocabulary {file} is not one of byte-level BPE: it lacks {len(lacking)} of the 256 signs for "
            f"bytes, such as {lacking[0]!r}."
        )
    return ids


def _merges(file: epath.Path) -> list[tuple[str, str]]:
    """The pairs of a ``merges.txt``, one a line after a line with its version."""
    lines = [line.rstrip("\r") for line in read(file).split("\n")]
    pairs: list[Sequence[str]] = [
        line.split(" ") for line in lines if line and not line.startswith("#version")
    ]
    for pair in pairs:
        if len(pair) != 2:
            raise UserError(
                f"{file}: {' '.join(pair)!r} is no merge, which is two tokens and a space."
            )
    return [(first, second) for first, second in pairs]


def _adds_space(file: epath.Path) -> bool:
    """What a ``tokenizer_config.json`` says of a space before a text; RoBERTa's adds none."""
    if not file.exists():
        return False
    try:
        config: Any = json.loads(read(file))
    except ValueError as error:
        raise UserError(f"{file} is no JSON: {error}.") from error
    return bool(config.get("add_prefix_space", False)) if isinstance(config, dict) else False
