"""Learning rates over a run: a linear warm-up, then a decay."""

from abc import abstractmethod
from typing import Annotated, Literal

import jax.numpy as jnp
import optax
from jaxtyping import Array
from pydantic import Field, field_validator, model_validator

from mlmjax.core.config import Config
from mlmjax.core.errors import UserError

Decay = Literal["linear", "cosine", "rsqrt", "constant"]


def warmup_schedule(
    peak: float, steps: int, *, warmup: int, decay: Decay = "linear", end: float = 0.0
) -> optax.Schedule:
    """The learning rate at each step: 0 to ``peak`` over ``warmup`` steps, then a decay.

    ``linear`` and ``cosine`` (Loshchilov and Hutter 2017, "SGDR", equation 5) reach ``end * peak``
    at ``steps``. ``rsqrt`` is ``peak * sqrt(warmup / step)`` (Vaswani et al. 2017, section 5.3), at
    least ``end * peak``, and does not depend on ``steps``. ``constant`` stays at ``peak``.

    As published for BERT, the first update, at step 0, has rate 0 where there is a warm-up. BERT's
    own code differs at the end of the warm-up, where it jumps from ``peak`` down to the line from
    (0, ``peak``) to (``steps``, 0); here that line starts at the end of the warm-up.

    Args:
        peak: the highest rate.
        steps: the updates of the whole run.
        warmup: the updates before the peak.
        decay: what follows.
        end: the lowest rate of the decay, as a share of ``peak``.

    Returns:
        A function of the step, traced or not, that gives a float32 scalar.

    Raises:
        UserError: the warm-up is longer than the run.
    """
    if not 0 <= warmup <= steps:
        raise UserError(
            f"The learning rate's warmup is {warmup} steps, but the run has {steps}: "
            "make it shorter, or give it as a share of the run, such as 0.1."
        )
    rest = max(steps - warmup, 1)
    reference = max(warmup, 1)

    def rsqrt(step: Array) -> Array:
        return peak * jnp.maximum(jnp.sqrt(reference / (reference + step)), end)

    decays: dict[Decay, optax.Schedule] = {
        "linear": optax.linear_schedule(peak, end * peak, rest),
        "cosine": optax.cosine_decay_schedule(peak, rest, alpha=end),
        "rsqrt": rsqrt,
        "constant": optax.constant_schedule(peak),
    }
    rise = optax.linear_schedule(0.0, peak, reference)
    joined = optax.join_schedules([rise, decays[decay]], [warmup])
    return lambda step: jnp.asarray(joined(jnp.asarray(step)), jnp.float32)


class Schedule(Config):
    """Base class of learning-rate schedules."""

    @abstractmethod
    def build(self, steps: int) -> optax.Schedule:
        """The learning rate as a function of the step, in a run of that many steps."""


class WarmupSchedule(Schedule):
    """A linear warm-up, then a decay; see :func:`warmup_schedule`. The defaults are BERT's."""

    peak: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-4
    """The highest learning rate."""
    warmup: int | float = 0.01
    """Updates before the peak: a whole number of steps, or a share of the run below 1."""
    decay: Decay = "linear"
    """What follows the warm-up."""
    end: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The lowest rate of the decay, as a share of the peak."""

    @field_validator("warmup")
    @classmethod
    def _steps_or_share(cls, warmup: int | float) -> int | float:
        if warmup < 0 or (isinstance(warmup, float) and not warmup < 1):
            raise ValueError(
                "warmup is a number of steps (0, 1, 2, ...) or a share (0.0 to below 1.0)"
            )
        return warmup

    @model_validator(mode="after")
    def _constant_has_no_end(self) -> "WarmupSchedule":
        if self.decay == "constant" and self.end not in (0, 1):
            raise ValueError("end has no meaning with decay 'constant': leave it out")
        return self

    def build(self, steps: int) -> optax.Schedule:
        """The schedule of a run of that many steps.

        Raises:
            UserError: the warm-up is longer than the run.
        """
        warmup = self.warmup if isinstance(self.warmup, int) else round(self.warmup * steps)
        return warmup_schedule(self.peak, steps, warmup=warmup, decay=self.decay, end=self.end)
