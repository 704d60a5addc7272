"""From a program to an artifact of ``jax.export``, for all platforms and sizes at once."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import export
from jaxtyping import Array

from mlmjax.interop.stablehlo.programs import Program
from mlmjax.training.state import module_graph

PLATFORMS = ("cpu", "cuda", "tpu")

Shapes = Mapping[str, jax.ShapeDtypeStruct]


def lowered(program: Program, parameters: Shapes) -> export.Exported:
    """The program as a function of the parameters that it reads, a dict by name, and of its inputs.

    Parameters are arguments and no constants: XLA would fold constants anew for every size of the inputs.
    """
    graph, _ = module_graph(program.config)

    def compute(given: Mapping[str, Array], *inputs: Array) -> dict[str, Array]:
        # What the program does not read still has its place in the module.
        rest = {name: jnp.zeros(each.shape, each.dtype) for name, each in parameters.items()}
        flat = {tuple(name.split("/")): each for name, each in {**rest, **given}.items()}
        model = nnx.merge(graph, nnx.traversals.unflatten_mapping(flat))
        return program.compute(model, *inputs)

    # jax drops arguments that are not read, but only where sizes are numbers.
    sized = export.export(jax.jit(compute))(dict(parameters), *_inputs(program, sized=True))
    names = [name for place, name in enumerate(sorted(parameters)) if place in _read(sized)]
    function = export.export(jax.jit(compute), platforms=PLATFORMS)
    return function({name: parameters[name] for name in names}, *_inputs(program, sized=False))


def parameter_names(exported: export.Exported) -> list[str]:
    """The parameters that an artifact takes."""
    (first, *_), _ = jax.tree.unflatten(exported.in_tree, exported.in_avals)
    return sorted(first)


def _read(exported: export.Exported) -> Sequence[int]:
    return exported.module_kept_var_idx


def _inputs(program: Program, *, sized: bool) -> list[Any]:
    """Shapes of the inputs; their names are sizes of 1, or left open."""
    scope = export.SymbolicScope(program.limits)
    return [
        jax.ShapeDtypeStruct(
            tuple(1 if isinstance(size, str) else size for size in each.shape)
            if sized
            else export.symbolic_shape(", ".join(map(str, each.shape)), scope=scope),
            each.dtype,
        )
        for each in program.inputs
    ]
