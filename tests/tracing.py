"""A run seen from outside: which examples and which masks each step has, and its loss."""

import hashlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from mlmjax.core import prng
from mlmjax.core.types import Batch, Context
from mlmjax.experiment import Experiment
from mlmjax.objectives.mae import MaskedAutoencoder
from mlmjax.sharding import replicated
from mlmjax.training.step import Program


class Traced(NamedTuple):
    """A step: hashes of its examples' ids and of their masks, and its loss."""

    examples: str
    masks: str
    loss: float


def trace(experiment: Experiment, devices: list[jax.Device] | None = None) -> list[Traced]:
    """The steps of a run, on these devices or all, of all processes, as its mesh says."""
    prepared = experiment.data.prepare()
    fitted = experiment.fitted(prepared.vocabulary)
    program = Program.of(fitted, fitted.mesh.make(devices))
    step, state = program.step(), program.initial_state()
    drawn = jax.jit(program.on_mesh(masks_of(program)), out_shardings=replicated(program.mesh))
    batches = prepared.batches(
        seed=fitted.run.seed,
        batch=fitted.data.batch,
        start=0,
        stop=fitted.run.steps,
        threads=1,
        places=program.places,
    )
    found = []
    for number, each in enumerate(batches):
        batch = program.place(each)
        examples, masks = drawn(batch, jnp.int32(number))
        state, report = step(state, batch)
        found.append(Traced(digest(examples), digest(masks), float(report["loss"])))
    return found


def masks_of(program: Program) -> Any:
    """From a batch and its step to what names the examples, and to all that was drawn for them."""
    objective, seed = program.experiment.objective, program.experiment.run.seed

    def drawn(batch: Batch, step: jax.Array) -> tuple[Any, Any]:
        context = Context(prng.root(seed), step, jnp.int32(0))
        if isinstance(objective, MaskedAutoencoder):
            model = nnx.merge(program.graph, program.state.parameters)
            hidden = objective.mask(model, batch, context)
            masks = (hidden.mask.positions, hidden.visible.positions)
        else:
            hidden = objective.mask(batch, context)
            masks = (hidden.mask.positions, hidden.mask.weight, hidden.corrupted.tokens)
        return (batch["id"], batch["epoch"]), masks

    return drawn


def digest(arrays: Any) -> str:
    """A hash of the bytes of arrays."""
    text = hashlib.sha256()
    for each in jax.tree.leaves(arrays):
        text.update(np.asarray(each).tobytes())
    return text.hexdigest()
