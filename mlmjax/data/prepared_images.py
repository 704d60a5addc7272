"""Prepared images, opened: rows, batches, labels."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from mlmjax.core.errors import UserError
from mlmjax.data.base import Batches, Places
from mlmjax.data.image_rows import ImageRows, View
from mlmjax.data.pipeline import batches, heldout_batches
from mlmjax.data.preparation import cache
from mlmjax.data.preparation.image_records import ImageRecipe, Records

Split = Literal["train", "heldout"]


@dataclass(frozen=True)
class PreparedImages:
    """Images, as ``images.prepare_images`` made them.

    Attributes:
        folder: where they lie.
        manifest: versions, settings, and counts of images, classes, sizes and modes.
        fingerprint: hash of content and settings.
        train: images to train on, cropped and mirrored at random where that was asked for.
        heldout: images that training does not see, as they are.
        classes: names of the classes; empty where images have none.
        labelled: whether batches hold labels, and images without one are left out.
    """

    folder: Path
    manifest: dict[str, Any]
    fingerprint: str
    train: ImageRows
    heldout: ImageRows
    classes: tuple[str, ...]
    labelled: bool = False

    @classmethod
    def open(cls, folder: Path, recipe: ImageRecipe, *, labels: bool = False) -> "PreparedImages":
        """The images in a folder.

        Args:
            folder: the folder.
            recipe: what they were made with.
            labels: whether batches are to hold labels; then images without one are left out.

        Raises:
            UserError: the folder is not complete, or labels are asked for and a side has none.
        """
        manifest = cache.manifest(folder)
        if manifest is None:
            raise UserError(f"{folder} was changed while it was written; run the command again.")
        records = Records(folder, recipe)

        def rows(side: str, view: View) -> ImageRows:
            chosen, found = np.load(folder / f"{side}.npy"), None
            if labels:
                found = _labels(folder, side, manifest)
                chosen, found = chosen[found >= 0], found[found >= 0]
            return ImageRows(
                [records.path(number) for number, _ in manifest["shards"]],
                [images for _, images in manifest["shards"]],
                chosen=chosen,
                view=view,
                fitted=recipe.fitted,
                labels=found,
            )

        return cls(
            folder,
            manifest,
            manifest["fingerprint"],
            rows("train", recipe.view),
            rows("heldout", _still(recipe.view)),
            tuple(manifest["classes"]),
            labels,
        )

    @property
    def vocabulary(self) -> None:
        """Images have none."""
        return

    def batches(
        self,
        *,
        seed: int,
        batch: int,
        start: int,
        stop: int,
        threads: int,
        places: Places = None,
    ) -> Batches:
        """Training batches; see :func:`mlmjax.data.pipeline.batches`."""
        return batches(
            self.train,
            seed=seed,
            batch=batch,
            start=start,
            stop=stop,
            threads=threads,
            places=places,
            weights=(1.0,),
        )

    def heldout_batches(
        self, *, seed: int, batch: int, threads: int, places: Places = None
    ) -> Batches:
        """Held-out batches; see :func:`mlmjax.data.pipeline.heldout_batches`."""
        return heldout_batches(self.heldout, seed=seed, batch=batch, threads=threads, places=places)

    def examples(self, split: Split, *, batch: int) -> Iterator[dict[str, np.ndarray]]:
        """Every image of a split once, in order, none cropped or mirrored at random, all on this process.

        Args:
            split: which.
            batch: images in a batch; the last may have fewer.

        Returns:
            Batches as in training.
        """
        rows = self._rows(split).shown(_still(self.train.view))
        for first in range(0, len(rows), batch):
            index = np.arange(first, min(first + batch, len(rows)))
            yield rows.assemble(index, np.zeros(len(index), np.int64), seed=0)

    def labels(self, split: Split) -> Int[np.ndarray, " images"] | None:
        """The class of each image of a split, in the order of :meth:`examples`, as a place in ``classes``; -1
        where it has none. None where no image has one."""
        if not self.classes:
            return None
        found = np.load(self.folder / f"{split}-labels.npy")
        return found[found >= 0] if self.labelled else found

    def check_patch(self, patch: tuple[int, int]) -> None:
        """See whether every image is at least as large as a patch.

        Raises:
            UserError: one is not; names it.
        """
        smallest = self.manifest["smallest"]
        for axis, least in zip(("height", "width"), patch, strict=True):
            size, place = smallest[axis]
            if size < least:
                sizes = f"{patch[0]} {patch[1]}"
                raise UserError(
                    f"{place} has a {axis} of {size} pixels, and a patch one of {least} "
                    "(--model.encoder.patch): leave such images out with --data.smallest "
                    f"{sizes} --data.on-error skip, or choose smaller patches."
                )

    def save(self, folder: Path) -> None:
        """Nothing: a model of images needs no file beside its own."""

    def _rows(self, split: Split) -> ImageRows:
        return self.train if split == "train" else self.heldout


def _labels(folder: Path, side: str, manifest: dict[str, Any]) -> Int[np.ndarray, " images"]:
    """The class of each image of a side.

    Raises:
        UserError: none has one.
    """
    if not manifest["classes"] or not manifest["splits"][side]["labelled"]:
        which = {"train": "training", "heldout": "held-out"}[side]
        raise UserError(
            f"No {which} image of {manifest['sources'][0]} has a label, and --data.labels asks for them: give a "
            "folder for each class, or the field that holds it (--data.label-field)."
        )
    return np.load(folder / f"{side}-labels.npy")


def _still(view: View) -> View:
    """The view without what is random."""
    return replace(view, crop=None, flip=False)
