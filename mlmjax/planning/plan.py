"""An experiment's step, compiled for chips that are not here: does it fit, what does it cost, what bounds it."""

import math
import os
import re
from dataclasses import asdict, dataclass
from functools import cache
from itertools import combinations_with_replacement
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, SingleDeviceSharding

from mlmjax.core.errors import UserError
from mlmjax.experiment import Experiment
from mlmjax.planning.chips import Chip, Topology
from mlmjax.planning.products import product_flops, stacked_bytes
from mlmjax.planning.traffic import Moved, traffic
from mlmjax.training.speed import Allotted
from mlmjax.training.step import Program

DAY = 24 * 3600.0

Bound = Literal["compute", "memory", "interconnect"]


@dataclass(frozen=True)
class Memory:
    """Bytes of one device.

    Attributes:
        parameters: its share of them.
        optimizer: its share of the moments.
        batch: its share of a batch.
        activations: what is kept and computed in between.
        limit: what there is.
        at_least: the activations are only those that scans keep for the backward pass.
    """

    parameters: int
    optimizer: int
    batch: int
    activations: int
    limit: int
    at_least: bool = False

    @property
    def total(self) -> int:
        """All of it."""
        return self.parameters + self.optimizer + self.batch + self.activations


@dataclass(frozen=True)
class Plan:
    """What a step needs and what bounds it.

    Attributes:
        topology: the chips.
        mesh: devices along each axis.
        memory: of one device.
        flops: of all products that one device computes in a step, what is computed twice included.
        model_flops: of one step, by the formula, all devices together; nothing counts twice.
        traffic: bytes between a device and its memory; None where it is not known.
        collectives: operations between devices, by kind; None where they are not known.
        seconds: at the published rate of each resource; a step takes at least the longest.
        steps: of the whole run.
    """

    topology: Topology
    mesh: dict[str, int]
    memory: Memory
    flops: float
    model_flops: float
    traffic: int | None
    collectives: tuple[Moved, ...] | None
    seconds: dict[Bound, float]
    steps: int

    @property
    def fits(self) -> bool:
        """Whether the memory is enough."""
        return self.memory.total <= self.memory.limit

    @property
    def bound(self) -> Bound:
        """The resource that takes longest."""
        return max(self.seconds, key=lambda each: self.seconds[each])

    @property
    def step_seconds(self) -> float:
        """The least time of a step."""
        return self.seconds[self.bound]

    @property
    def mfu_bound(self) -> float:
        """The share of the chips' peak that the model's own operations can reach at most."""
        peak = self.topology.devices * self.topology.chip.flops
        return self.model_flops / (peak * self.step_seconds)

    @property
    def days(self) -> float:
        """The least time of the run."""
        return self.steps * self.step_seconds / DAY

    def as_json(self) -> dict[str, Any]:
        """Flat figures; bytes, seconds and operations."""
        collectives = None
        if self.collectives is not None:
            collectives = [asdict(each) for each in self.collectives]
        return {
            "topology": str(self.topology),
            "devices": self.topology.devices,
            "mesh": self.mesh,
            "fits": self.fits,
            "bytes_per_device": self.memory.total,
            "memory": asdict(self.memory),
            "flops_per_device": self.flops,
            "model_flops": self.model_flops,
            "traffic_per_device": self.traffic,
            "collectives": collectives,
            "seconds": dict(self.seconds),
            "bound": self.bound,
            "mfu_bound": self.mfu_bound,
            "steps": self.steps,
            "days": self.days,
            "chip_hours": self.days * 24 * self.topology.devices,
        }


def plan(experiment: Experiment, topology: Topology) -> Plan:
    """The plan of an experiment's step on a topology.

    For TPUs the step is compiled by their own compiler; for GPUs, for which none is here, memory is summed up and
    products are counted.

    Args:
        experiment: not yet fitted to data.
        topology: the chips.

    Raises:
        UserError: the mesh does not divide the topology, the batch or a parameter; or the compiler is missing, or
            does not know the topology.
    """
    fitted = experiment.fitted(experiment.data.abstract_vocabulary())
    compiles = topology.chip.kind == "tpu"
    mesh = fitted.mesh.make(devices(topology)) if compiles else _abstract(fitted, topology)
    limit = usable_memory(topology) if compiles else topology.chip.memory
    program = Program.of(fitted, mesh)
    traced = program.step().trace(program.state, program.batch)
    flops = product_flops(traced.jaxpr) / topology.devices
    chip = topology.chip
    seconds: dict[Bound, float] = {"compute": flops / chip.flops}
    state = program.state
    held: dict[str, Any] = {
        "parameters": _bytes(state.parameters),
        "optimizer": _bytes(state.optimizer),
        "batch": _bytes(program.batch),
    }
    moved, between = None, None
    if compiles:
        try:
            compiled = traced.lower().compile()
        except jax.errors.JaxRuntimeError as error:
            needed = _needed(str(error))
            if needed is None:
                raise
            between = max(needed[0] - sum(held.values()), 0)  # what it needs in all is told
            memory = Memory(**held, activations=between, limit=limit)
        else:
            allotted = Allotted.of(compiled)
            assert allotted is not None  # the compiler for TPUs tells
            memory = Memory(**held, activations=allotted.total - sum(held.values()), limit=limit)
            counted = traffic(compiled.as_text())
            moved, between = counted.memory, tuple(counted.between.values())
            seconds["memory"] = counted.memory / chip.bandwidth
            seconds["interconnect"] = counted.sent / chip.interconnect
    else:
        shards = mesh.shape["data"] * mesh.shape["fsdp"]
        kept = stacked_bytes(traced.jaxpr) // shards + held["parameters"]  # and the gradient
        memory = Memory(**held, activations=kept, limit=chip.memory, at_least=True)
    return Plan(
        topology=topology,
        mesh=dict(mesh.shape),
        memory=memory,
        flops=flops,
        model_flops=program.work.flops,
        traffic=moved,
        collectives=between,
        seconds=seconds,
        steps=fitted.run.steps,
    )


def devices(topology: Topology) -> list[jax.Device]:
    """The devices of a topology of TPUs, to compile for.

    Raises:
        UserError: the compiler is not installed, or does not know the topology.
    """
    try:
        import libtpu  # noqa: F401
    except ImportError:
        raise UserError(
            f"--topology {topology}: the compiler for TPUs is not installed; pip install 'mlmjax[plan]' does it."
        ) from None
    # It would ask for the machine that it runs on, which is none of these, and lock it for this process.
    for name, value in (
        ("ALLOW_MULTIPLE_LIBTPU_LOAD", "1"),
        ("TPU_SKIP_MDS_QUERY", "1"),
        ("TPU_ACCELERATOR_TYPE", "v5litepod-4"),
        ("TPU_WORKER_HOSTNAMES", "localhost"),
    ):
        os.environ.setdefault(name, value)
    try:
        return _described(topology)
    except jax.errors.JaxRuntimeError as error:
        raise UserError(
            f"--topology {topology}: the compiler for TPUs does not know it: {str(error).splitlines()[0]} It knows "
            f"{', '.join(_known(topology.chip))}, among others."
        ) from error


def _described(topology: Topology) -> list[jax.Device]:
    """The devices of a topology, from the compiler."""
    from jax.experimental import topologies

    options: dict[str, Any] = {}
    if topology.chip.name == "v4":
        options["chip_config_name"] = "megacore"  # one device a chip, as the others
    if topology.devices < 4:
        shape = (*topology.shape, 1, 1)[:3]
        options["chips_per_host_bounds"] = shape
    name = str(topology)
    return list(topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices)


def _known(chip: Chip) -> list[str]:
    """The topologies of a chip, of sides that are powers of two, that the compiler knows; it is asked."""
    found = []
    for sides in combinations_with_replacement((1, 2, 4, 8, 16), chip.axes):
        shape = sides[1:] + sides[:1] if chip.axes == 3 and sides[0] == 1 else sides  # 2x2x1
        topology = Topology(chip, shape)
        try:
            if topology.devices <= chip.largest and _described(topology):
                found.append(str(topology))
        except jax.errors.JaxRuntimeError:
            continue
    return found


@cache
def usable_memory(topology: Topology) -> int:
    """Bytes of a TPU's memory that its compiler gives to a program: it says so of one that needs more."""
    sharding = SingleDeviceSharding(devices(topology)[0])
    numbers = topology.chip.memory // 4  # of 4 bytes; the result needs as much again
    given = jax.ShapeDtypeStruct((numbers,), jnp.float32, sharding=sharding)
    try:
        jax.jit(lambda given: given + 1).lower(given).compile()
    except jax.errors.JaxRuntimeError as error:
        needed = _needed(str(error))
        if needed is not None:
            return needed[1]
    return topology.chip.memory


def _abstract(experiment: Experiment, topology: Topology) -> AbstractMesh:
    """A mesh of devices for which nothing can be compiled here."""
    sizes = experiment.mesh.sizes(topology.devices)
    return AbstractMesh(
        tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes)
    )


def _bytes(tree: Any) -> int:
    """Bytes of one device's share."""
    return sum(
        each.dtype.itemsize * math.prod(each.sharding.shard_shape(each.shape))
        for each in jax.tree.leaves(tree)
    )


def _needed(message: str) -> tuple[int, int] | None:
    """Bytes that a compiler says it needs, and those that there are; None where it says something else."""
    if "RESOURCE_EXHAUSTED" not in message:
        return None
    sizes = re.findall(r"([\d.]+)([KMGT]?)\b(?=\)| of|\))", message)
    units = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    found = [int(float(size) * units[unit]) for size, unit in sizes]
    return (found[0], found[1]) if len(found) >= 2 else None
