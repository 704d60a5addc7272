"""Random words of a few positions, without drawing those of all the others."""

import jax
import jax.numpy as jnp
from jax.extend.random import threefry_2x32
from jaxtyping import Array, Int, Key, UInt32


def bits_at(key: Key[Array, ""], index: Int[Array, " places"]) -> UInt32[Array, " places"]:
    """``jax.random.bits(key, (count,))[index]`` for any larger count, at the price of the places alone.

    Threefry (Salmon et al. 2011) gives word i by enciphering the number i, so no word needs another.

    Args:
        key: a Threefry key, as all that derive from ``prng.root``.
        index: which words, from 0 on.
    """
    words = index.astype(jnp.uint32)
    enciphered = threefry_2x32(
        jax.random.key_data(key), jnp.concatenate([jnp.zeros_like(words), words])
    )
    high, low = jnp.split(enciphered, 2)
    # Without the barrier XLA copies the generator into each fusion that reads what it drew.
    return jax.lax.optimization_barrier(high ^ low)
