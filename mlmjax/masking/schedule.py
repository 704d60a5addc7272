"""Ratios that change over the steps of a run, such as from low to high to steady the start."""

from abc import abstractmethod
from itertools import pairwise
from typing import Annotated, Self

import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import Field, model_validator

from mlmjax.core.config import Config
from mlmjax.masking.base import Step


class RatioSchedule(Config):
    """The ratio of a selection as a function of the step."""

    @abstractmethod
    def at(self, step: Step, ratio: float) -> Float[Array, ""]:
        """The ratio in force.

        Args:
            step: the number of updates made so far; may be traced.
            ratio: the selection's own.
        """

    @abstractmethod
    def highest(self, ratio: float) -> float:
        """The highest ratio of all steps, for ``Selection.capacity``.

        Args:
            ratio: the selection's own.
        """

    @abstractmethod
    def lowest(self, ratio: float) -> float:
        """The lowest ratio of all steps, which leaves the most in sight.

        Args:
            ratio: the selection's own.
        """


class LinearRatio(RatioSchedule):
    """Linear from one ratio to another, up or down, and constant from then on."""

    start: Annotated[float, Field(gt=0, le=1)]
    """The ratio at step 0."""
    steps: Annotated[int, Field(gt=0)]
    """Updates after which the end is reached."""
    end: Annotated[float | None, Field(gt=0, le=1)] = None
    """The ratio from then on; by default the selection's own."""

    def at(self, step: Step, ratio: float) -> Float[Array, ""]:
        """The ratio in force after ``step`` updates, float32."""
        end = ratio if self.end is None else self.end
        progress = jnp.clip(jnp.asarray(step, jnp.float32) / self.steps, 0, 1)
        value = self.start + (end - self.start) * self.shape(progress)
        # Rounding must not lift the ratio above what the capacity was made for.
        return jnp.clip(value, min(self.start, end), max(self.start, end))

    def highest(self, ratio: float) -> float:
        """The larger of start and end."""
        return max(self.start, ratio if self.end is None else self.end)

    def lowest(self, ratio: float) -> float:
        """The smaller of start and end."""
        return min(self.start, ratio if self.end is None else self.end)

    def shape(self, progress: Float[Array, ""]) -> Float[Array, ""]:
        """The share of the way from start to end, given the share of the steps."""
        return progress


class CosineRatio(LinearRatio):
    """Half a cosine from one ratio to another: slow at both ends."""

    def shape(self, progress: Float[Array, ""]) -> Float[Array, ""]:
        """The share of the way from start to end, given the share of the steps."""
        return (1 - jnp.cos(jnp.pi * progress)) / 2


class StagedRatio(RatioSchedule):
    """One ratio after the other, such as 0.3 for the first thousand updates and 0.15 from then on."""

    stages: tuple[tuple[Annotated[int, Field(ge=0)], Annotated[float, Field(gt=0, le=1)]], ...]
    """The update at which each stage begins, ascending from 0, and its ratio: ``0 0.3 1000 0.15``."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        starts = [start for start, _ in self.stages]
        if not starts or starts[0] != 0:
            raise ValueError("the first stage has to begin at update 0")
        if any(late <= early for early, late in pairwise(starts)):
            raise ValueError(f"stages have to begin one after the other, not at {starts}")
        return self

    def at(self, step: Step, ratio: float) -> Float[Array, ""]:
        """The ratio of the stage that contains ``step``, float32."""
        del ratio
        starts, ratios = (jnp.asarray(values) for values in zip(*self.stages, strict=True))
        return ratios.astype(jnp.float32)[(starts <= step).sum() - 1]

    def highest(self, ratio: float) -> float:
        """The largest of all stages."""
        del ratio
        return max(ratio for _, ratio in self.stages)

    def lowest(self, ratio: float) -> float:
        """The smallest of all stages."""
        del ratio
        return min(ratio for _, ratio in self.stages)
