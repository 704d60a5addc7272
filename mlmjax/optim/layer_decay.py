"""Learning rates that decay from the head down to the embeddings, for fine-tuning."""

from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import KeyPath
from jaxtyping import PyTree

from mlmjax.core.errors import UserError
from mlmjax.optim.layers import STACK, below_stack, names

EMBEDDINGS = ("token", "position", "segment", "embed", "class_token", "masked_vector")
"""Names of what stands below the first layer; so does a norm outside of all other modules, which is BERT's."""


def layer_scales(
    params: PyTree, decay: float, *, embeddings: Collection[str] = EMBEDDINGS
) -> PyTree:
    """What each parameter's learning rate is multiplied with: ``decay ** (L + 1 - depth)``.

    Of L layers, embeddings have depth 0, the layers 1 to L, and all that stands on them (a final norm, a pooler,
    heads) L + 1, so that the head's rate is the whole one. As in ELECTRA (Clark et al. 2020, table 7) and, for
    images, BEiT (Bao et al. 2022) and MAE (He et al. 2022, table 9), whose code counts so too.

    Args:
        params: nested dicts of arrays (or of their shapes), of a model with one stack of layers: arrays below a key
            ``layers`` have a leading layer axis.
        decay: above 0, at most 1.
        embeddings: names, anywhere on a parameter's path, of what has depth 0.

    Returns:
        A tree like ``params``: a number, or for a stack one a layer, in the array's shape but for axes of size 1.

    Raises:
        UserError: there is no stack of layers, or more than one.
    """
    paths = [(names(path), leaf) for path, leaf in jax.tree.leaves_with_path(params)]
    stacks = {
        keys[: keys.index(STACK) + 1]: leaf.shape[0] for keys, leaf in paths if below_stack(keys)
    }
    if len(stacks) != 1:
        found = " and ".join(".".join(keys) for keys in stacks) or "none"
        raise UserError(
            "--optimizer.layer-decay needs a model with one stack of layers, as those of fine-tuning have; here "
            f"there is {found}: leave it out."
        )
    (layers,) = stacks.values()

    def scale(path: KeyPath, leaf: Any) -> jax.Array:
        keys = names(path)
        if below_stack(keys):
            depths = jnp.arange(1, layers + 1)
            return (decay ** (layers + 1.0 - depths)).reshape(-1, *[1] * (len(leaf.shape) - 1))
        lowest = keys[0] == "norm" or any(key in embeddings for key in keys)
        return jnp.float32(decay ** (layers + 1) if lowest else 1.0)

    return jax.tree.map_with_path(scale, params)


def scale_by_layer(scales: PyTree) -> optax.GradientTransformation:
    """Multiply each update with its scale, as from :func:`layer_scales`."""
    return optax.stateless(lambda updates, _: jax.tree.map(jnp.multiply, updates, scales))
