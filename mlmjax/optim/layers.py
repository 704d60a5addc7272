"""Stacked layers as separate tensors, for optimizers that look at a whole tensor at a time.

Layers that are scanned are stored as one array with a leading axis, under a key ``layers``. A trust
ratio or a factored second moment of the stack would be another algorithm than the published one,
which takes them of each layer.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import optax
from jax.tree_util import KeyPath
from jaxtyping import PyTree

STACK = "layers"
"""The key under which arrays carry a leading layer axis."""


def per_layer(transformation: optax.GradientTransformation) -> optax.GradientTransformation:
    """The same transformation, with every layer of a stack treated as a tensor of its own.

    Arrays below a key ``layers`` are stacked, unless an index follows the key, as in a list of
    layers. The work is mapped over the stack (``jax.vmap``), so it compiles once for all layers,
    and state that belongs to a stacked array is stacked like it. Stacks may differ in depth.

    Args:
        transformation: one that treats the arrays of the tree apart, such as
            ``optax.scale_by_trust_ratio``. Its state may hold trees like the parameters, and
            counters.

    Raises:
        ValueError: from ``jax.vmap``, if arrays are not treated apart (as in clipping by global
            norm).
    """

    def init(params: PyTree) -> PyTree:
        # Only the state's structure is needed, and that is the same for a stack and for one layer.
        state = jax.eval_shape(transformation.init, params)
        return _mapped(transformation.init, _depths(params), (params,), state)(params)

    def update(
        updates: PyTree, state: PyTree, params: PyTree | None = None
    ) -> tuple[PyTree, PyTree]:
        given = (updates, state, params)
        return _mapped(transformation.update, _depths(updates), given, (updates, state))(*given)

    return optax.GradientTransformation(init, update)


def names(path: KeyPath) -> tuple[str, ...]:
    """The keys on the way to a leaf, as text."""
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)


def _depths(params: PyTree) -> dict[tuple[str, ...], int]:
    """The number of layers of each stacked array, by its names."""
    leaves = [(names(path), leaf) for path, leaf in jax.tree.leaves_with_path(params)]
    return {keys: leaf.shape[0] for keys, leaf in leaves if below_stack(keys)}


def below_stack(keys: tuple[str, ...]) -> bool:
    """Whether an array carries a leading layer axis."""
    return any(key == STACK and not below.isdigit() for key, below in pairwise(keys))


def _mapped(
    function: Callable[..., Any],
    depths: dict[tuple[str, ...], int],
    given: tuple[PyTree, ...],
    returned: PyTree,
) -> Callable[..., Any]:
    """The function mapped over the layer axes of trees like ``given`` and ``returned``."""

    def axes(tree: PyTree, depth: int) -> PyTree:
        def axis(path: KeyPath, _: Any) -> int | None:
            # An optimizer's state names a parameter by its names after some of its own.
            keys = names(path)
            found = (depths[keys[i:]] for i in range(len(keys)) if keys[i:] in depths)
            return 0 if next(found, None) == depth else None

        return jax.tree.map_with_path(axis, tree)

    for depth in sorted(set(depths.values())):
        function = jax.vmap(function, axes(given, depth), axes(returned, depth))
    return function
