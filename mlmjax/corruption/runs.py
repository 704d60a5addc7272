"""Runs: neighbouring positions that are all selected."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from mlmjax.core.types import Mask


class Runs(NamedTuple):
    """The run in which each place of a mask lies. An unused place is a run of its own.

    Attributes:
        start: the first position of the run.
        end: the last one.
    """

    start: Int[Array, "*batch capacity"]
    end: Int[Array, "*batch capacity"]


def runs(mask: Mask) -> Runs:
    """Where the run of each selected position starts and ends; spans that touch are one run."""
    position, used = mask.positions, mask.weight > 0
    joined = used[..., 1:] & used[..., :-1] & (jnp.diff(position, axis=-1) == 1)
    edge = jnp.zeros((*joined.shape[:-1], 1), bool)
    place, axis = jnp.arange(position.shape[-1], dtype=position.dtype), position.ndim - 1
    begins = ~jnp.concatenate([edge, joined], axis=-1)
    ends = ~jnp.concatenate([joined, edge], axis=-1)
    first = jax.lax.cummax(jnp.where(begins, place, 0), axis=axis)
    last = jax.lax.cummin(jnp.where(ends, place, place.size), axis=axis, reverse=True)
    # The positions of a run are as far apart as their places are.
    return Runs(position - (place - first), position + (last - place))
