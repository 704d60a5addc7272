"""Randomness that is derived, never carried: a key is a pure function of names and numbers.

There is one root seed. ``stream(root(seed), "mask")`` names a use; folding in the epoch and the global
example id gives the key of one example. No key is drawn from a stateful generator and none is saved,
so a mask is the same on any number of hosts, before and after a restart, in training and in an audit,
and another use of randomness does not move it.
"""

import zlib

import jax
import jax.numpy as jnp
from jaxtyping import Array, Integer, Key, UInt32


def root(seed: int) -> Key[Array, ""]:
    """The key that all others of a run derive from. The generator is fixed: Threefry."""
    return jax.random.key(seed, impl="threefry2x32")


def stream(key: Key[Array, ""], name: str) -> Key[Array, ""]:
    """The key of a named use of randomness, such as ``"mask"`` or ``"dropout"``."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def fold(key: Key[Array, ""], *numbers: Integer[Array, ""] | int) -> Key[Array, ""]:
    """Fold numbers into a key, one after the other."""
    for number in numbers:
        key = jax.random.fold_in(key, number)
    return key


def per_example(
    key: Key[Array, ""], epoch: Integer[Array, " batch"], example: UInt32[Array, "batch 2"]
) -> Key[Array, " batch"]:
    """One key an example, from (key, epoch, example id); the id is two words, high and low."""
    words = jnp.concatenate([epoch.astype(jnp.uint32)[:, None], example], axis=1)
    return jax.vmap(lambda row: fold(key, *row))(words)
