"""Prepared text, opened: rows, batches, tokenizer."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlmjax.core.errors import UserError
from mlmjax.core.vocabulary import Vocabulary
from mlmjax.data.base import Batches, Places
from mlmjax.data.pipeline import batches, heldout_batches
from mlmjax.data.preparation import cache
from mlmjax.data.preparation.shards import Shards
from mlmjax.data.preparation.tokenising import RowSettings
from mlmjax.data.rows import TextRows
from mlmjax.data.tokenizer import Tokenizer


@dataclass(frozen=True)
class PreparedText:
    """Rows of text, as ``prepare.prepare`` made them.

    Attributes:
        folder: where it lies.
        manifest: versions, settings, and counts of documents, rows and tokens.
        fingerprint: hash of content, tokenizer and settings.
        tokenizer: the tokenizer that was loaded or trained.
        train: rows to train on.
        heldout: rows of text that training does not see.
        token_counts: how often each id occurs in the training rows; 0 for special ones.
        weights: how much of a batch each source makes up, in relation to the others.
        classes: names of the documents' classes; empty where these were not asked for.
    """

    folder: Path
    manifest: dict[str, Any]
    fingerprint: str
    tokenizer: Tokenizer
    train: TextRows
    heldout: TextRows
    token_counts: np.ndarray
    weights: tuple[float, ...]
    classes: tuple[str, ...] = ()

    @classmethod
    def open(cls, folder: Path, weights: Sequence[float] | None = None) -> "PreparedText":
        """The rows in a folder.

        Args:
            folder: the folder.
            weights: how much of a batch each source makes up; by default their sizes decide.

        Raises:
            UserError: the folder is not complete.
        """
        manifest = cache.manifest(folder)
        if manifest is None:
            raise UserError(f"{folder} was changed while it was written; run the command again.")
        found = Tokenizer.load(folder / "tokenizer.json")
        settings = RowSettings(**{name: manifest["settings"][name] for name in RowSettings.names()})
        counts = np.load(folder / "token_counts.npy")
        shards, classes = Shards(folder, settings), tuple(manifest.get("classes", ()))
        frequency = (counts / max(counts.sum(), 1)).astype(np.float32)
        sources = [shard["source"] for shard in manifest["shards"]]

        def rows(split: str) -> TextRows:
            sizes = [shard[split] for shard in manifest["shards"]]
            there = [number for number, size in enumerate(sizes) if size]
            return TextRows(
                [shards.path(split, number) for number in there],
                [sizes[number] for number in there],
                length=settings.length,
                padding=found.vocabulary.padding,
                frequency=frequency,
                pairs=settings.layout == "pairs",
                documents=settings.documents,
                labelled=settings.layout == "documents",
                labels=bool(classes),
                streams=np.bincount(sources, sizes, len(manifest["sources"])).astype(int).tolist(),
            )

        train, heldout = rows("train"), rows("heldout")
        for source, (begin, end) in zip(manifest["sources"], train.streams, strict=True):
            if weights and begin == end:
                raise UserError(
                    f"{source} gives no training row of its own, so it cannot have its weight "
                    "(--data.mixture). It is empty, repeats what came before, or is of one group, such as a "
                    "file, that is held out: give more text or files, or leave it out."
                )
        shares = tuple(weights) if weights else tuple(float(e - b) for b, e in train.streams)
        return cls(
            folder,
            manifest,
            manifest["fingerprint"],
            found,
            train,
            heldout,
            counts,
            shares,
            classes,
        )

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokenizer's vocabulary."""
        return self.tokenizer.vocabulary

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
            weights=self.weights,
        )

    def heldout_batches(
        self, *, seed: int, batch: int, threads: int, places: Places = None
    ) -> Batches:
        """Held-out batches; see :func:`mlmjax.data.pipeline.heldout_batches`."""
        return heldout_batches(self.heldout, seed=seed, batch=batch, threads=threads, places=places)

    def save(self, folder: Path) -> None:
        """Write ``tokenizer.json``."""
        self.tokenizer.save(folder / "tokenizer.json")
