"""Shards of rows: one a block of documents and split, each written by itself."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mlmjax.data.preparation.choosing import Fate
from mlmjax.data.preparation.spool import Block, kept, save, unfinished, write_whole
from mlmjax.data.preparation.tokenising import RowSettings, Text, write_rows
from mlmjax.data.tokenizer import Tokenizer

SPLITS = ("train", "heldout")


@dataclass(frozen=True)
class Shards:
    """Where shards are written, and how.

    Attributes:
        folder: of the shards, and of the ``tokenizer.json`` that they are made with.
        settings: how documents are laid in rows.
        classes: names of the documents' classes, where these are asked for.
    """

    folder: Path
    settings: RowSettings
    classes: tuple[str, ...] = ()

    def path(self, split: str, number: int) -> Path:
        """The rows of a block and split."""
        return self.folder / f"{split}-{number:05d}.array_record"

    @property
    def tokenizer(self) -> Path:
        """The tokenizer."""
        return self.folder / "tokenizer.json"

    def summary(self, number: int) -> dict[str, Any] | None:
        """What the shards of a block hold; none if they are not done."""
        path = self._summary(number)
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def write(self, texts: Iterable[Text], number: int) -> dict[str, Any]:
        """Write the shards of a block, if that is not done; their summary."""
        if (done := self.summary(number)) is not None:
            return done
        tokenizer = _tokenizer(self.tokenizer)
        beside = {split: unfinished(self.path(split, number)) for split in SPLITS}
        counts, frequency = write_rows(
            texts, beside, tokenizer, self.settings, classes=self.classes
        )
        for split, path in beside.items():
            path.rename(self.path(split, number))
        save(self._frequency(number), frequency)
        summary = {split: asdict(found) for split, found in counts.items()}
        write_whole(self._summary(number), json.dumps(summary).encode())
        return summary

    def gather(self, blocks: int) -> tuple[list[dict[str, Any]], np.ndarray]:
        """The summaries of all blocks and the counts of all training tokens, which are then removed;
        so are shards without a row."""
        summaries, frequency = [], np.zeros(0, np.int64)
        for number in range(blocks):
            summary = self.summary(number)
            assert summary is not None, f"block {number} is not done"
            summaries.append(summary)
            found = np.load(self._frequency(number))
            frequency = found if number == 0 else frequency + found
        for number, summary in enumerate(summaries):
            for split in SPLITS:
                if not summary[split]["rows"]:
                    self.path(split, number).unlink(missing_ok=True)
            self._summary(number).unlink()
            self._frequency(number).unlink()
        return summaries, frequency

    def _summary(self, number: int) -> Path:
        return self.folder / f"rows-{number:05d}.json"

    def _frequency(self, number: int) -> Path:
        return self.folder / f"rows-{number:05d}.npy"


@dataclass(frozen=True)
class ShardTask:
    """One block to tokenise, in any process.

    Attributes:
        shards: where to, and how.
        block: what.
        fates: what becomes of each of its documents (``choosing.Fate``).
        cut: the character at which the only document is divided.
    """

    shards: Shards
    block: Block
    fates: np.ndarray
    cut: int

    @property
    def documents(self) -> int:
        """Documents that are kept."""
        return int((self.fates >= Fate.TRAIN).sum())

    def texts(self) -> Iterator[Text]:
        """The documents that are kept."""
        return kept(self.block.records(), self.fates, cut=self.cut)

    def run(self, progress: Callable[[int], None] | None = None) -> dict[str, Any]:
        """Write the block's shards; ``progress`` is called now and then with the documents done."""
        texts = self.texts()
        return self.shards.write(
            _counted(texts, progress) if progress else texts, self.block.number
        )


def _counted(texts: Iterable[Text], progress: Callable[[int], None]) -> Iterator[Text]:
    for done, text in enumerate(texts):
        if done % 200 == 0:
            progress(done)
        yield text


@lru_cache(2)
def _tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.load(path)
