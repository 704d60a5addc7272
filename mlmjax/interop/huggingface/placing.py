"""Tensors of files as parameters on devices: each process reads what its devices hold, and that once."""

import math
from collections.abc import Callable
from concurrent.futures import Executor

import jax
import numpy as np
from jax.sharding import Sharding

from mlmjax.interop.huggingface.mapping import Row

_ALIGNED = 64
"""Where an array must begin, in bytes, for a CPU's device to take it over as it is."""


def placed(
    row: Row,
    read: Callable[[str], np.ndarray],
    shape: tuple[int, ...],
    sharding: Sharding,
    *,
    pool: Executor,
) -> jax.Array:
    """A parameter in float32, laid out as the sharding says.

    Memory is made for the shards of this process alone; on a CPU they are the parameter.

    Args:
        row: what the parameter is made of.
        read: gives a tensor by name, best mapped into memory.
        shape: of the whole parameter.
        sharding: where it goes.
        pool: fills the layers of a stacked parameter beside each other.
    """
    bounds = {
        device: tuple(cut.indices(size)[:2] for cut, size in zip(index or (), shape, strict=True))
        for device, index in sharding.addressable_devices_indices_map(shape).items()
    }
    # Devices that hold the same share the memory of it.
    pieces = {at: _empty(tuple(stop - start for start, stop in at)) for at in set(bounds.values())}
    tasks = row.fill(
        read, [(tuple(slice(*each) for each in at), piece) for at, piece in pieces.items()]
    )
    list(pool.map(lambda task: task(), tasks))
    shards = [jax.device_put(pieces[at], device) for device, at in bounds.items()]
    return jax.make_array_from_single_device_arrays(shape, sharding, shards)


def _empty(shape: tuple[int, ...]) -> np.ndarray:
    """Memory for float32 values, aligned for a device."""
    size = math.prod(shape) * 4
    memory = np.empty(size + _ALIGNED, np.uint8)
    start = -memory.ctypes.data % _ALIGNED
    return memory[start : start + size].view(np.float32).reshape(shape)
