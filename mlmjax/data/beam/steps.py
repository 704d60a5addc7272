"""What the workers of Apache Beam do.

What becomes of a document is decided from hashes and a MinHash signature, keyed by what may be equal;
its text is shuffled once, to the other texts of its block. A worker holds the texts of one block, or the
signatures of one bucket, at a time. Nothing here imports JAX.
"""

import json
import struct
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import TaggedOutput
from jaxtyping import Int

from mlmjax.data.preparation.choosing import Fate, held_out, repeated
from mlmjax.data.preparation.destination import Folder
from mlmjax.data.preparation.near_duplicates import band_hashes, earlier_similar
from mlmjax.data.preparation.reading import Reading, Record, Tally, plan, read
from mlmjax.data.preparation.shards import SPLITS, Shards
from mlmjax.data.preparation.spool import entry, kept
from mlmjax.data.preparation.tokenising import RowSettings, write_rows
from mlmjax.data.tokenizer import Tokenizer

TOKENIZER = "tokenizer.json"
RESULT = "result.json"
"""What workers leave for the one who writes the manifest."""

Place = tuple[int, int, int]
"""Where a document stands: its task, its block of the task, its number in the block. Places in order are
the corpus in order."""
Units = tuple[bytes, bytes]
"""What a document may be split by: hashes of its group and of its text, as big-endian bytes, which sort
as the numbers do."""
_ENDS = (b"\xff" * 8, b"\0" * 8)


def tasks(sources: Any) -> Iterator[Any]:
    """What is read as one."""
    yield from plan(sources)


class Read(beam.DoFn):
    """The documents of a task: ``texts`` by block; ``facts``, by the hash of the text, and ``ids``, by
    the hash of the id, to compare; and what was read, of ``tasks``."""

    def __init__(self, how: Reading) -> None:
        self._how = how

    def process(self, task: Any) -> Iterator[Any]:
        """All documents of a task."""
        tally, cleaning = Tally(), self._how.cleaning
        sizes: list[int] = []
        for block, record in read(task, self._how, tally):
            if block == len(sizes):
                sizes.append(0)
            place = (task.number, block, sizes[block])
            sizes[block] += 1
            text, group, id, _ = entry(record)
            look = cleaning.near_duplicates is not None
            signature = cleaning.signature(record.text).tobytes() if look else b""
            yield place[:2], (place[2], tuple(record))
            yield TaggedOutput(
                "facts", (struct.pack(">QQ", *text), (place, struct.pack(">Q", group), signature))
            )
            if id:
                yield TaggedOutput("ids", (struct.pack(">Q", id), (place, record.id, record.place)))
        summary = {"counts": dict(tally.counts), "broken": tally.broken, "blocks": sizes}
        yield TaggedOutput("tasks", (task.number, task.source, summary))


def refuse_repeated(same: tuple[bytes, list]) -> None:
    """Look at the first two documents with an id.

    Raises:
        UserError: there are two.
    """
    if len(same[1]) > 1:
        (_, id, first), (_, _, second) = same[1]
        raise repeated(id, first, second)


def place(fact: tuple[bytes, Any]) -> tuple[Place, Any]:
    """The facts of a document by its place, in place of the hash of its text."""
    text, (place, group, signature) = fact
    return place, (group, text[:8], signature)


def units(fact: tuple[Place, Any]) -> tuple[Place, Units]:
    """Of the facts, what the document may be split by."""
    place, (group, text, _) = fact
    return place, (group, text)


def bands(fact: tuple[Place, Any], threshold: float) -> Iterator[tuple[bytes, Any]]:
    """The document in a bucket of each band."""
    place, (_, _, signature) = fact
    hashes = band_hashes(np.frombuffer(signature, np.uint32), threshold=threshold)
    for band, value in enumerate(hashes.tolist()):
        yield struct.pack(">HQ", band, value), (place, signature)


def near(bucket: tuple[bytes, Iterable[Any]], threshold: float) -> Iterator[tuple[Place, bool]]:
    """The documents of a bucket that are nearly an earlier one in it."""
    places, signatures = zip(*sorted(bucket[1]), strict=True)
    if len(places) > 1:
        table = np.frombuffer(b"".join(signatures), np.uint32).reshape(len(places), -1)
        for index in np.flatnonzero(earlier_similar(table, threshold=threshold)).tolist():
            yield places[index], True


def not_near(joined: tuple[Place, Any]) -> Iterator[tuple[Place, Units]]:
    """The document, if no bucket shows it to be nearly an earlier one."""
    place, found = joined
    if not list(found["near"]):
        (units,) = found["units"]
        yield place, units


@dataclass(frozen=True)
class Extremes:
    """What the split takes of all documents that are kept.

    Attributes:
        documents: how many there are.
        groups: the lowest and the highest hash of a group.
        texts: of a text.
    """

    documents: int = 0
    groups: tuple[bytes, bytes] = _ENDS
    texts: tuple[bytes, bytes] = _ENDS

    @property
    def split_by(self) -> str:
        """What is never divided; see :func:`mlmjax.data.preparation.choosing.choose`."""
        return "group" if self.groups[0] != self.groups[1] else "document"

    def fates(
        self, chosen: list[tuple[int, Units]], *, documents: int, heldout: float
    ) -> Int[np.ndarray, " documents"]:
        """The :class:`~mlmjax.data.preparation.choosing.Fate` of each document of a block.

        Args:
            chosen: number and units of those that are kept.
            documents: how many documents the block has.
            heldout: share of the units to hold out.
        """
        fates = np.full(documents, int(Fate.DUPLICATE))
        if chosen:
            which, ends = (0, self.groups) if self.split_by == "group" else (1, self.texts)
            hashes = b"".join(units[which] for _, units in chosen)
            lowest, highest = np.frombuffer(b"".join(ends), ">u8").tolist()
            units = np.frombuffer(hashes, ">u8").astype(np.uint64)
            out = held_out(units, heldout, ends=(lowest, highest))
            numbers = [number for number, _ in chosen]
            fates[numbers] = np.where(out, int(Fate.HELDOUT), int(Fate.TRAIN))
        return fates


class FindExtremes(beam.CombineFn):
    """The :class:`Extremes` of all documents, from their :data:`Units`."""

    def create_accumulator(self) -> Extremes:
        """Of no document."""
        return Extremes()

    def add_input(self, found: Extremes, units: Units) -> Extremes:
        """With one more."""
        group, text = units
        return self.merge_accumulators([found, Extremes(1, (group, group), (text, text))])

    def merge_accumulators(self, found: Iterable[Extremes]) -> Extremes:
        """Of all together."""
        every = [Extremes(), *found]
        low, high = zip(*(one.groups for one in every), strict=True)
        first, last = zip(*(one.texts for one in every), strict=True)
        documents = sum(one.documents for one in every)
        return Extremes(documents, (min(low), max(high)), (min(first), max(last)))

    def extract_output(self, found: Extremes) -> Extremes:
        """As they are."""
        return found


def block(chosen: tuple[Place, Units]) -> tuple[tuple[int, int], tuple[int, Units]]:
    """The document's number and units by its block."""
    place, units = chosen
    return place[:2], (place[2], units)


def first_blocks(tasks: list[Any]) -> dict[int, int]:
    """The place of each task's first block among all blocks."""
    found, blocks = {}, 0
    for number, _, summary in sorted(tasks, key=lambda task: task[0]):
        found[number] = blocks
        blocks += len(summary["blocks"])
    return found


class WriteRows(beam.DoFn):
    """The rows of a block: ``shards`` tells what was written, and ``frequency`` how often each id stands
    in the training rows."""

    def __init__(self, folder: Folder, rows: RowSettings, heldout: float) -> None:
        self._folder, self._rows, self._heldout = folder, rows, heldout

    def setup(self) -> None:
        """Read the tokenizer."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, TOKENIZER)
            self._folder.get(TOKENIZER, file)
            self._tokenizer = Tokenizer.load(file)

    def process(self, joined: Any, extremes: Extremes, first: dict[int, int]) -> Iterator[Any]:
        """The rows of all documents of a block that are chosen."""
        (task, block), found = joined
        number = first[task] + block
        texts = sorted(found["texts"])  # numbers differ, so no text is compared
        fates = extremes.fates(list(found["chosen"]), documents=len(texts), heldout=self._heldout)
        records = (Record(*record) for _, record in texts)
        with tempfile.TemporaryDirectory() as folder:
            shards = Shards(Path(folder), self._rows)
            paths = {split: shards.path(split, number) for split in SPLITS}
            chosen = kept(records, fates)
            counts, frequency = write_rows(chosen, paths, self._tokenizer, self._rows)
            written = [path for split, path in paths.items() if counts[split].rows]
            for path in written:
                self._folder.put(path, path.name)
            sizes = {path.name: path.stat().st_size for path in written}
        yield number, {split: asdict(one) for split, one in counts.items()}, sizes
        yield TaggedOutput("frequency", frequency)


def added(tables: Iterable[Any]) -> Any:
    """The sum of tables; 0 of none."""
    return sum(tables, start=0)


def write_result(
    folder: Folder,
    tasks: list[Any],
    different: int,
    extremes: Extremes,
    shards: list[Any],
    frequency: Any,
) -> None:
    """Leave behind what the manifest is made of."""
    content = {
        "tasks": sorted(tasks),
        "different": different,
        "kept": extremes.documents,
        "split_by": extremes.split_by,
        "shards": sorted(shards),
        "frequency": np.atleast_1d(frequency).tolist(),
    }
    with tempfile.TemporaryDirectory() as inside:
        file = Path(inside, RESULT)
        file.write_text(json.dumps(content), encoding="utf-8")
        folder.put(file, RESULT)
