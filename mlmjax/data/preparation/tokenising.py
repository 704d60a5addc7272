"""Documents to rows: one block of them at a time, each block on its own."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Int

from mlmjax.core.vocabulary import Vocabulary
from mlmjax.data.preparation.document_rows import PAIR, DocumentRows
from mlmjax.data.preparation.layout import TOKEN, FullRows, PackedRows, PairRows
from mlmjax.data.preparation.sentences import sentence_starts
from mlmjax.data.rows import RowWriter
from mlmjax.data.tokenizer import Tokenizer

Layout = Literal["full", "pairs", "packed", "documents"]

Item = TypeVar("Item")

_BATCH = 1 << 17
_PART = 1 << 15
_LONGEST = 1 << 16


class Text(NamedTuple):
    """A document that is kept.

    Attributes:
        text: normalised; of a pair both texts, ``document_rows.PAIR`` between them.
        split: its side.
        id: hash of the text.
        label: its class; empty where there is none.
    """

    text: str
    split: str
    id: int
    label: str = ""


@dataclass(frozen=True)
class RowSettings:
    """What decides how documents become rows.

    Attributes:
        length: tokens in a row.
        layout: what a row holds.
        documents: the most documents in a packed row; 0 for the other layouts.
    """

    length: int
    layout: Layout
    documents: int = 0

    @staticmethod
    def names() -> tuple[str, ...]:
        """The names of the settings."""
        return tuple(each.name for each in fields(RowSettings))

    def maker(self, vocabulary: Vocabulary) -> FullRows | PairRows | PackedRows | DocumentRows:
        """What lays tokens in rows."""
        if self.layout == "packed":
            return PackedRows(self.length, vocabulary, documents=self.documents)
        if self.layout == "documents":
            return DocumentRows(self.length, vocabulary)
        return (FullRows if self.layout == "full" else PairRows)(self.length, vocabulary)


@dataclass
class SplitCounts:
    """What was made of the documents of a split; blocks add up.

    Attributes:
        documents: documents read.
        without_tokens: those that the tokenizer finds nothing in.
        documents_of_one_piece: those that are too short for a pair.
        rows: rows written.
        rows_cut: rows (pieces, in packed rows) that end before their document does.
        tokens: tokens in rows, special ones included.
        text_tokens: tokens of the text.
        words: words of the text.
        lengths: documents by their number of tokens: entry i counts those below 2^i.
        classes: rows of each class, where documents have one.
    """

    documents: int = 0
    without_tokens: int = 0
    documents_of_one_piece: int = 0
    rows: int = 0
    rows_cut: int = 0
    tokens: int = 0
    text_tokens: int = 0
    words: int = 0
    lengths: list[int] = field(default_factory=lambda: [0] * 40)
    classes: list[int] = field(default_factory=list)

    @property
    def paired(self) -> int:
        """Documents that gave pairs, in rows of pairs."""
        return self.documents - self.without_tokens - self.documents_of_one_piece

    def __add__(self, other: "SplitCounts") -> "SplitCounts":
        mine, theirs = vars(self), vars(other)
        lengths = [a + b for a, b in zip(self.lengths, other.lengths, strict=True)]
        classes = [a + b for a, b in zip_longest(self.classes, other.classes, fillvalue=0)]
        added = {k: mine[k] + theirs[k] for k in mine if k not in ("lengths", "classes")}
        return SplitCounts(**added, lengths=lengths, classes=classes)


def write_rows(
    texts: Iterable[Text],
    paths: dict[str, Path],
    tokenizer: Tokenizer,
    settings: RowSettings,
    *,
    classes: Sequence[str] = (),
) -> tuple[dict[str, SplitCounts], Int[np.ndarray, " vocabulary"]]:
    """The rows of a block's documents, in order; each split in a file of its own.

    Args:
        texts: the documents.
        paths: the file of each split.
        tokenizer: gives the tokens.
        settings: how they are laid in rows.
        classes: names of all classes; a row's label is a place among them.

    Returns:
        What was made of each split, and how often each id stands in the training rows.
    """
    vocabulary = tokenizer.vocabulary
    makers = {split: settings.maker(vocabulary) for split in paths}
    writers = {split: RowWriter(path) for split, path in paths.items()}
    counts = {split: SplitCounts(classes=[0] * len(classes)) for split in paths}
    numbers = {name: number for number, name in enumerate(classes)}
    frequency = np.zeros(vocabulary.size, np.int64)

    def put(split: str, table: np.ndarray) -> None:
        writers[split].write(table)
        counts[split].tokens += int(table["used"].sum())
        if split == "train" and len(table):
            frequency[:] += np.bincount(table["tokens"].ravel(), minlength=len(frequency))

    def lay(maker: Any, text: Text, tokens: np.ndarray, *, last: bool) -> None:
        table = maker.add(tokens, text.id, last=last)
        if text.label and len(table):
            table["label"] = numbers[text.label]
            counts[text.split].classes[numbers[text.label]] += 1
        put(text.split, table)

    try:
        for group in _gathered(texts, lambda text: len(text.text)):
            parts = _parts([text.text for text in group])
            ends = {part.document: place for place, part in enumerate(parts)}
            size, second = 0, False
            for place, tokens, last in encode(tokenizer, [part.text for part in parts]):
                text = group[parts[place].document]
                last = last and ends[parts[place].document] == place
                found, maker = counts[text.split], makers[text.split]
                found.words += int(tokens["word"].sum())
                size += len(tokens)
                if size:
                    if parts[place].second and not second:
                        assert isinstance(maker, DocumentRows)
                        maker.turn()
                        second = True
                    lay(maker, text, tokens, last=last)
                if last:
                    found.documents += 1
                    found.text_tokens += size
                    found.lengths[size.bit_length()] += 1
                    found.without_tokens += int(not size)
                    size, second = 0, False
        for split, maker in makers.items():
            put(split, maker.finish())
    finally:
        for writer in writers.values():
            writer.close()
    for split, maker in makers.items():
        found = counts[split]
        found.rows, found.rows_cut = writers[split].rows, maker.cut
        found.documents_of_one_piece = maker.single if isinstance(maker, PairRows) else 0
    frequency[list(vocabulary.special)] = 0
    return counts, frequency


class _Part(NamedTuple):
    """One of the texts of a document: the place of the document, and whether it is the second of a pair."""

    document: int
    second: bool
    text: str


def _parts(texts: Sequence[str]) -> list[_Part]:
    """The texts of all documents, in order; empty ones are left out."""
    return [
        _Part(document, number > 0, part)
        for document, text in enumerate(texts)
        for number, part in enumerate(text.split(PAIR))
        if part
    ]


class Piece(NamedTuple):
    """Tokens of a document, or some of them.

    Attributes:
        place: of the document among those that were given.
        tokens: records of ``layout.TOKEN``; there may be none.
        last: whether the document ends with them.
    """

    place: int
    tokens: np.ndarray
    last: bool


def encode(tokenizer: Tokenizer, texts: list[str]) -> Iterator[Piece]:
    """Tokens of each document in turn, a long one in several pieces.

    Long documents are encoded in parts that end at a space, so that memory is bounded: to a tokenizer that
    looks across spaces, such a part is a text of its own.
    """
    starts = [np.array(sentence_starts(text)) for text in texts]
    parts: list[tuple[int, int, int]] = []
    for place, text in enumerate(texts):
        begin = 0
        while begin < len(text):
            end = _part_end(text, begin)
            parts.append((place, begin, end))
            begin = end
    for group in _gathered(parts, lambda part: part[2] - part[1]):
        encoded = tokenizer.encode([texts[place][begin:end] for place, begin, end in group])
        tables: dict[int, list[np.ndarray]] = {}
        for (place, begin, _), one in zip(group, encoded, strict=True):
            table = np.zeros(len(one.ids), TOKEN)
            table["id"], table["word"] = one.ids, one.word_starts
            later = starts[place][np.searchsorted(starts[place], begin) :]
            first = np.searchsorted(one.offsets + begin, later)
            table["sentence"][first[first < len(table)]] = True
            tables.setdefault(place, []).append(table)
        last_place, _, last_end = group[-1]
        for place, pieces in tables.items():
            whole = place != last_place or last_end == len(texts[place])
            yield Piece(place, pieces[0] if len(pieces) == 1 else np.concatenate(pieces), whole)


def _part_end(text: str, begin: int) -> int:
    """Where the part that begins there ends: before a space, or where it is too long."""
    longest = begin + _LONGEST
    space = text.find(" ", begin + _PART, longest)
    return space if space > 0 else min(longest, len(text))


def _gathered(items: Iterable[Item], size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Items in lists of so many characters that threads have work, and memory is small."""
    group: list[Item] = []
    total = 0
    for item in items:
        group.append(item)
        total += size(item)
        if total >= _BATCH:
            yield group
            group, total = [], 0
    if group:
        yield group


def summed(blocks: Iterable[dict[str, Any]]) -> dict[str, SplitCounts]:
    """The counts of all blocks, by split, from their JSON."""
    total: dict[str, SplitCounts] = {}
    for block in blocks:
        for split, counts in block.items():
            total[split] = total.get(split, SplitCounts()) + SplitCounts(**counts)
    return total
