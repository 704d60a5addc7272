"""Text: where it comes from, how it is tokenised and laid out in rows."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Self

import jax
import jax.numpy as jnp
from pydantic import Field, model_validator

from mlmjax.core.errors import UserError
from mlmjax.core.vocabulary import Vocabulary
from mlmjax.data.base import Data
from mlmjax.data.documents import Source
from mlmjax.data.preparation import cache
from mlmjax.data.preparation.cleaning import Cleaning
from mlmjax.data.preparation.layout import SHORTEST
from mlmjax.data.preparation.prepare import Recipe, prepare
from mlmjax.data.preparation.progress import Report
from mlmjax.data.preparation.reading import OnError
from mlmjax.data.preparation.tokenising import Layout, RowSettings
from mlmjax.data.prepared import PreparedText
from mlmjax.data.samples import PACKAGES, PyDocs
from mlmjax.data.sources import Documents, Format, MixturePart, Name, TextSource
from mlmjax.data.tokenizer import TokenizerConfig
from mlmjax.data.tokenizer_training import SPECIAL

_FARTHEST = 1_000_000


class TextData(Data):
    """Rows of text; without a root, documentation that every install carries."""

    format: Format = "auto"
    """Of the files at ``root``; by default their endings tell."""
    field: str = "text"
    """What holds the text, where documents have fields (JSONL, Parquet, ArrayRecord, TFDS)."""
    id_field: Name | None = None
    """What holds a document's id, which must differ over all sources; by default there is none."""
    group_field: Name | None = None
    """What the split goes by, such as an author; by default each document with fields is by itself."""
    label_field: Name | None = None
    """What holds a document's class, for fine-tuning: batches then hold ``labels``. Needs the layout ``documents``.
    The sample's class is the package that it documents. By default no class is read."""
    pair_field: Name | None = None
    """What holds the second text, where documents are pairs of texts. Needs the layout ``documents``."""
    documents: Documents = "blank_lines"
    """What is a document in plain text: what stands between two or more blank lines, or one
    (``blank_line``), a ``line``, or a ``file``."""
    split: Name = "train"
    """Which split of a TFDS dataset is read; this is not the split for training."""
    mixture: tuple[MixturePart, ...] = ()
    """Several sources in place of ``root``, ``ROOT=WEIGHT`` each: how much of a batch is of it."""
    on_error: OnError = "stop"
    """At a document that cannot be read, stop, or skip and count it."""
    cleaning: Cleaning = Cleaning()
    """What is dropped, beside exact duplicates."""
    length: Annotated[int, Field(ge=8)] = 128
    """Tokens in a row, special ones included."""
    layout: Layout = "full"
    """``full``: consecutive sentences up to the length. ``pairs``: two texts for next-sentence
    prediction, the second drawn anew every epoch. ``packed``: several documents in a row that do not
    see each other. ``documents``: a document a row, cut where it is longer; what fine-tuning needs."""
    documents_per_row: Annotated[int, Field(ge=1, lt=2**16)] = 16
    """The most documents in a packed row, at least of three tokens each; masks cost so much more, and
    rows of very short documents are fuller."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """The tokenizer."""
    heldout: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Share of the groups (files or modules where there are several, else documents) that training does not see."""
    workers: Annotated[int, Field(ge=0)] = 0
    """Processes that prepare; 0 for one a core. What they make does not depend on it."""
    examples: tuple[str, ...] = ()
    """Sentences with a mask token that are filled when a run ends."""

    @model_validator(mode="after")
    def _one_kind_of_source(self) -> Self:
        if self.mixture and self.root is not None:
            raise ValueError("root and mixture are two ways to name the text: give one of them")
        for name in ("label_field", "pair_field"):
            asked = [self, *self.mixture]
            if self.layout != "documents" and any(getattr(each, name) for each in asked):
                raise ValueError(f"{name} needs rows of one document: set layout documents")
        if self.label_field is None and any(part.label_field for part in self.mixture):
            raise ValueError("set label_field, which a source of the mixture may then override")
        weights = [part.weight for part in self.mixture]
        if weights and max(weights) > _FARTHEST * min(weights):
            raise ValueError(
                f"the weights of the mixture reach from {min(weights):g} to {max(weights):g}: the largest "
                f"may be {_FARTHEST:,} times the smallest"
            )
        return self

    def sources(self) -> Sequence[Source]:
        """Where the documents come from.

        Raises:
            UserError: there is no text at a root.
        """
        if self.mixture:
            with self._named():
                return [self._like(part).open() for part in self.mixture]
        if self.root is None:
            return [PyDocs()]
        return [self._like(TextSource(root=self.root)).open()]

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the option that the user gave: a source does not know that it is one of several."""
        try:
            yield
        except UserError as error:
            option = "--data.mixture" if self.mixture else "--data.root"
            raise UserError(str(error).replace("--data.root", option)) from error

    def _like(self, source: TextSource) -> TextSource:
        """The source, read as this config says where it says nothing itself."""
        names = [name for name in TextSource.model_fields if name not in ("root", "weight")]
        return source.updated(
            **{n: getattr(self, n) for n in names if n not in source.model_fields_set}
        )

    @property
    def _documents(self) -> int:
        """The most documents in a row, where rows are packed."""
        most = min(self.documents_per_row, self.length // SHORTEST)
        return most if self.layout == "packed" else 0

    def recipe(self) -> Recipe:
        """What is made of the documents."""
        rows = RowSettings(self.length, self.layout, self._documents)
        labels = self.label_field is not None
        return Recipe(self.tokenizer, rows, self.heldout, self.cleaning, self.on_error, labels)

    def prepare(self, report: Report | None = None) -> PreparedText:
        """Rows, from the cache or made now; see :func:`mlmjax.data.preparation.prepare.prepare`."""
        with self._named():
            folder = prepare(
                self.sources(),
                self.recipe(),
                folder=cache.local(self.cache),
                workers=self.workers,
                report=report,
            )
        return PreparedText.open(folder, [part.weight for part in self.mixture] or None)

    def spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and types of a global batch, without any data; see ``pipeline.batches``."""
        row = (self.batch, self.length)
        shapes = {
            "tokens": (row, jnp.int32),
            "valid": (row, jnp.bool_),
            "word_starts": (row, jnp.bool_),
            "sentence_starts": (row, jnp.bool_),
            "segments": (row, jnp.int32),
            "frequency": (row, jnp.float32),
            "id": ((self.batch, 2), jnp.uint32),
            "epoch": ((self.batch,), jnp.int32),
        }
        if self.layout == "pairs":
            shapes["is_next"] = ((self.batch,), jnp.int32)
        if self._documents:
            shapes["documents"] = (row, jnp.int32)
            shapes["document_ids"] = ((self.batch, self._documents, 2), jnp.uint32)
        if self.label_field is not None:
            shapes["labels"] = ((self.batch,), jnp.int32)
        return {name: jax.ShapeDtypeStruct(*one) for name, one in shapes.items()}

    def like(self, other: Data, folder: Path) -> Self:
        if not isinstance(other, TextData):
            return super().like(other, folder)
        return self.updated(tokenizer=other.tokenizer.updated(path=str(folder / "tokenizer.json")))

    def abstract_classes(self) -> int | None:
        """Of the sample, the standard library and the packages beside it."""
        sample = self.root is None and not self.mixture
        return len(PACKAGES) + 1 if sample and self.label_field is not None else None

    def abstract_vocabulary(self) -> Vocabulary:
        """The vocabulary that a trained tokenizer of the asked size would have."""
        padding, unknown, start, separator, mask = special = range(len(SPECIAL))
        return Vocabulary(
            size=self.tokenizer.vocabulary,
            padding=padding,
            unknown=unknown,
            start=start,
            separator=separator,
            mask=mask,
            special=tuple(special),
        )
