"""What the span boundary objective reads: the states on either side of a run (Joshi et al. 2020, section 3.2)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mlmjax.core.types import Mask
from mlmjax.corruption import runs


class Boundary(NamedTuple):
    """What each target is predicted from, which holds nothing of the target's own run.

    Attributes:
        left: the state before the run; zero where the row begins with it.
        right: the state after it; zero where the row ends with it.
        place: of the target within the run, counted from 0.
    """

    left: Float[Array, "batch capacity hidden"]
    right: Float[Array, "batch capacity hidden"]
    place: Int[Array, "batch capacity"]


def boundary(hidden: Float[Array, "batch length hidden"], mask: Mask) -> Boundary:
    """The boundaries of each target's run of neighbouring targets."""
    run, length = runs(mask), hidden.shape[1]

    def state(at: Int[Array, "batch capacity"]) -> Float[Array, "batch capacity hidden"]:
        found = jnp.take_along_axis(hidden, jnp.clip(at, 0, length - 1)[..., None], axis=1)
        return jnp.where(((at >= 0) & (at < length))[..., None], found, 0)

    return Boundary(state(run.start - 1), state(run.end + 1), mask.positions - run.start)
