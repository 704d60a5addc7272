"""Documents on disk between reading and tokenising: blocks of texts, and a table of what is known."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from mlmjax.data.documents import hash64
from mlmjax.data.preparation import reading
from mlmjax.data.preparation.choosing import ENTRY, Entries, Fate
from mlmjax.data.preparation.cleaning import Cleaning
from mlmjax.data.preparation.reading import Reading, Record, Tally, Task
from mlmjax.data.preparation.tokenising import Text


@dataclass(frozen=True)
class Block:
    """Some documents on disk, in order.

    Attributes:
        number: its place among all blocks.
        path: of its files, without their endings.
        documents: how many there are.
        source: which source they are of.
    """

    number: int
    path: Path
    documents: int
    source: int

    def entries(self) -> Entries:
        """What is known of its documents."""
        return np.load(_table(self.path))

    def signatures(self) -> np.ndarray:
        """MinHash signatures of its documents, where they were asked for; read when they are used."""
        return np.load(_signatures(self.path), mmap_mode="r")

    def records(self) -> Iterator[Record]:
        """Its documents."""
        with _texts(self.path).open(encoding="utf-8") as file:
            for line in file:
                yield Record(*json.loads(line))


class Spool:
    """A folder of blocks that tasks fill, each by itself.

    The last file that a task writes is its summary. A task that has one is done; one that was broken
    off is done again, and gives the same bytes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def summary(self, task: Task) -> dict[str, Any] | None:
        """What a task read and wrote; none if it is not done."""
        path = self._summary(task)
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def fill(
        self, task: Task, how: Reading, progress: Callable[[int], None] | None = None
    ) -> dict[str, Any]:
        """Read a task's documents into blocks.

        Args:
            task: what to read.
            how: what is dropped, and what happens where something cannot be read.
            progress: called now and then with the number of documents read.

        Returns:
            The task's summary: counts, the first few messages, the documents in each block, and their classes.

        Raises:
            UserError: something cannot be read.
        """
        tally, sizes, labels = Tally(), [], set[str]()
        for number, records in groupby(reading.read(task, how, tally, progress), itemgetter(0)):
            with _Writer(self._block(task, number), how.cleaning) as writer:
                for _, record in records:
                    writer.write(record)
                    labels.add(record.label)
                sizes.append(writer.finish())
        summary = {
            "counts": dict(tally.counts),
            "broken": tally.broken,
            "blocks": sizes,
            "labels": sorted(labels - {""}),
        }
        write_whole(self._summary(task), json.dumps(summary).encode())
        return summary

    def blocks(self, tasks: Sequence[Task]) -> list[Block]:
        """The blocks of tasks, which are all done, in order."""
        found: list[Block] = []
        for task in tasks:
            summary = self.summary(task)
            assert summary is not None, f"task {task.number} is not done"
            for number, documents in enumerate(summary["blocks"]):
                path = self._block(task, number)
                found.append(Block(len(found), path, documents, task.source))
        return found

    def _summary(self, task: Task) -> Path:
        return self.folder / f"{task.number:06d}.json"

    def _block(self, task: Task, number: int) -> Path:
        return self.folder / f"{task.number:06d}-{number:04d}"


class _Writer:
    """Writes one block."""

    def __init__(self, path: Path, cleaning: Cleaning) -> None:
        self._path, self._cleaning = path, cleaning
        self._entries: list[tuple] = []
        self._signatures: list[np.ndarray] = []
        # Another process may still be at the same block, if the one that started it was killed.
        self._file = unfinished(_texts(path)).open("w", encoding="utf-8")

    def write(self, record: Record) -> None:
        self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._entries.append(entry(record))
        if self._cleaning.near_duplicates is not None:
            self._signatures.append(self._cleaning.signature(record.text))

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.close()

    def finish(self) -> int:
        """Give the files their names; how many documents they hold."""
        self._file.close()
        save(_table(self._path), np.array(self._entries, ENTRY))
        if self._signatures:
            save(_signatures(self._path), np.stack(self._signatures))
        unfinished(_texts(self._path)).rename(_texts(self._path))
        return len(self._entries)


def entry(record: Record) -> tuple[tuple[int, int], int, int, int]:
    """What is known of a document: one of ``choosing.ENTRY``."""
    text = hash128(record.text)
    group = hash64(record.group) if record.group else text[0]
    return text, group, hash64(record.id) if record.id else 0, len(record.text)


def hash128(text: str) -> tuple[int, int]:
    """The BLAKE2b hash of a text, in two words; the first is the document's id."""
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def kept(records: Iterator[Record], fates: np.ndarray, *, cut: int = 0) -> Iterator[Text]:
    """The documents that are kept, each with its split and its id.

    Args:
        records: the documents.
        fates: the :class:`~mlmjax.data.preparation.choosing.Fate` of each.
        cut: the character at which the only document is divided.
    """
    for record, fate in zip(records, fates.tolist(), strict=True):
        if fate in (Fate.TRAIN, Fate.HELDOUT):
            split = "train" if fate == Fate.TRAIN else "heldout"
            yield Text(record.text, split, hash128(record.text)[0], record.label)
        elif fate == Fate.BOTH:
            first, last = record.text[:cut].strip(), record.text[cut:].strip()
            yield Text(first, "train", hash128(first)[0], record.label)
            yield Text(last, "heldout", hash128(last)[0], record.label)


def save(path: Path, array: np.ndarray) -> None:
    """Write an array so that the file is whole or absent."""
    beside = unfinished(path)
    with beside.open("wb") as file:
        np.save(file, array)
    beside.rename(path)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is whole or absent."""
    beside = unfinished(path)
    beside.write_bytes(content)
    beside.rename(path)


def unfinished(path: Path) -> Path:
    """What a file is called while this process writes it."""
    return path.with_name(f"{path.name}.{os.getpid()}.unfinished")


def _texts(path: Path) -> Path:
    return path.with_name(f"{path.name}.jsonl")


def _table(path: Path) -> Path:
    return path.with_name(f"{path.name}.npy")


def _signatures(path: Path) -> Path:
    return path.with_name(f"{path.name}-signatures.npy")
