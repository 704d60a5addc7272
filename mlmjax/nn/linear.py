"""Parameters with logical axis names, initialised as BERT's are.

``sharding.py`` maps the names to mesh axes; nothing here knows a mesh. The name is kept as the
variable's metadata ``axes``.
"""

import math
from collections.abc import Sequence

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

Axes = tuple[str | None, ...]


def initializer(std: float) -> nnx.Initializer:
    """Normal truncated at two standard deviations, as in BERT's published code."""
    return nnx.initializers.truncated_normal(std)


class Linear(nnx.Module):
    """An affine map over the last axes.

    It multiplies two matrices, all places of all rows below each other: on CPU the gradients of a product over
    more axes are a fifth slower. A mesh axis may hence cut the first of ``outputs`` or of ``inputs``, and no other.

    Args:
        inputs: sizes of the axes that are summed over.
        outputs: sizes of the axes that replace them.
        axes: logical names of the kernel's axes, inputs then outputs.
        std: standard deviation of the initial kernel; the bias begins at zero.
        dtype: compute type; kernel and bias are kept in float32.
        rngs: its stream ``params`` gives the initial kernel.
    """

    def __init__(
        self,
        inputs: int | Sequence[int],
        outputs: int | Sequence[int],
        *,
        axes: Axes,
        std: float,
        dtype: str,
        rngs: nnx.Rngs,
    ):
        self.inputs = (inputs,) if isinstance(inputs, int) else tuple(inputs)
        self.outputs = (outputs,) if isinstance(outputs, int) else tuple(outputs)
        self.dtype = dtype
        shape = (*self.inputs, *self.outputs)
        self.kernel = nnx.Param(initializer(std)(rngs.params(), shape), axes=axes)
        self.bias = nnx.Param(jnp.zeros(self.outputs), axes=axes[len(self.inputs) :])

    def __call__(
        self, values: Float[Array, "*places_and_inputs"]
    ) -> Float[Array, "*places_and_outputs"]:
        places = values.shape[: values.ndim - len(self.inputs)]
        matrix = values.astype(self.dtype).reshape(-1, math.prod(self.inputs))
        kernel = self.kernel[...].astype(self.dtype).reshape(matrix.shape[1], -1)
        bias = self.bias[...].astype(self.dtype).reshape(-1)
        return (matrix @ kernel + bias).reshape(*places, *self.outputs)


def layer_norm(hidden: int, *, epsilon: float, dtype: str, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """Layer normalisation (Ba et al. 2016), its statistics in float32."""
    return nnx.LayerNorm(
        hidden,
        epsilon=epsilon,
        use_fast_variance=False,
        scale_metadata={"axes": (None,)},
        bias_metadata={"axes": (None,)},
        dtype=dtype,
        rngs=rngs,
    )


def embedding(count: int, hidden: int, *, axes: Axes, std: float, rngs: nnx.Rngs) -> nnx.Embed:
    """A table of ``count`` vectors; kept in float32, since it is also the output's table."""
    return nnx.Embed(
        count,
        hidden,
        embedding_init=initializer(std),
        embedding_metadata={"axes": axes},
        rngs=rngs,
    )


def sinusoids(count: int, hidden: int) -> Float[Array, "count hidden"]:
    """Sines and cosines of each position (Vaswani et al. 2017, section 3.5).

    Wavelengths go from 2 pi to 10000 times that; the first half of the columns are sines, the second cosines.
    """
    half = -(-hidden // 2)
    angles = jnp.arange(count)[:, None] / 10000 ** (jnp.arange(half) / half)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1)[:, :hidden]
