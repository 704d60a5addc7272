"""What the training loop asks of an objective."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import jax

from mlmjax.core.config import Config
from mlmjax.core.types import Batch, Context, Loss
from mlmjax.core.vocabulary import Vocabulary
from mlmjax.models.base import ModelConfig

Spec = Mapping[str, jax.ShapeDtypeStruct]
"""Shapes and types of one global batch, by name."""


class Work(NamedTuple):
    """What one training step does.

    Attributes:
        flops: floating-point operations that the model needs, forward and backward, without
            recomputation; a multiply-add counts 2.
        unit: what throughput counts, such as ``tokens``.
        units: how many of them a step reads.
    """

    flops: float
    unit: str
    units: int


class Objective(Config):
    """Base class: composes mask, corruption, visibility, target and loss into one pure function."""

    def __call__(self, model: Any, batch: Batch, context: Context) -> Loss:
        """The loss of a model on a batch."""
        raise TypeError(
            f"{type(self).__name__} has no loss: define __call__(model, batch, context)"
        )

    def fitted(self, vocabulary: Vocabulary | None) -> Self:
        """The objective with what it takes from the data filled in."""
        return self

    def check(self, model: ModelConfig, spec: Spec) -> None:
        """Refuse a model or data that do not go with the objective.

        Raises:
            UserError: naming the option to change.
        """

    def work(self, model: ModelConfig, spec: Spec) -> Work:
        """What one training step costs and reads."""
        raise TypeError(f"{type(self).__name__} does not count its work: define work(model, spec)")

    def describe(self) -> dict[str, Any]:
        """The five choices, for the record of a run: mask, corruption, visibility, target, loss."""
        return {"objective": self.model_dump(mode="json", serialize_as_any=True)}
