"""What changes while training, and where it lies on the mesh."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Int

from mlmjax.core import prng
from mlmjax.core.types import Metric
from mlmjax.models.base import ModelConfig
from mlmjax.sharding import AnyMesh, parameter_shardings, replicated, shardings_like

Parameters = dict[str, Any]
"""Nested dicts of arrays, named as the module's attributes are."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """The whole state of training; the data's state is the step.

    Attributes:
        step: batches consumed.
        parameters: of the model.
        optimizer: of optax.
        metrics: what was added up since the last logged step.
        skipped: steps whose gradient was not finite, in all and in a row up to now.
    """

    step: Int[Array, ""]
    parameters: Parameters
    optimizer: Any
    metrics: dict[str, Metric]
    skipped: Int[Array, ""]
    skipped_in_a_row: Int[Array, ""]


def build_parameters(model: ModelConfig, seed: int) -> Parameters:
    """The initial parameters of a seed; the same on any mesh."""
    key = prng.stream(prng.root(seed), "parameters")
    return plain(nnx.state(model.build(nnx.Rngs(params=key)), nnx.Param))


def module_graph(model: ModelConfig) -> tuple[nnx.GraphDef, nnx.State]:
    """The module without values: its definition, and its parameters as shapes with logical axes."""
    return nnx.split(nnx.eval_shape(lambda: model.build(nnx.Rngs(params=0))))


def plain(state: nnx.State) -> Parameters:
    """An nnx state as nested dicts of arrays."""
    flat = {path: variable[...] for path, variable in nnx.to_flat_state(state)}
    return nnx.traversals.unflatten_mapping(flat)


def shapes(model: nnx.State) -> Parameters:
    """The parameters' shapes and types as nested dicts."""
    return jax.eval_shape(plain, model)


def flat(tree: Any) -> dict[str, Any]:
    """The leaves by slash-separated path, such as ``encoder/layers/up/kernel``."""
    found, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in found}


def nested(leaves: Mapping[str, Any]) -> Parameters:
    """The parameters of which :func:`flat` has the leaves."""
    return nnx.traversals.unflatten_mapping({tuple(k.split("/")): v for k, v in leaves.items()})


def initial_state(
    model: ModelConfig,
    seed: int,
    *,
    optimizer: optax.GradientTransformation,
    metrics: dict[str, Metric],
) -> TrainState:
    """The state before the first step; ``metrics`` gives the shapes of what will be added up."""
    parameters = build_parameters(model, seed)
    zero = jnp.int32(0)
    return TrainState(
        step=zero,
        parameters=parameters,
        optimizer=optimizer.init(parameters),
        metrics=jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), metrics),
        skipped=zero,
        skipped_in_a_row=zero,
    )


def state_shardings(mesh: AnyMesh, abstract: TrainState, model: nnx.State) -> TrainState:
    """A sharding for each leaf: parameters by their logical axes, and the optimizer's copies alike."""
    whole: Any = replicated(mesh)
    of_parameters = parameter_shardings(mesh, model)
    return TrainState(
        step=whole,
        parameters=of_parameters,
        optimizer=shardings_like(
            abstract.optimizer, abstract.parameters, of_parameters, default=whole
        ),
        metrics=jax.tree.map(lambda _: whole, abstract.metrics),
        skipped=whole,
        skipped_in_a_row=whole,
    )
