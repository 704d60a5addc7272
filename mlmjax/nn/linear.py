"""Parameters with logical axis names, initialised as BERT's are.

``sharding.py`` maps the names to mesh axes; nothing here knows a mesh. The name is kept as the
variable's metadata ``axes``.
"""

from collections.abc import Sequence

from flax import nnx

Axes = tuple[str | None, ...]

INITIAL_STD = 0.02


def initializer() -> nnx.Initializer:
    """Normal truncated at two standard deviations of 0.02 (BERT's published code)."""
    return nnx.initializers.truncated_normal(INITIAL_STD)


def linear(
    inputs: int | Sequence[int],
    outputs: int | Sequence[int],
    *,
    axes: Axes,
    dtype: str,
    rngs: nnx.Rngs,
) -> nnx.LinearGeneral:
    """An affine map over the last axes, whose kernel has the logical axes ``axes``."""
    inputs = (inputs,) if isinstance(inputs, int) else tuple(inputs)
    outputs = (outputs,) if isinstance(outputs, int) else tuple(outputs)
    return nnx.LinearGeneral(
        inputs,
        outputs,
        axis=tuple(range(-len(inputs), 0)),
        kernel_init=initializer(),
        kernel_metadata={"axes": axes},
        bias_metadata={"axes": axes[len(inputs) :]},
        dtype=dtype,
        rngs=rngs,
    )


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


def embedding(count: int, hidden: int, *, axes: Axes, rngs: nnx.Rngs) -> nnx.Embed:
    """A table of ``count`` vectors; kept in float32, since it is also the output's table."""
    return nnx.Embed(
        count,
        hidden,
        embedding_init=initializer(),
        embedding_metadata={"axes": axes},
        rngs=rngs,
    )
