"""Logical axes of arrays, and the one table that says which axis of the mesh each is cut along.

Nothing else in the house names a mesh axis, but the options of the mesh itself. A function that has logical axes
to give says so with :func:`constrain`; where no mesh is set, as in a notebook, that does nothing.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Shaped

RULES: dict[str | None, str | tuple[str, ...] | None] = {
    "batch": ("data", "fsdp"),
    "embed": "fsdp",
    "mlp": "tensor",
    "heads": "tensor",
    "vocab": "tensor",
    "layers": None,
    None: None,
}


def partition(*axes: str | None) -> PartitionSpec:
    """The mesh axes of an array, from the logical names of its axes; None is an axis that is not cut."""
    return PartitionSpec(*(RULES[axis] for axis in axes))


def constrain(values: Shaped[Array, "..."], *axes: str | None) -> Shaped[Array, "..."]:
    """The same values, laid out on the current mesh as their logical axes say.

    Without it the partitioner may follow the parameters instead, and cut hidden states along their width: then
    each product is added up over the devices, where gathering one layer's parameters would do.

    Args:
        values: an array that is being traced.
        axes: the logical name of each of its axes.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return values
    return jax.lax.with_sharding_constraint(values, partition(*axes))


def platform() -> str | None:
    """Where what is being traced will run: ``cpu``, ``gpu`` or ``tpu``.

    That is what the current mesh is made of, which may be of another machine; without a mesh, this process's
    default. None where the mesh is a shape alone, so that what is traced is counted and never run.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return jax.default_backend()
    return None if mesh.abstract_device is None else mesh.abstract_device.platform


def per_shard(
    function: Callable[..., Array],
    *,
    inputs: tuple[tuple[str | None, ...], ...],
    output: tuple[str | None, ...],
) -> Callable[..., Array]:
    """The function, called on every device with what lies there; the partitioner cannot cut a kernel.

    Args:
        function: of arrays, or of trees of arrays of which the first axes are alike.
        inputs: the logical names of the axes of each argument.
        output: of its result.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return function
    specs: Any = tuple(partition(*axes) for axes in inputs)
    return jax.shard_map(function, in_specs=specs, out_specs=partition(*output), check_vma=False)
