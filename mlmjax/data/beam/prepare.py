"""Preparation on Apache Beam, for text that outgrows one machine: the same rows, in the same shards.

Any runner of Beam does it: ``DirectRunner`` in this process, which holds all text in memory and is meant
for trying; Dataflow, Flink and Spark on many machines.
"""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mlmjax.core.errors import UserError
from mlmjax.data.beam.runner import Job
from mlmjax.data.documents import Source
from mlmjax.data.preparation import cache, destination
from mlmjax.data.preparation.destination import Folder
from mlmjax.data.preparation.manifest import count, described, named
from mlmjax.data.preparation.prepare import Recipe
from mlmjax.data.preparation.progress import Report
from mlmjax.data.preparation.reading import Tally
from mlmjax.data.tokenizer import Tokenizer

_COUNTS = "token_counts.npy"


@dataclass(frozen=True)
class Placed:
    """Rows that were prepared, which need not be readable from here.

    Attributes:
        folder: a path or a URL.
        manifest: versions, settings, and counts of documents, rows and tokens.
    """

    folder: str
    manifest: dict[str, Any]


def prepare(
    sources: Sequence[Source],
    recipe: Recipe,
    *,
    runner: str,
    options: Sequence[str] = (),
    folder: str | None = None,
    report: Report | None = None,
) -> Placed:
    """Rows of some sources, from the cache or made now by Apache Beam.

    They are those of :func:`mlmjax.data.preparation.prepare.prepare`, byte for byte, and so is the folder.

    Args:
        sources: where documents come from; workers must reach them.
        recipe: what is made of them; the tokenizer must be there already.
        runner: which of Beam's runners does it.
        options: Beam's options, as on its command line.
        folder: the cache, which workers must reach: a path, or a URL that ``fsspec`` knows; by default
            the user's.
        report: called with the stage, what is done, and the total (0: unknown).

    Raises:
        UserError: Beam, the runner or an option is not there; a source cannot be read or gives no row; or
            the cache cannot be written.
    """
    if recipe.tokenizer.path is None:
        raise UserError(
            "With --runner the tokenizer must be there already (--data.tokenizer.path): prepare a "
            "sample of the text without --runner, and give the tokenizer.json of its folder."
        )
    if recipe.labels:
        raise UserError(
            "Rows with classes (--data.label-field) are not prepared with --runner: leave it away."
        )
    recipe.cleaning.check()
    job = Job.of(runner, options)
    identity = recipe.identity(sources)
    place = destination.find(folder, f"text-{identity['fingerprint']}")
    if place.local and job.elsewhere:
        raise UserError(
            f"The workers of {runner} do not see {place}: give --data.cache gs://bucket/folder."
        )
    if (manifest := destination.manifest(place)) is None:
        report = report or (lambda stage, done, total: None)
        with (
            destination.building(place, waiting=partial(report, cache.WAITING, 0, 0)) as work,
            cache.full_disk(str(place)),
        ):
            if work is not None:
                report(f"preparing on {runner}", 0, 0)
                content = {**identity, **_make(job, work, sources, recipe)}
                destination.finish(work, content)
                report(f"preparing on {runner}", 1, 1)
        manifest = destination.manifest(place)
        if manifest is None:
            raise UserError(f"{place} was changed while it was written; run the command again.")
    return Placed(str(place), manifest)


def _make(job: Job, work: Folder, sources: Sequence[Source], recipe: Recipe) -> dict[str, Any]:
    """Run the pipeline; what the manifest is to say."""
    from mlmjax.data.beam.graph import Graph
    from mlmjax.data.beam.steps import RESULT, TOKENIZER

    with tempfile.TemporaryDirectory() as inside:
        file = Path(inside, TOKENIZER)
        recipe.tokenizer.load().save(file)
        tokenizer = Tokenizer.load(file)
        work.put(file, TOKENIZER)
        job.run(Graph(sources, recipe.reading, recipe.rows, recipe.heldout, work))
        there = work.sizes()
        if RESULT not in there:
            raise UserError(_elsewhere(work))
        work.get(RESULT, Path(inside, RESULT))
        result = json.loads(Path(inside, RESULT).read_text(encoding="utf-8"))
        tally = _counted(result, sources, recipe)
        files = {name: size for _, _, sizes in result["shards"] for name, size in sizes.items()}
        if not files.items() <= there.items():
            raise UserError(_elsewhere(work))
        for name in there.keys() - files.keys() - {TOKENIZER, cache.LOCK}:
            work.remove(name)  # the result, and what workers left that were killed
        np.save(Path(inside, _COUNTS), np.array(result["frequency"], np.int64))
        work.put(Path(inside, _COUNTS), _COUNTS)
    of = [source for _, source, summary in result["tasks"] for _ in summary["blocks"]]
    return described(
        sources,
        recipe.rows,
        tally=tally,
        split_by=result["split_by"],
        tokenizer=tokenizer,
        shards=[(source, made) for source, (_, made, _) in zip(of, result["shards"], strict=True)],
    )


def _elsewhere(work: Folder) -> str:
    return (
        f"{work} lacks what the workers wrote, so they wrote elsewhere. Give a folder that all of them "
        "reach, such as --data.cache gs://bucket/folder."
    )


def _counted(result: dict[str, Any], sources: Sequence[Source], recipe: Recipe) -> Tally:
    """What became of all documents."""
    tally = Tally()
    for _, _, summary in result["tasks"]:
        tally.add(summary["counts"], summary["broken"])
    documents = sum(sum(summary["blocks"]) for _, _, summary in result["tasks"])
    different, kept = result["different"], result["kept"]
    looked = recipe.cleaning.near_duplicates is not None
    count(
        tally,
        sources,
        duplicates=documents - different,
        near_duplicates=different - kept if looked else None,
        kept=kept,
    )
    if kept == 1:
        raise UserError(
            f"{named(sources)} holds one document, which is split by position: prepare it without "
            "--runner, or give more (--data.root)."
        )
    return tally
