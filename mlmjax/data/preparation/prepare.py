"""Text to rows, once: read, clean, drop copies, split, tokenise, write, remember.

Three stages, each of tasks that any number of processes may share: sources to blocks of documents
(``reading``, ``spool``), the choice among all documents (``choosing``), and blocks to shards of
rows (``tokenising``, ``shards``). What a task writes is a function of the source and the settings
alone, and a task that is done is not done again. The result lies in a cache folder named by a
fingerprint of content, tokenizer and settings; sizes are checked when it is opened, and what is
damaged is built again.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np

from mlmjax.core.errors import UserError
from mlmjax.data.documents import Source
from mlmjax.data.preparation import cache
from mlmjax.data.preparation.choosing import (
    Choice,
    Fate,
    choose,
    concatenated,
    repeated,
    repeated_id,
)
from mlmjax.data.preparation.cleaning import Cleaning
from mlmjax.data.preparation.document_rows import PAIR
from mlmjax.data.preparation.manifest import count, described, named
from mlmjax.data.preparation.progress import Report
from mlmjax.data.preparation.reading import OnError, Reading, Tally, Task, plan
from mlmjax.data.preparation.sentences import sentence_starts
from mlmjax.data.preparation.shards import Shards, ShardTask
from mlmjax.data.preparation.spool import Block, Spool
from mlmjax.data.preparation.tokenising import RowSettings
from mlmjax.data.preparation.workers import processes, spread, workers_alive
from mlmjax.data.tokenizer import Tokenizer, TokenizerConfig

NO_CLEANING = Cleaning()
"""Nothing is dropped but exact copies."""

_FORMAT = 3
_ENDLESS = 100
_TRAINING_TEXT = 1 << 28


@dataclass(frozen=True)
class Recipe:
    """What is made of the sources; it decides every byte.

    Attributes:
        tokenizer: which tokenizer; one that is trained sees the training part only.
        rows: how documents are laid in rows.
        heldout: share of the groups that is held out.
        cleaning: what is dropped beside exact copies.
        on_error: what happens where a document cannot be read.
        labels: whether rows hold the documents' classes.
    """

    tokenizer: TokenizerConfig
    rows: RowSettings
    heldout: float = 0.05
    cleaning: Cleaning = NO_CLEANING
    on_error: OnError = "stop"
    labels: bool = False

    def identity(self, sources: Sequence[Source]) -> dict[str, Any]:
        """What the rows are made of, and the ``fingerprint`` of that."""
        found = {
            "format": _FORMAT,
            "content": [source.digest() for source in sources],
            "tokenizer": self.tokenizer.fingerprint(),
            "settings": {**asdict(self.rows), "heldout": self.heldout, "on_error": self.on_error},
            "cleaning": self.cleaning.model_dump(mode="json"),
            **({"labels": True} if self.labels else {}),
        }
        text = json.dumps(found, sort_keys=True)
        digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        return {"fingerprint": digest, **found}

    @property
    def reading(self) -> Reading:
        """How documents are read."""
        return Reading(self.cleaning, self.on_error, self.labels)


def prepare(
    sources: Sequence[Source],
    recipe: Recipe,
    *,
    folder: Path | None = None,
    workers: int = 0,
    report: Report | None = None,
) -> Path:
    """Rows of some sources, from the cache or made now; ``prepared.PreparedText`` reads them.

    Args:
        sources: where documents come from; of two with the same text the first is kept.
        recipe: what is made of them.
        folder: the cache; by default the user's.
        workers: processes; 0 for one a core. The bytes that are written do not depend on it.
        report: called with the stage, what is done, and the total (0: unknown).

    Returns:
        The folder that holds them.

    Raises:
        UserError: a source cannot be read, or gives no row, or the cache cannot be written.
    """
    report = report or _silent
    identity = recipe.identity(sources)
    place = (folder or cache.default()) / f"text-{identity['fingerprint']}"
    if cache.manifest(place) is None:
        with (
            cache.full_disk(place.parent, "; the same command goes on with what is finished"),
            workers_alive(processes(workers)),
            cache.building(place, waiting=partial(report, cache.WAITING, 0, 0)) as work,
        ):
            if work is not None:
                job = _Job(sources, recipe, work, processes(workers), report)
                cache.finish(work, {**identity, **job.run()})
    return place


@dataclass(frozen=True)
class _Job:
    """One preparation, from sources to files in ``work``."""

    sources: Sequence[Source]
    recipe: Recipe
    work: Path
    workers: int
    report: Report

    def run(self) -> dict[str, Any]:
        """Write everything but the manifest, and return what it is to say."""
        self.recipe.cleaning.check()
        documents = self.work / "documents"
        documents.mkdir(exist_ok=True)
        spool = Spool(documents)
        tasks = plan(self.sources)
        tally = self._read(spool, tasks)
        blocks = spool.blocks(tasks)
        choice, cut = self._choose(blocks, tally)
        shards = Shards(self.work, self.recipe.rows, _classes(spool, tasks))
        jobs = _jobs(shards, blocks, choice, cut)
        tokenizer = self._tokenizer(shards, jobs)
        summaries, counts = self._write(shards, jobs, choice)
        np.save(self.work / "token_counts.npy", counts)
        return described(
            self.sources,
            self.recipe.rows,
            tally=tally,
            split_by=choice.split_by,
            tokenizer=tokenizer,
            shards=[(job.block.source, made) for job, made in zip(jobs, summaries, strict=True)],
            classes=shards.classes,
        )

    def _read(self, spool: Spool, tasks: Sequence[Task]) -> Tally:
        """Fill the spool; what became of all documents that were read."""
        total = sum(task.size for task in tasks)
        missing = [task for task in tasks if spool.summary(task) is None]
        done = total - sum(task.size for task in missing)
        # Of the only task, which is done in this process, the documents are told as they are read.
        alone = (lambda read: self.report("reading", read, 0)) if len(tasks) == 1 else None
        fill = partial(spool.fill, how=self.recipe.reading, progress=alone)
        for task, _ in spread(fill, missing, workers=self.workers):
            done += task.size
            self.report("reading", done, total)
        self.report("reading", total, total)
        tally = Tally()
        for task in tasks:
            found = spool.summary(task)
            assert found is not None
            tally.add(found["counts"], found["broken"])
        return tally

    def _choose(self, blocks: list[Block], tally: Tally) -> tuple[Choice, int]:
        """What becomes of each document, and where the only one is cut."""
        entries = concatenated([block.entries() for block in blocks])
        if (same := repeated_id(entries)) is not None:
            one, two = (_record(blocks, place) for place in same)
            raise repeated(one.id, one.place, two.place)
        near = np.zeros(len(entries), bool)
        if self.recipe.cleaning.near_duplicates is not None and blocks:
            self.report("near-duplicates", 0, 1)
            signatures = np.concatenate([block.signatures() for block in blocks])
            near = self.recipe.cleaning.near_duplicate(signatures)
            self.report("near-duplicates", 1, 1)
        choice = choose(entries, near, heldout=self.recipe.heldout)
        looked = self.recipe.cleaning.near_duplicates is not None
        count(
            tally,
            self.sources,
            duplicates=choice.count(Fate.DUPLICATE),
            near_duplicates=choice.count(Fate.NEAR_DUPLICATE) if looked else None,
            kept=choice.count(Fate.TRAIN, Fate.HELDOUT, Fate.BOTH),
        )
        return choice, self._cut(blocks, choice)

    def _cut(self, blocks: list[Block], choice: Choice) -> int:
        """The sentence at which the only document is divided (or the word, where a sentence has no end);
        0 where there are more documents."""
        if choice.split_by != "position":
            return 0
        place = int(np.flatnonzero(choice.fates == Fate.BOTH)[0])
        text = _record(blocks, place).text
        wanted = (1 - self.recipe.heldout) * len(text)
        places = sentence_starts(text)[1:]
        if not places and len(text) > _ENDLESS * self.recipe.rows.length:
            places = [text.rfind(" ", 0, int(wanted))]
        if not places or places == [-1]:
            raise UserError(
                f"{named(self.sources)} holds a single sentence, which cannot be split into a training "
                "and a held-out part. Give more text (--data.root)."
            )
        cut = min(places, key=lambda at: abs(at - wanted))
        if text[:cut].strip() == text[cut:].strip():
            raise UserError(f"{named(self.sources)} repeats one text; give more (--data.root).")
        return cut

    def _tokenizer(self, shards: Shards, jobs: list[ShardTask]) -> Tokenizer:
        """The tokenizer that shards are made with, loaded or trained."""
        if shards.tokenizer.exists():
            return Tokenizer.load(shards.tokenizer)
        if self.recipe.tokenizer.path is not None:
            found = self.recipe.tokenizer.load()
        else:
            self.report("training the tokenizer", 0, 1)
            characters = sum(int(job.block.entries()["characters"].sum()) for job in jobs)
            texts = _Texts(jobs, every=-(-characters // _TRAINING_TEXT))
            found = self.recipe.tokenizer.train(texts)
            self.report("training the tokenizer", 1, 1)
        beside = shards.tokenizer.with_suffix(".unfinished")
        found.save(beside)
        beside.rename(shards.tokenizer)
        return Tokenizer.load(shards.tokenizer)

    def _write(
        self, shards: Shards, jobs: list[ShardTask], choice: Choice
    ) -> tuple[list[dict[str, Any]], np.ndarray]:
        """Write all shards; their summaries, and how often each id stands in the training rows."""
        total = choice.count(Fate.TRAIN, Fate.HELDOUT, Fate.BOTH)
        missing = [job for job in jobs if shards.summary(job.block.number) is None]
        done = total - sum(job.documents for job in missing)
        run = partial(_run, report=self.report) if len(jobs) == 1 else ShardTask.run
        for job, _ in spread(run, missing, workers=self.workers):
            done += job.documents
            self.report("tokenising", done, total)
        self.report("tokenising", total, total)
        return shards.gather(len(jobs))


@dataclass(frozen=True)
class _Texts:
    """Training texts, or every n-th of them, as often as they are asked for."""

    jobs: list[ShardTask]
    every: int

    def __iter__(self) -> Iterator[str]:
        for job in self.jobs:
            for text, split, id, _ in job.texts():
                if split == "train" and id % self.every == 0:
                    yield text.replace(PAIR, "\n\n")


def _classes(spool: Spool, tasks: Sequence[Task]) -> tuple[str, ...]:
    """Names of the classes of all documents: as numbers in order where all are whole numbers, else as texts."""
    found = {label for task in tasks for label in (spool.summary(task) or {}).get("labels", ())}
    numbers = all(label.removeprefix("-").isdecimal() for label in found)
    return tuple(sorted(found, key=lambda label: (int(label) if numbers else 0, label)))


def _run(job: ShardTask, *, report: Report) -> dict[str, Any]:
    return job.run(lambda done: report("tokenising", done, job.documents))


def _jobs(shards: Shards, blocks: list[Block], choice: Choice, cut: int) -> list[ShardTask]:
    ends = list(accumulate(block.documents for block in blocks))
    fates = np.split(choice.fates.astype(np.uint8), ends[:-1])
    return [ShardTask(shards, *each, cut) for each in zip(blocks, fates, strict=True)]


def _record(blocks: list[Block], place: int) -> Any:
    """The document at a place among all."""
    for block in blocks:
        if place < block.documents:
            return next(islice(block.records(), place, None))
        place -= block.documents
    raise IndexError(place)


def _silent(stage: str, done: int, total: int) -> None:
    """Report nothing."""
