"""Images to records, once: read, decode, check, split, remember.

Every image is decoded, so that a damaged one is found here and not in training. What a task writes is a function of
the source and the settings alone, and a task that is done is not done again. Which images are trained on and which
are held out is then decided over all of them; both sides are lists of places in the same files.
"""

import platform
from collections import Counter
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from mlmjax.core.errors import UserError
from mlmjax.data.image_sources.base import ImageSource
from mlmjax.data.preparation import cache
from mlmjax.data.preparation.choosing import held_out, repeats
from mlmjax.data.preparation.image_records import (
    SIDES,
    ImageRecipe,
    ImageTask,
    Records,
    check_channels,
)
from mlmjax.data.preparation.progress import Report
from mlmjax.data.preparation.reading import MOST, TASK, Tally, grouped
from mlmjax.data.preparation.workers import processes, spread, workers_alive

_LIBRARIES = ("mlmjax", "numpy", "pillow", "array_record")


def prepare_images(
    source: ImageSource,
    recipe: ImageRecipe,
    *,
    folder: Path | None = None,
    workers: int = 0,
    report: Report | None = None,
) -> Path:
    """Records of images, from the cache or made now; ``prepared_images.PreparedImages`` reads them.

    Args:
        source: where they come from.
        recipe: what is made of them.
        folder: the cache; by default the user's.
        workers: processes; 0 for one a core. The bytes that are written do not depend on it.
        report: called with the stage, what is done, and the total (0: unknown).

    Returns:
        The folder that holds them.

    Raises:
        UserError: the source cannot be read, or gives too few images, or the cache cannot be written.
    """
    report = report or _silent
    identity = recipe.identity(source)
    place = (folder or cache.default()) / f"images-{identity['fingerprint']}"
    if cache.manifest(place) is None:
        with (
            cache.full_disk(place.parent, "; the same command goes on with what is finished"),
            workers_alive(processes(workers)),
            cache.building(place, waiting=partial(report, cache.WAITING, 0, 0)) as work,
        ):
            if work is not None:
                made = _Job(source, recipe, work, processes(workers), report).run()
                cache.finish(work, {**identity, **made})
    return place


@dataclass(frozen=True)
class _Job:
    """One preparation, from a source to files in ``work``."""

    source: ImageSource
    recipe: ImageRecipe
    work: Path
    workers: int
    report: Report

    def run(self) -> dict[str, Any]:
        """Write everything but the manifest, and return what it is to say."""
        (self.work / "known").mkdir(exist_ok=True)
        records, tasks = Records(self.work, self.recipe), self._tasks()
        self._read(records, tasks)
        summaries = [records.summary(task.number) or {} for task in tasks]
        tally, channels = _added(summaries)
        if self.recipe.mixed == "refuse":
            check_channels(channels)
        if not sum(each["images"] for each in summaries):
            raise UserError(f"There is no image in {self.source}{_left_out(tally)} (--data.root).")
        tables = [records.entries(task.number) for task in tasks]
        entries, classes = np.concatenate(tables), self._classes(summaries)
        named = [_named(*each, classes) for each in zip(tables, summaries, strict=True)]
        labels = np.concatenate(named)
        chosen, split_by = self._split(entries, tally)
        for side, places in chosen.items():
            np.save(self.work / f"{side}.npy", places)
            if classes:
                np.save(self.work / f"{side}-labels.npy", labels[places])
        shards = []
        for task, each in zip(tasks, summaries, strict=True):
            if each["images"]:
                shards.append([task.number, each["images"]])
            else:
                records.path(task.number).unlink()
        smallest = [each["smallest"] for each in summaries if each["smallest"]]
        return {
            "versions": {"python": platform.python_version()} | {n: version(n) for n in _LIBRARIES},
            "sources": [str(self.source)],
            "images": {**tally.counts, "kept": sum(map(len, chosen.values()))},
            "ignored_files": self.source.ignored,
            "broken": tally.broken,
            "split_by": split_by,
            "classes": [str(name) for name in classes],
            "splits": {
                side: _described(entries[places], labels[places], len(classes))
                for side, places in chosen.items()
            },
            "modes": dict(sum((Counter(each["modes"]) for each in summaries), Counter())),
            "channels": {str(number): count for number, (count, _) in sorted(channels.items())},
            "smallest": {
                name: min(each[axis] for each in smallest)
                for axis, name in enumerate(("height", "width"))
            },
            "shards": shards,
        }

    def _tasks(self) -> list[ImageTask]:
        """All parts as tasks, whatever the number of processes that will do them."""
        parts = self.source.parts()
        least = max(TASK, sum(part.size for part in parts) // MOST)
        return [ImageTask(number, some) for number, some in enumerate(grouped(parts, least))]

    def _read(self, records: Records, tasks: list[ImageTask]) -> None:
        total = sum(task.size for task in tasks)
        missing = [task for task in tasks if records.summary(task.number) is None]
        done = total - sum(task.size for task in missing)
        # Of the only task, which is done in this process, the images are told as they are read.
        alone = (lambda read: self.report("reading", read, 0)) if len(tasks) == 1 else None
        fill = partial(records.fill, progress=alone)
        for task, _ in spread(fill, missing, workers=self.workers):
            done += task.size
            self.report("reading", done, total)
        self.report("reading", total, total)

    def _classes(self, summaries: list[dict[str, Any]]) -> list[str | int]:
        """The classes in order: as the source names them, or as they are found in the images."""
        found = {label for each in summaries for label in each["labels"]}
        if not found:
            return []
        if self.source.classes:
            last = max((label for label in found if isinstance(label, int)), default=-1)
            if last >= len(self.source.classes):
                raise UserError(
                    f"{self.source} has the label {last}, but names {len(self.source.classes)} classes only "
                    "(--data.label-field)."
                )
            return list(self.source.classes)
        return sorted(found, key=lambda label: (isinstance(label, str), label))

    def _split(self, entries: np.ndarray, tally: Tally) -> tuple[dict[str, np.ndarray], str]:
        """The places of the images of each side; what the split goes by."""
        copies = repeats(entries["hash"])
        tally.counts["copies"] = int(copies.sum())
        sides, split_by = entries["side"], "source"
        if (sides < 0).all():
            units, split_by = entries["hash"][:, 0], "content"
            sides = held_out(units, self.recipe.heldout).astype(np.int8)
        held = sides == 1
        both = np.isin(entries["hash"][:, 0], entries["hash"][held, 0]) & ~held
        tally.counts["in_both"] = int(both.sum())
        chosen = {
            "train": np.flatnonzero(~held & ~both),
            "heldout": np.flatnonzero(held),
        }
        for side, part in zip(SIDES, ("train on", "hold out"), strict=True):
            if not len(chosen[side]):
                raise UserError(
                    f"There is no image to {part} in {self.source}{_left_out(tally)}: give more different "
                    "images (--data.root)."
                )
        return chosen, split_by


def _added(summaries: list[dict[str, Any]]) -> tuple[Tally, dict[int, tuple[int, str]]]:
    """What all tasks counted; how many images have each number of channels, and where the first lies."""
    tally = Tally()
    channels: dict[int, tuple[int, str]] = {}
    for each in summaries:
        tally.add(each["counts"], each["broken"])
        for name, (count, place) in each["channels"].items():
            before, first = channels.get(int(name), (0, place))
            channels[int(name)] = before + count, first
    return tally, channels


def _named(table: np.ndarray, summary: dict[str, Any], classes: list[str | int]) -> np.ndarray:
    """A task's labels as places among all classes; -1 where there is none."""
    places = {name: place for place, name in enumerate(classes)}
    found = [
        # A number is a place already where classes have names, and below 0 stands for none.
        places[label] if label in places else max(label, -1)
        for label in summary["labels"]
    ]
    return np.array([*found, -1], np.int32)[table["label"]]


def _described(entries: np.ndarray, labels: np.ndarray, classes: int) -> dict[str, Any]:
    """What the manifest says of a side."""
    height, width = entries["height"], entries["width"]
    return {
        "images": len(entries),
        "labelled": int((labels >= 0).sum()),
        "classes": np.bincount(labels[labels >= 0], minlength=classes).tolist(),
        "height": [int(f(height)) for f in (np.min, np.median, np.max)],
        "width": [int(f(width)) for f in (np.min, np.median, np.max)],
    }


def _left_out(tally: Tally) -> str:
    """What was left out, in brackets; nothing if nothing was."""
    names = {
        "broken": "cannot be read",
        "small": "are too small",
        "in_both": "are held out as well",
    }
    said = ", ".join(f"{tally.counts[k]} {name}" for k, name in names.items() if tally.counts[k])
    return f" (of {tally.counts['read']} images: {said})" if said else ""


def _silent(stage: str, done: int, total: int) -> None:
    """Report nothing."""
