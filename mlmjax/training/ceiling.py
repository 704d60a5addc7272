"""What devices can multiply at most, measured: the ceiling of any step's rate."""

import time
from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Key

SIZES = (512, 1024, 2048, 4096, 8192, 16384)
"""Rows and columns of the square matrices that are tried."""

_REPEATS = 4
_TURNS = 3
_LONGEST = 0.2


def product_rate(mesh: Mesh, dtype: str) -> float:
    """Floating-point operations a second of the fastest matrix product, of all devices together.

    Every device multiplies matrices of its own at the same time as the others, so devices that share cores or a
    power limit share them here too. Larger matrices are tried until a product takes long; the fastest of all
    counts. A multiply-add is 2 operations.

    Args:
        mesh: the devices.
        dtype: of the matrices; products are taken with JAX's default precision, as a model's are.
    """
    return max(_rates(mesh, dtype))


def _rates(mesh: Mesh, dtype: str) -> Iterator[float]:
    own = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    multiply = jax.jit(jnp.matmul, out_shardings=own)
    for size in SIZES:
        draw = jax.jit(partial(_matrices, mesh.size, size, dtype), out_shardings=own)
        left, right = draw(jax.random.key(0)), draw(jax.random.key(1))
        jax.block_until_ready(multiply(left, right))
        seconds = min(_seconds(multiply, left, right) for _ in range(_REPEATS))
        yield 2.0 * mesh.size * size**3 / seconds
        if 8 * seconds > _LONGEST:
            return


def _seconds(multiply: jax.stages.Wrapped, left: Array, right: Array) -> float:
    """Of one product among several that follow each other, so that handing them over costs nothing."""
    start = time.perf_counter()
    for _ in range(_TURNS):
        left = multiply(left, right)
    jax.block_until_ready(left)
    return (time.perf_counter() - start) / _TURNS


def _matrices(
    count: int, size: int, dtype: str, key: Key[Array, ""]
) -> Float[Array, "count size size"]:
    """Random ones, since zeros need less power; of that deviation a product's values are as large."""
    return jax.random.normal(key, (count, size, size), dtype) * size**-0.5
