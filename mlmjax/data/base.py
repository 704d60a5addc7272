"""What the data of every modality has in common."""

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol, Self, runtime_checkable

import jax
import numpy as np
from pydantic import Field

from mlmjax.core.config import Config
from mlmjax.core.errors import UserError
from mlmjax.core.vocabulary import Vocabulary
from mlmjax.data.preparation.progress import Report

Batches = Generator[dict[str, np.ndarray], None, None]
"""Global batches, or a process's rows of them, as arrays by name; closing it ends its threads."""

Places = Sequence[int] | np.ndarray | None
"""The rows of a global batch that are wanted, ascending; None is all."""


class Data(Config):
    """Where examples come from and how many make a batch."""

    root: Annotated[str, Field(min_length=1)] | None = None
    """A file, a folder or a pattern; none means the sample that every install carries."""
    batch: Annotated[int, Field(gt=0)] = 32
    """Rows in a global batch, over all hosts."""
    threads: Annotated[int, Field(ge=1)] = 4
    """Threads that read batches ahead."""
    cache: str | None = None
    """Folder of prepared rows; by default ``mlmjax`` in the user's cache folder (XDG)."""

    def spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and types of one global batch, by name, without any data."""
        raise TypeError(f"{type(self).__name__} does not say what its batches are: define spec()")

    def prepare(self, report: Report | None = None) -> "Prepared":
        """The examples, made ready for random access; from the cache where they are there.

        Raises:
            UserError: there is nothing at ``root``, or it cannot be read.
        """
        raise TypeError(f"{type(self).__name__} does not say how it is read: define prepare()")

    def abstract_vocabulary(self) -> Vocabulary | None:
        """The vocabulary to expect before any data is read; None where examples are not tokens."""
        return None

    def abstract_classes(self) -> int | None:
        """The number of classes to expect before any data is read; None where it is not known, or where batches
        have no labels."""
        return None

    def like(self, other: "Data", folder: Path) -> Self:
        """The same data, shown as a model that was trained on other data reads it.

        Args:
            other: the data of that model's run.
            folder: of that run; its tokenizer is there.

        Raises:
            UserError: the other is of another kind.
        """
        raise UserError(f"{type(self).__name__} cannot be shown like {type(other).__name__}.")

    def resized(self, image: tuple[int, int]) -> Self:
        """The same data, its images shown in another height and width.

        Raises:
            UserError: it holds no images.
        """
        raise UserError(f"{type(self).__name__} holds no images: leave the size away.")


@runtime_checkable
class Prepared(Protocol):
    """Examples made ready: a global batch is a pure function of the seed and the step."""

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What was read and made, with a ``fingerprint``; JSON."""

    @property
    def vocabulary(self) -> Vocabulary | None:
        """Of the tokenizer, where examples are tokens."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; a label in a batch is a place among them. Empty where examples have none."""

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
        """Training batches from a step on, up to another."""

    def heldout_batches(
        self, *, seed: int, batch: int, threads: int, places: Places = None
    ) -> Batches:
        """Every held-out example once; the last batch is filled up with empty ones."""

    def save(self, folder: Path) -> None:
        """Write into a run folder what is needed to use its model, such as the tokenizer."""
