"""Held-out figures: fixed masks, sums that are streamed over all rows and divided once."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from mlmjax.core import prng
from mlmjax.core.types import Batch, Context, Metric
from mlmjax.sharding import replicated
from mlmjax.training.state import Parameters
from mlmjax.training.step import Program


class HeldOut:
    """Evaluates parameters on held-out rows, compiled once.

    The masks are those of (seed, "heldout"), epoch 0, at the last step's ratio: the same at every evaluation.
    """

    def __init__(self, program: Program):
        self._program = program
        self._measure = jax.jit(
            program.on_mesh(partial(_measure, program)), out_shardings=replicated(program.mesh)
        )

    def __call__(
        self, parameters: Parameters, batches: Iterable[dict[str, np.ndarray]]
    ) -> dict[str, float]:
        """The objective's figures by name, over all rows."""
        total: Any = None
        for batch in batches:
            found = self._measure(parameters, self._program.place(batch))
            total = found if total is None else jax.tree.map(jnp.add, total, found)
        counted = {name: each for name, each in total.items() if each.weight.sum() > 0}
        return {name: float(metric.value()) for name, metric in counted.items()}


def heldout_context(program: Program) -> Context:
    """The seed and step of held-out masks."""
    run = program.experiment.run
    seed = prng.stream(prng.root(run.seed), "heldout")
    return Context(seed, jnp.int32(run.steps), jnp.int32(0), training=False)


def _measure(program: Program, parameters: Parameters, batch: Batch) -> dict[str, Metric]:
    model = nnx.merge(program.graph, parameters)
    loss = program.experiment.objective(model, batch, heldout_context(program))
    return loss.metrics
