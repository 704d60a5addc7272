"""Dropout as a function of its key."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key


def dropout(
    values: Float[Array, "*shape"], rate: float, *, key: Key[Array, ""] | None
) -> Float[Array, "*shape"]:
    """Zero each entry with probability ``rate`` and scale the others up (Srivastava et al. 2014).

    Without a key, or at rate 0, the values pass unchanged. The rate is rounded to a multiple of 1/65536, since
    half of the random bits do, and the scale is that of the rounded rate.
    """
    if key is None or rate == 0:
        return values
    threshold = round(rate * 65536)
    keep = jax.random.bits(key, values.shape, jnp.uint16) >= threshold
    return jnp.where(keep, values * (65536 / (65536 - threshold)), 0).astype(values.dtype)
