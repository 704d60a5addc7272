"""Over how many the errors are averaged: all targets alike, or each sequence alike.

The two are different objectives (a sequence with few targets counts more in the second), so a run
names the one that it uses. Both are a sum and a weight, to be added over micro-batches, devices and
hosts and divided once; without any target both are 0, and so is the gradient.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Total:
    """A mean before its division.

    Attributes:
        sum: of the errors.
        weight: over how many; 0 where there is no target.
    """

    sum: Float[Array, ""]
    weight: Float[Array, ""]


def token_mean(losses: Float[Array, "batch K"], weight: Float[Array, "batch K"]) -> Total:
    """Every target counts alike: the sum over all targets, and their number.

    Args:
        losses: one a place; what stands where the weight is 0 does not matter, be it NaN.
        weight: 1 for a target, 0 for an unused place; numbers between count in proportion.
    """
    return Total(_weighted(losses, weight).sum(), weight.sum())


def sequence_mean(losses: Float[Array, "batch K"], weight: Float[Array, "batch K"]) -> Total:
    """Every sequence counts alike: the sum of the sequences' means, and the number of sequences.

    A sequence without a target has no mean and is not counted.

    Args:
        losses: one a place; what stands where the weight is 0 does not matter, be it NaN.
        weight: 1 for a target, 0 for an unused place; numbers between count in proportion.
    """
    targets = weight.sum(axis=1)
    counted = targets > 0
    means = _weighted(losses, weight).sum(axis=1) / jnp.where(counted, targets, 1.0)
    return Total(means.sum(), counted.astype(weight.dtype).sum())


def _weighted(
    losses: Float[Array, "batch K"], weight: Float[Array, "batch K"]
) -> Float[Array, "batch K"]:
    return jnp.where(weight > 0, losses, 0.0) * weight
