"""Text to rows, once: read, normalise, drop duplicates, split, tokenise, write, remember.

The result lies in a cache folder named by a fingerprint of content, tokenizer and settings. It is
built beside its place and renamed into it, so what is there is complete; sizes are checked when it
is opened, and what is damaged is built again.
"""

import hashlib
import json
import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from mlmjax.core.errors import UserError
from mlmjax.core.vocabulary import Vocabulary
from mlmjax.data import cache
from mlmjax.data.base import Batches, Report
from mlmjax.data.documents import Source
from mlmjax.data.layout import TOKEN, FullRows, PairRows
from mlmjax.data.pipeline import batches, heldout_batches
from mlmjax.data.rows import Rows, RowWriter
from mlmjax.data.sentences import sentence_starts
from mlmjax.data.spool import Spool
from mlmjax.data.tokenizer import Tokenizer, TokenizerConfig

Layout = Literal["full", "pairs"]
SPLITS = ("train", "heldout")

_FORMAT = 1
_BATCH = 1 << 20
_CHUNK = 1 << 15
_TRAINING_TEXT = 1 << 28
_LIBRARIES = ("mlmjax", "numpy", "tokenizers", "array_record")


@dataclass(frozen=True)
class PreparedText:
    """What :func:`prepare` made.

    Attributes:
        folder: where it lies.
        manifest: versions, settings, and counts of documents, rows and tokens.
        fingerprint: hash of content, tokenizer and settings.
        tokenizer: the tokenizer that was loaded or trained.
        train: rows to train on.
        heldout: rows of text that training does not see.
        token_counts: how often each id occurs in the training rows; 0 for special ones.
    """

    folder: Path
    manifest: dict[str, Any]
    fingerprint: str
    tokenizer: Tokenizer
    train: Rows
    heldout: Rows
    token_counts: np.ndarray

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokenizer's vocabulary."""
        return self.tokenizer.vocabulary

    def batches(self, *, seed: int, batch: int, start: int, stop: int, threads: int) -> Batches:
        """Training batches; see :func:`mlmjax.data.pipeline.batches`."""
        return batches(
            self.train, seed=seed, batch=batch, start=start, stop=stop, threads=threads, **_here()
        )

    def heldout_batches(self, *, seed: int, batch: int, threads: int) -> Batches:
        """Held-out batches; see :func:`mlmjax.data.pipeline.heldout_batches`."""
        return heldout_batches(self.heldout, seed=seed, batch=batch, threads=threads, **_here())

    def save(self, folder: Path) -> None:
        """Write ``tokenizer.json``."""
        self.tokenizer.save(folder / "tokenizer.json")


def _here() -> dict[str, int]:
    return {"process_index": jax.process_index(), "process_count": jax.process_count()}


def prepare(
    source: Source,
    *,
    tokenizer: TokenizerConfig,
    length: int,
    layout: Layout = "full",
    heldout: float = 0.05,
    folder: Path | None = None,
    report: Report | None = None,
) -> PreparedText:
    """Rows of a source, from the cache or made now.

    Args:
        source: the documents.
        tokenizer: which tokenizer; one that is trained sees the training part only.
        length: tokens in a row.
        layout: consecutive text (``full``) or pairs for next-sentence prediction (``pairs``).
        heldout: share of the groups that is held out.
        folder: the cache; by default the user's.
        report: called with the stage, what is done, and the total (0: unknown).

    Raises:
        UserError: the source cannot be read, or gives no row, or the cache cannot be written.
    """
    settings = {"length": length, "layout": layout, "heldout": heldout}
    named = {
        "format": _FORMAT,
        "content": source.digest(),
        "tokenizer": tokenizer.fingerprint(),
        "settings": settings,
    }
    text = json.dumps(named, sort_keys=True)
    fingerprint = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    place = (folder or cache.default()) / f"text-{fingerprint}"
    if (manifest := cache.manifest(place)) is None:
        with cache.building(place) as work:
            job = _Job(source, work, tokenizer, length, layout, heldout, report or _silent)
            cache.finish(work, {"fingerprint": fingerprint, **named, **job.run()})
        manifest = cache.manifest(place)
        if manifest is None:
            raise UserError(f"{place} was changed while it was written; run the command again.")
    return _open(place, manifest)


def _open(place: Path, manifest: dict[str, Any]) -> PreparedText:
    found = Tokenizer.load(place / "tokenizer.json")
    settings = manifest["settings"]
    train, heldout = (
        Rows(
            place / f"{split}.array_record",
            length=settings["length"],
            pairs=settings["layout"] == "pairs",
            padding=found.vocabulary.padding,
        )
        for split in SPLITS
    )
    counts = np.load(place / "token_counts.npy")
    return PreparedText(place, manifest, manifest["fingerprint"], found, train, heldout, counts)


@dataclass(frozen=True)
class _Job:
    """One preparation, from documents to files in ``work``."""

    source: Source
    work: Path
    tokenizer: TokenizerConfig
    length: int
    layout: Layout
    heldout: float
    report: Report

    def run(self) -> dict[str, Any]:
        """Write everything but the manifest, and return what it is to say."""
        spool = Spool.fill(self.work / "documents.jsonl", self.source, self.heldout, self.report)
        tokenizer = self._tokenizer(spool)
        tokenizer.save(self.work / "tokenizer.json")
        counts = np.zeros(tokenizer.vocabulary.size, np.int64)
        splits = {split: self._write(split, spool, tokenizer, counts) for split in SPLITS}
        counts[list(tokenizer.vocabulary.special)] = 0
        np.save(self.work / "token_counts.npy", counts)
        spool.path.unlink()
        words = sum(one.pop("words") for one in splits.values())
        return {
            "versions": {"python": platform.python_version()} | {n: version(n) for n in _LIBRARIES},
            "source": str(self.source),
            "documents": spool.counts,
            "split_by": spool.split_by,
            "vocabulary": {"size": tokenizer.vocabulary.size, "hash": tokenizer.hash},
            "splits": splits,
            "tokens_per_word": sum(one["text_tokens"] for one in splits.values()) / max(words, 1),
        }

    def _tokenizer(self, spool: Spool) -> Tokenizer:
        if self.tokenizer.path is not None:
            return self.tokenizer.load()
        self.report("training the tokenizer", 0, 1)
        every = -(-spool.characters // _TRAINING_TEXT)
        found = self.tokenizer.train(_Texts(spool, every))
        self.report("training the tokenizer", 1, 1)
        return found

    def _write(
        self, split: str, spool: Spool, tokenizer: Tokenizer, counts: np.ndarray
    ) -> dict[str, Any]:
        """Write the rows of a split; counts of its training tokens are added to ``counts``."""
        writer = RowWriter(self.work / f"{split}.array_record")
        vocabulary = tokenizer.vocabulary
        maker: FullRows | PairRows = (
            FullRows(self.length, vocabulary)
            if self.layout == "full"
            else PairRows(self.length, vocabulary)
        )
        documents = words = text = used = 0
        total = spool.sizes[split]

        def put(table: np.ndarray) -> int:
            writer.write(table)
            if split == "train":
                counts[:] += np.bincount(table["tokens"].ravel(), minlength=len(counts))
            return int(table["used"].sum())

        for group in _gathered(spool.read(split)):
            for tokens in encode(tokenizer, group):
                words += int(tokens["word"].sum())
                text += len(tokens)
                used += put(maker.add(tokens))
            documents += len(group)
            self.report(f"tokenising {split}", documents, total)
        used += put(maker.finish())
        writer.close()
        self._check(split, writer.rows, maker)
        fill = used / (writer.rows * self.length)
        numbers = {"documents": documents, "rows": writer.rows, "tokens": used, "fill": fill}
        if isinstance(maker, PairRows):
            numbers |= {"documents_of_one_piece": maker.single}
        return numbers | {"text_tokens": text, "words": words}

    def _check(self, split: str, rows: int, maker: FullRows | PairRows) -> None:
        part = {"train": "training", "heldout": "held-out"}[split]
        if not rows:
            raise UserError(
                f"{self.source} gives no {part} row. Give more text (--data.root), shorter rows "
                "(--data.length), or another share of held-out text (--data.heldout)."
            )
        if isinstance(maker, PairRows) and maker.documents < 2:
            raise UserError(
                f"The {part} part of {self.source} has one document, and pairs need two (two blank "
                "lines separate documents in a file). Give more (--data.root, --data.heldout), or "
                "choose --data.layout full."
            )


@dataclass(frozen=True)
class _Texts:
    """Training texts, or every n-th of them, as often as they are asked for."""

    spool: Spool
    every: int

    def __iter__(self) -> Iterator[str]:
        return (text for text, id in self.spool.read("train") if id % self.every == 0)


def encode(tokenizer: Tokenizer, documents: list[tuple[str, int]]) -> Iterator[np.ndarray]:
    """Tokens of (text, id) documents as records of ``layout.TOKEN``; none of those without.

    Long documents are encoded in parts that end with a sentence, so that threads share them.
    """
    starts = [np.array(sentence_starts(text)) for text, _ in documents]
    parts: list[str] = []
    owners: list[tuple[int, int]] = []
    for place, ((text, _), sentences) in enumerate(zip(documents, starts, strict=True)):
        begin = 0
        while begin < len(text):
            later = np.searchsorted(sentences, begin + _CHUNK)
            end = int(sentences[later]) if later < len(sentences) else len(text)
            parts.append(text[begin:end])
            owners.append((place, begin))
            begin = end
    tables: list[list[np.ndarray]] = [[] for _ in documents]
    encoded = (
        one
        for group in _gathered(zip(parts, range(len(parts)), strict=True))
        for one in tokenizer.encode([part for part, _ in group])
    )
    for (place, begin), one in zip(owners, encoded, strict=True):
        table = np.zeros(len(one.ids), TOKEN)
        table["id"], table["word"] = one.ids, one.word_starts
        table["document"] = documents[place][1]
        first = np.searchsorted(one.offsets + begin, starts[place])
        table["sentence"][first[first < len(table)]] = True
        tables[place].append(table)
    for pieces in tables:
        if sum(map(len, pieces)):
            yield np.concatenate(pieces)


def _gathered(documents: Iterable[tuple[str, int]]) -> Iterator[list[tuple[str, int]]]:
    """Documents in lists of about a million characters."""
    group: list[tuple[str, int]] = []
    size = 0
    for document in documents:
        group.append(document)
        size += len(document[0])
        if size >= _BATCH:
            yield group
            group, size = [], 0
    if group:
        yield group


def _silent(stage: str, done: int, total: int) -> None:
    """Report nothing."""
