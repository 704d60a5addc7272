"""One training step as one jitted function, and everything that it closes over."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding
from jaxtyping import Array, Float, Int

from mlmjax.core import prng
from mlmjax.core.types import Batch, Context, Loss, Metric
from mlmjax.experiment import Experiment
from mlmjax.objectives.base import Objective, Work
from mlmjax.sharding import AnyMesh, batch_sharding, check_batch, local_places, replicated
from mlmjax.training.state import (
    Parameters,
    TrainState,
    build_parameters,
    initial_state,
    module_graph,
    shapes,
    state_shardings,
)

Report = dict[str, Array]
"""Scalars by name: the metrics since the last logged step, and the count of skipped steps."""


@dataclass(frozen=True)
class Program:
    """An experiment made ready for a mesh: what is jitted, and the shapes that it takes.

    Attributes:
        experiment: fitted to its data.
        mesh: the devices.
        graph: the module's definition, to be merged with parameters.
        optimizer: built by optax.
        state: shapes, types and shardings of the state.
        batch: shapes, types and shardings of one global batch.
    """

    experiment: Experiment
    mesh: AnyMesh
    graph: nnx.GraphDef
    optimizer: optax.GradientTransformation
    state: TrainState
    batch: dict[str, jax.ShapeDtypeStruct]

    @classmethod
    def of(cls, experiment: Experiment, mesh: AnyMesh | None = None) -> "Program":
        """The program of a fitted experiment, by default on its own mesh; nothing is computed yet.

        Raises:
            UserError: the mesh does not divide the batch or a parameter.
        """
        mesh = experiment.mesh.make() if mesh is None else mesh
        run, spec = experiment.run, experiment.data.spec()
        check_batch(mesh, experiment.data.batch, accumulate=run.accumulate)
        graph, model = module_graph(experiment.model)
        optimizer = experiment.optimizer.build(shapes(model), run.steps)
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            metrics = _metrics_of(experiment, graph, model, spec)
        abstract = jax.eval_shape(_creation(experiment, optimizer, metrics))
        shardings = state_shardings(mesh, abstract, model)
        return cls(
            experiment=experiment,
            mesh=mesh,
            graph=graph,
            optimizer=optimizer,
            state=jax.tree.map(_placed, abstract, shardings),
            batch={name: _placed(each, batch_sharding(mesh)) for name, each in spec.items()},
        )

    def initial_state(self) -> TrainState:
        """The state before the first step, each shard made where it lies."""
        create = _creation(self.experiment, self.optimizer, self.state.metrics)
        return jax.jit(create, out_shardings=self._shardings())()

    def initial_parameters(self) -> Parameters:
        """The parameters of :meth:`initial_state`, which have learned nothing, on a device of this process."""
        return jax.jit(partial(build_parameters, self.experiment.model, self.experiment.run.seed))()

    def step(self) -> Any:
        """The jitted step: (state, batch) -> (state, report). The state's buffers are donated."""
        return jax.jit(
            self.on_mesh(partial(train_step, self.experiment, self.graph, self.optimizer)),
            donate_argnums=0,
            out_shardings=(self._shardings(), replicated(self.mesh)),
        )

    def on_mesh(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, traced where the mesh is known, so that it may say what lies where on it."""

        def traced(*arguments: Any) -> Any:
            with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
                return function(*arguments)

        return traced

    def place(self, batch: dict[str, np.ndarray]) -> Batch:
        """A global batch on the devices, from this process's rows of it, which are :attr:`places`."""
        whole = np.arange(self.experiment.data.batch)

        def shard(each: np.ndarray, index: tuple[slice, ...]) -> np.ndarray:
            rows = whole[index[0]]
            first = np.searchsorted(self.places, rows[0])
            return each[first : first + len(rows)]

        return {
            name: jax.make_array_from_callback(
                self.batch[name].shape, self.batch[name].sharding, partial(shard, each)
            )
            for name, each in batch.items()
        }

    @cached_property
    def places(self) -> np.ndarray:
        """The rows of a global batch that this process reads, ascending: those of its devices."""
        return local_places(batch_sharding(self.mesh), self.experiment.data.batch)

    @property
    def work(self) -> Work:
        """What one step costs and reads."""
        return self.experiment.objective.work(self.experiment.model, self.experiment.data.spec())

    def _shardings(self) -> TrainState:
        return jax.tree.map(lambda each: each.sharding, self.state)


def train_step(
    experiment: Experiment,
    graph: nnx.GraphDef,
    optimizer: optax.GradientTransformation,
    state: TrainState,
    batch: Batch,
) -> tuple[TrainState, Report]:
    """One update. Where the gradient is not finite, only the counters move."""
    run = experiment.run
    context = Context(prng.root(run.seed), state.step, jnp.int32(0))
    loss, gradient = loss_and_gradient(
        experiment.objective, graph, state.parameters, batch, context, accumulate=run.accumulate
    )
    norm = optax.tree.norm(gradient)
    finite = jnp.isfinite(norm)
    parameters, moved = jax.lax.cond(
        finite,
        partial(_updated, optimizer),
        lambda gradient, moments, parameters: (parameters, moments),
        *(gradient, state.optimizer, state.parameters),
    )
    rate = experiment.optimizer.schedule(run.steps)(state.step - state.skipped)
    measured = _measured(loss, gradient_norm=norm, learning_rate=rate)
    keep = jnp.where(state.step % run.log_every == 0, 0.0, 1.0)
    metrics = jax.tree.map(
        lambda old, new: keep * old + jnp.where(finite, new, 0), state.metrics, measured
    )
    new = TrainState(
        step=state.step + 1,
        parameters=parameters,
        optimizer=moved,
        metrics=metrics,
        skipped=state.skipped + ~finite,
        skipped_in_a_row=jnp.where(finite, 0, state.skipped_in_a_row + 1),
    )
    report = {name: metric.value() for name, metric in metrics.items()}
    return new, {**report, "skipped": new.skipped, "skipped_in_a_row": new.skipped_in_a_row}


def loss_and_gradient(
    objective: Objective,
    graph: nnx.GraphDef,
    parameters: Parameters,
    batch: Batch,
    context: Context,
    *,
    accumulate: int = 1,
) -> tuple[Loss, Parameters]:
    """The loss of a batch and its gradient, in micro-batches that are added up and divided once.

    Each micro-batch's sums are divided by the weights of the whole batch. These are found first, in a
    pass that needs the masks but no encoder (the compiler drops what nobody reads), so micro-batches
    of 1 and of 99 targets give the gradient of all 100.
    """

    def loss_of(
        parameters: Parameters, part: Int[Array, ""], batch: Batch, weights: Any = None
    ) -> tuple[Float[Array, ""], Loss]:
        loss = objective(nnx.merge(graph, parameters), batch, replace(context, part=part))
        return loss.value(weights), loss

    gradient_of = jax.value_and_grad(loss_of, has_aux=True)
    if accumulate == 1:
        (_, loss), gradient = gradient_of(parameters, context.part, batch)
        return loss, gradient

    parts = (jnp.arange(accumulate), split_batch(batch, accumulate))
    weighed = jax.lax.map(lambda each: loss_of(parameters, *each)[1].terms, parts)
    weights = {name: term.weight.sum() for name, term in weighed.items()}

    def add(total: Any, each: tuple[Array, Batch]) -> tuple[Any, None]:
        (_, loss), gradient = gradient_of(parameters, *each, weights)
        return jax.tree.map(jnp.add, total, (loss, gradient)), None

    abstract = jax.eval_shape(lambda each: loss_of(parameters, *each)[1], _first(parts))
    zeros = jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), (abstract, parameters))
    (loss, gradient), _ = jax.lax.scan(add, zeros, parts)
    return loss, gradient


def _updated(
    optimizer: optax.GradientTransformation,
    gradient: Parameters,
    moments: Any,
    parameters: Parameters,
) -> tuple[Parameters, Any]:
    updates, moments = optimizer.update(gradient, moments, parameters)
    return optax.apply_updates(parameters, updates), moments


def split_batch(batch: Batch, parts: int) -> dict[str, Array]:
    """Micro-batches on a new leading axis; each takes every so-manieth example, hence of every shard."""
    return {
        name: jnp.moveaxis(each.reshape(-1, parts, *each.shape[1:]), 1, 0)
        for name, each in batch.items()
    }


def _creation(
    experiment: Experiment,
    optimizer: optax.GradientTransformation,
    metrics: dict[str, Metric],
) -> Callable[[], TrainState]:
    """What makes the initial state, to be traced or jitted."""
    seed = experiment.run.seed
    return partial(initial_state, experiment.model, seed, optimizer=optimizer, metrics=metrics)


def _measured(loss: Loss, **figures: Array) -> dict[str, Metric]:
    """The objective's metrics and the step's own figures."""
    figures = {"loss": loss.value(), **figures}
    one = jnp.float32(1)
    return {**loss.metrics, **{name: Metric(value, one) for name, value in figures.items()}}


def _metrics_of(
    experiment: Experiment, graph: nnx.GraphDef, model: nnx.State, spec: Any
) -> dict[str, Metric]:
    """Shapes of the metrics of a step."""

    def measured(parameters: Parameters, batch: Batch) -> dict[str, Metric]:
        loss = experiment.objective(
            nnx.merge(graph, parameters), batch, Context.of(experiment.run.seed, training=True)
        )
        return _measured(loss, gradient_norm=jnp.float32(0), learning_rate=jnp.float32(0))

    return jax.eval_shape(measured, shapes(model), spec)


def _first(tree: Any) -> Any:
    return jax.tree.map(lambda each: each[0], tree)


def _placed(each: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=sharding)
