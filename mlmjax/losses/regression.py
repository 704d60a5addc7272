"""Squared errors of patches, each by itself; denominators are those of tokens."""

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

Reduce = Literal["mean", "sum"]
"""Over the numbers of a patch."""


def patch_error(
    prediction: Float[Array, "*batch K size"],
    target: Float[Array, "*batch K size"],
    *,
    reduce: Reduce,
) -> Float[Array, "*batch K"]:
    """Squared error of each patch, in float32 (He et al. 2022, section 3: the mean).

    Args:
        prediction: of each patch.
        target: what should have been predicted.
        reduce: the ``mean`` over a patch's numbers, or their ``sum``, as many times larger as there are.
    """
    squared = jnp.square(prediction.astype(jnp.float32) - target.astype(jnp.float32))
    return squared.mean(axis=-1) if reduce == "mean" else squared.sum(axis=-1)
