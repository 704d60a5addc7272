"""The mesh, and what lies where on it. One device or many, one process or many: the same code."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from pydantic import field_validator

from mlmjax.core.axes import partition
from mlmjax.core.config import Config
from mlmjax.core.errors import UserError

AnyMesh = Mesh | AbstractMesh
"""Devices that are there, or the shape of a mesh alone."""


class MeshConfig(Config):
    """Devices along each mesh axis; -1 takes all that are left, and at most one axis may be -1."""

    data: int = -1
    """Copies of the model, each with its share of the batch."""
    fsdp: int = 1
    """Shards of parameters and optimizer state; each also takes its share of the batch."""
    tensor: int = 1
    """Shards of heads, feed-forward layers and vocabulary."""

    @field_validator("data", "fsdp", "tensor")
    @classmethod
    def _size(cls, value: int) -> int:
        if value == 0 or value < -1:
            raise ValueError(
                "a mesh axis is a positive number of devices, or -1 for all that are left"
            )
        return value

    def sizes(self, devices: int) -> dict[str, int]:
        """The size of each axis on so many devices.

        Raises:
            UserError: the devices cannot be laid out so.
        """
        sizes = {"data": self.data, "fsdp": self.fsdp, "tensor": self.tensor}
        known = int(np.prod([size for size in sizes.values() if size > 0]))
        free = [name for name, size in sizes.items() if size == -1]
        if len(free) > 1:
            raise UserError(
                f"Only one mesh axis may be -1, not {' and '.join(free)}: set the others."
            )
        if free and devices % known == 0:
            sizes[free[0]] = devices // known
        if int(np.prod(list(sizes.values()))) != devices:
            shape = ", ".join(f"--mesh.{name} {size}" for name, size in sizes.items())
            raise UserError(
                f"The mesh ({shape}) cannot be laid over the {devices} devices that there are, "
                "each used once: their number must be the product of its sizes."
            )
        return sizes

    def make(self, devices: list[jax.Device] | None = None) -> Mesh:
        """The mesh over these devices; by default over all."""
        devices = jax.devices() if devices is None else devices
        sizes = self.sizes(len(devices))
        return jax.make_mesh(
            tuple(sizes.values()),
            tuple(sizes),
            axis_types=(AxisType.Auto,) * len(sizes),
            devices=devices,
        )


def batch_sharding(mesh: AnyMesh) -> NamedSharding:
    """Examples over ``data`` and ``fsdp``."""
    return NamedSharding(mesh, partition("batch"))


def local_places(sharding: NamedSharding, batch: int) -> np.ndarray:
    """The rows of a global batch that this process's devices hold, ascending; int64."""
    held = sharding.addressable_devices_indices_map((batch,)).values()
    return np.unique(np.concatenate([np.arange(batch)[index] for index in held]))


def replicated(mesh: AnyMesh) -> NamedSharding:
    """The whole value on every device."""
    return NamedSharding(mesh, PartitionSpec())


def check_batch(mesh: AnyMesh, batch: int, *, accumulate: int) -> None:
    """Refuse a batch that the mesh and the micro-batches do not divide.

    Raises:
        UserError: naming the options and the next batch that would do.
    """
    shards = mesh.shape["data"] * mesh.shape["fsdp"]
    unit = shards * accumulate
    if batch % unit:
        raise UserError(
            f"--data.batch {batch} is not divided by {shards} (mesh data x fsdp) x {accumulate} "
            f"(--run.accumulate): take a multiple of {unit}, such as {-(-batch // unit) * unit}."
        )


def parameter_shardings(mesh: AnyMesh, state: nnx.State) -> dict[str, Any]:
    """A sharding for each parameter, as nested dicts, from its logical axes.

    Raises:
        UserError: a mesh axis does not divide a parameter's axis.
    """
    shardings = {}
    for path, variable in nnx.to_flat_state(state):
        axes = variable.get_metadata("axes")
        spec = partition(*axes)
        _check_divides(mesh, variable.shape, spec, axes, name=".".join(map(str, path)))
        shardings[path] = NamedSharding(mesh, spec)
    return nnx.traversals.unflatten_mapping(shardings)


def _check_divides(
    mesh: AnyMesh,
    shape: tuple[int, ...],
    spec: PartitionSpec,
    axes: tuple[str | None, ...],
    *,
    name: str,
) -> None:
    for size, axis, target in zip(shape, axes, spec, strict=True):
        if target is not None and size % mesh.shape[target]:
            hint = " or set --model.vocabulary-multiple" if axis == "vocab" else ""
            raise UserError(
                f"--mesh.{target} {mesh.shape[target]} does not divide the axis '{axis}' of {size} "
                f"of the parameter {name}: choose another mesh{hint}."
            )


def shardings_like(
    tree: Any, parameters: Any, shardings: Mapping[str, Any], *, default: NamedSharding
) -> Any:
    """Shardings for a tree that holds copies of the parameters' tree, such as optimizer state.

    A leaf whose path ends with a parameter's path and that has its shape is sharded as it is.
    """
    known = {}
    flat, _ = jax.tree_util.tree_flatten_with_path(parameters)
    for (path, leaf), sharding in zip(flat, jax.tree.leaves(shardings), strict=True):
        known[path] = (leaf.shape, sharding)

    def of(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        for start in range(len(path)):
            shape, sharding = known.get(path[start:], (None, default))
            if shape == leaf.shape:
                return sharding
        return default

    return jax.tree_util.tree_map_with_path(of, tree)
