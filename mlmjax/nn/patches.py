"""Patches of images as a transformer takes them: their positions, and how some are taken out and put back."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from mlmjax.core.errors import UserError
from mlmjax.core.types import Mask
from mlmjax.nn.linear import Linear

Grid = tuple[int, int]
"""Patches down and across an image."""


def sine_cosine_2d(
    grid: Grid, hidden: int, *, over: Grid | None = None
) -> Float[Array, "patches hidden"]:
    """Sines and cosines of each patch's column, then those of its row (He et al. 2022, appendix A.1).

    Each half is that of Vaswani et al. 2017, section 3.5: a quarter of the width holds sines, a quarter cosines,
    at wavelengths from 2 pi to 10000 times that. The column comes first, as in MAE's released weights. Patches are
    in row-major order.

    Args:
        grid: patches down and across.
        hidden: width, a multiple of 4.
        over: the grid whose coordinates are stretched over this one, for a model that learned on another size of
            image: since the positions are a formula, they are interpolated by it and not from a table. A
            coordinate is that of the patch's centre. By default the grid's own.

    Raises:
        UserError: the width is not a multiple of 4.
    """
    if hidden % 4:
        raise UserError(
            f"Sine-cosine positions need a width that is a multiple of 4, and it is {hidden}: "
            f"set --model.encoder.hidden (or that of the decoder) to {-(-hidden // 4) * 4}."
        )

    def waves(count: int, whole: int) -> np.ndarray:
        coordinates = (np.arange(count) + 0.5) * (whole / count) - 0.5
        angles = coordinates[:, None] / 10000 ** (np.arange(hidden // 4) / (hidden // 4))
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)

    rows, columns = (waves(*sizes) for sizes in zip(grid, over or grid, strict=True))
    both = np.concatenate([np.tile(columns, (grid[0], 1)), np.repeat(rows, grid[1], axis=0)], 1)
    return jnp.asarray(both, jnp.float32)


def gather_patches(
    values: Float[Array, "batch patches width"], chosen: Mask
) -> Float[Array, "batch capacity width"]:
    """The chosen patches; an unused place holds the first patch, for the caller not to look at."""
    return jnp.take_along_axis(values, chosen.positions[..., None], axis=1, mode="clip")


def scatter_patches(
    values: Float[Array, "batch capacity width"], chosen: Mask, patches: int
) -> Float[Array, "batch patches width"]:
    """The values at the places that they were chosen from, and zeros elsewhere: undoes :func:`gather_patches`.

    As a product with zeros and ones, and so is its gradient: hardware adds up a scatter in any order, so that its
    sums differ from run to run. At full precision it gives the very values, which must be finite.
    """
    hits = jax.nn.one_hot(chosen.positions, patches) * chosen.weight[..., None]
    return jnp.einsum(
        "bkn,bkd->bnd", hits.astype(values.dtype), values, precision=jax.lax.Precision.HIGHEST
    )


def xavier_uniform(module: nnx.Module, *, rngs: nnx.Rngs) -> None:
    """Draw the kernels of all linear layers of a module anew, as ViT and MAE do.

    Uniform in ±sqrt(6 / (inputs + outputs)) (Glorot and Bengio 2010, formula 16); query, key and value count as one
    layer, as in MAE's published code.
    """
    layers = [layer for _, layer in nnx.iter_graph(module) if isinstance(layer, Linear)]
    for layer in layers:
        limit = (6 / (np.prod(layer.inputs) + np.prod(layer.outputs))) ** 0.5
        # Stacked layers have a leading axis, and inputs and outputs of one of them.
        shape = layer.kernel[...].shape
        layer.kernel[...] = jax.random.uniform(rngs.params(), shape, minval=-limit, maxval=limit)
