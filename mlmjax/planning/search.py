"""Other ways to lay out an experiment on a topology, and which of them fit."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from mlmjax.core.config import Config
from mlmjax.core.errors import UserError
from mlmjax.experiment import Experiment
from mlmjax.nn.transformer import Remat, TransformerConfig
from mlmjax.planning.chips import Topology
from mlmjax.planning.plan import Plan, plan
from mlmjax.sharding import MeshConfig


@dataclass(frozen=True)
class Layout:
    """An experiment laid out in another way.

    Attributes:
        experiment: it, changed.
        options: what was changed, as on the command line.
    """

    experiment: Experiment
    options: str


def layouts(experiment: Experiment, topology: Topology) -> Iterator[Layout]:
    """All meshes that divide the topology and the batch, each with every policy of recomputation.

    Those come first that exchange least: fewer shards of tensors, then of parameters, then less recomputation.
    """
    devices = topology.devices
    for tensor in _divisors(devices):
        for fsdp in _divisors(devices // tensor):
            for policy in get_args(Remat):
                mesh = MeshConfig(data=devices // tensor // fsdp, fsdp=fsdp, tensor=tensor)
                if experiment.data.batch % (mesh.data * fsdp * experiment.run.accumulate) == 0:
                    yield _laid_out(experiment, mesh, policy)


def search(
    experiment: Experiment, topology: Topology, *, most: int, report: Any = lambda *_: None
) -> list[tuple[Layout, Plan]]:
    """Plans of layouts that fit, the fastest first.

    Args:
        experiment: not yet fitted.
        topology: the chips.
        most: layouts to compile; each takes some seconds to minutes.
        report: called with the stage, what is done, and the total.

    Raises:
        UserError: as :func:`~mlmjax.planning.plan.plan`; or no layout divides the topology.
    """
    found = []
    tried = 0
    for layout in layouts(experiment, topology):
        if tried == most:
            break
        try:
            one = plan(layout.experiment, topology)
        except UserError as error:
            if "--mesh" not in str(error):
                raise
            continue  # the mesh does not divide a parameter
        tried += 1
        report("planning", tried, most)
        if one.fits:
            found.append((layout, one))
    if not tried:
        raise UserError(
            f"No mesh over {topology} divides a batch of {experiment.data.batch} (--data.batch, --run.accumulate)."
        )
    return sorted(found, key=lambda each: (each[1].step_seconds, each[1].memory.total))


def mended(experiment: Experiment, failed: Plan) -> tuple[Layout, Plan] | None:
    """The first change with which an experiment that does not fit would: parameters in shards, everything computed
    again, both, and smaller micro-batches in shards. None where none of them is enough.

    Args:
        experiment: not yet fitted.
        failed: its plan.
    """
    topology, memory = failed.topology, failed.memory
    tensor, accumulate = failed.mesh["tensor"], experiment.run.accumulate
    sharded = MeshConfig(data=1, fsdp=topology.devices // tensor, tensor=tensor)
    changes: list[tuple[MeshConfig | None, str | None, int | None]] = [
        (sharded, None, None),
        (None, "full", None),
        (sharded, "full", None),
    ]
    # Smaller micro-batches keep as much less: those that are far too large are not compiled.
    factor = 2
    while experiment.data.batch % (topology.devices // tensor * accumulate * factor) == 0:
        if memory.activations / factor < memory.limit:
            changes.append((sharded, None, accumulate * factor))
        factor *= 2
    if memory.total > 4 * memory.limit:
        changes = changes[3:]
    for mesh, policy, micro in changes:
        layout = _laid_out(experiment, mesh, policy, accumulate=micro)
        try:
            found = plan(layout.experiment, topology)
        except UserError:
            continue
        if found.fits:
            return layout, found
    return None


def _laid_out(
    experiment: Experiment,
    mesh: MeshConfig | None,
    policy: str | None,
    *,
    accumulate: int | None = None,
) -> Layout:
    options: list[str] = []
    if mesh is not None:
        experiment = experiment.updated(mesh=mesh)
        options += [f"--mesh.{name} {size}" for name, size in mesh.model_dump().items()]
    if policy is not None:
        model, names = _rematerialised(experiment.model, policy, "--model")
        experiment = experiment.updated(model=model)
        options += names
    if accumulate is not None:
        experiment = experiment.updated(run=experiment.run.updated(accumulate=accumulate))
        options.append(f"--run.accumulate {accumulate}")
    return Layout(experiment, " ".join(options))


def _rematerialised(config: Any, policy: str, name: str) -> tuple[Any, list[str]]:
    """A config of which every stack of blocks has another policy, and the options that say so."""
    if isinstance(config, TransformerConfig):
        return config.updated(remat=policy), [f"{name}.remat {policy}"]
    changes: dict[str, Any] = {}
    options: list[str] = []
    for field in type(config).model_fields:
        value = getattr(config, field)
        if isinstance(value, Config):
            changed, more = _rematerialised(value, policy, f"{name}.{field.replace('_', '-')}")
            if more:
                changes[field], options = changed, options + more
    return (config.updated(**changes) if changes else config), options


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]
