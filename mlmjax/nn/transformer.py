"""Transformer blocks, stacked and scanned, so that depth does not cost compile time."""

import math
from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key
from pydantic import Field, model_validator

from mlmjax.core.axes import constrain
from mlmjax.core.config import Config
from mlmjax.nn.attention import Attention, Implementation, Visibility
from mlmjax.nn.blockwise import SAVED
from mlmjax.nn.dropout import dropout
from mlmjax.nn.linear import Linear, layer_norm


def gelu(values: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """x times the normal distribution's cumulative probability at x (Hendrycks and Gimpel 2016, section 2).

    By the error function, as in BERT's published code; ``jax.nn.gelu`` takes the complementary one, which
    is exact also where the result is below 1e-7 and costs twice as much.
    """
    return values * (0.5 + 0.5 * jax.lax.erf(values * math.sqrt(0.5)))


Remat = Literal["none", "dots", "full"]

ACTIVATIONS = {
    "gelu": gelu,
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
}


HOW = ("dropout", "attention_dropout", "attention", "remat", "dtype")
"""Fields that change neither the parameters nor, without dropout and rounding, what is computed from them."""


class TransformerConfig(Config):
    """Sizes and choices of a stack of transformer blocks."""

    layers: Annotated[int, Field(gt=0)] = 12
    hidden: Annotated[int, Field(gt=0)] = 768
    """Width of the hidden states."""
    heads: Annotated[int, Field(gt=0)] = 12
    mlp: Annotated[int, Field(gt=0)] = 3072
    """Width of the feed-forward layer."""
    norm: Literal["post", "pre"] = "post"
    """Normalise after each residual sum, as BERT does, or before each sub-layer."""
    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    """``gelu`` is the exact one."""
    initial_std: Annotated[float, Field(gt=0)] = 0.02
    """Standard deviation of the initial kernels and embeddings; narrow models learn sooner with more."""
    epsilon: Annotated[float, Field(gt=0)] = 1e-12
    """Added to the variance in layer normalisation."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Rate on embeddings and on the output of each sub-layer."""
    attention_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Rate on attention probabilities; 0 for any implementation of attention but ``xla``."""
    attention: Implementation = "xla"
    """Implementation of attention: ``xla`` holds all scores of a row at once. For long rows ``flash``, which is
    ``splash`` on TPUs, ``cudnn`` on NVIDIA GPUs in half precision, and ``blockwise`` elsewhere."""
    remat: Remat = "dots"
    """What the backward pass computes again: nothing, all but the products with parameters (and attention in
    blocks), or everything."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute type; parameters, norms, softmax and losses are float32."""

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.hidden % self.heads:
            raise ValueError(f"hidden {self.hidden} is not a multiple of heads {self.heads}")
        if self.attention != "xla" and self.attention_dropout > 0:
            raise ValueError(
                f"attention '{self.attention}' has no dropout: set attention_dropout to 0"
            )
        if self.attention == "cudnn" and self.dtype == "float32":
            raise ValueError("attention 'cudnn' computes in half precision: set dtype bfloat16")
        size = self.hidden // self.heads
        if self.attention == "cudnn" and size % 8:
            raise ValueError(
                f"attention 'cudnn' takes heads whose width is a multiple of 8, not {size}: change hidden or "
                "heads, or set attention to 'flash'"
            )
        return self

    def sized_as(self, other: "TransformerConfig", base: type["TransformerConfig"]) -> Self:
        """With what another's parameters were made for: all fields of the base class that both have, but how it
        is computed and regularised."""
        names = (name for name in base.model_fields if name not in HOW)
        return self.updated(**{name: getattr(other, name) for name in names})

    def flops(self, length: int) -> float:
        """Floating-point operations of the forward pass over one row (2 per multiply-add)."""
        products = 4 * self.hidden**2 + 2 * self.hidden * self.mlp
        return 2.0 * self.layers * length * (products + 2 * length * self.hidden)


class Block(nnx.Module):
    """Self-attention and a feed-forward layer, each with dropout, a residual sum and a norm."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        self.config = config
        std, dtype = config.initial_std, config.dtype
        self.attention = Attention(
            config.hidden,
            config.heads,
            dropout=config.attention_dropout,
            implementation=config.attention,
            std=config.initial_std,
            dtype=dtype,
            rngs=rngs,
        )
        self.up = Linear(
            config.hidden, config.mlp, axes=("embed", "mlp"), std=std, dtype=dtype, rngs=rngs
        )
        self.down = Linear(
            config.mlp, config.hidden, axes=("mlp", "embed"), std=std, dtype=dtype, rngs=rngs
        )
        self.attention_norm = layer_norm(
            config.hidden, epsilon=config.epsilon, dtype=dtype, rngs=rngs
        )
        self.mlp_norm = layer_norm(config.hidden, epsilon=config.epsilon, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        hidden: Float[Array, "batch length hidden"],
        visibility: Visibility,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "batch length hidden"]:
        keys = (None, None, None) if key is None else tuple(jax.random.split(key, 3))
        rate = self.config.dropout
        if self.config.norm == "pre":
            mixed = self.attention(self.attention_norm(hidden), visibility, keys[0])
            hidden = hidden + dropout(mixed, rate, key=keys[1])
            return hidden + dropout(self._mlp(self.mlp_norm(hidden)), rate, key=keys[2])
        mixed = self.attention(hidden, visibility, keys[0])
        hidden = self.attention_norm(hidden + dropout(mixed, rate, key=keys[1]))
        return self.mlp_norm(hidden + dropout(self._mlp(hidden), rate, key=keys[2]))

    def _mlp(
        self, hidden: Float[Array, "batch length hidden"]
    ) -> Float[Array, "batch length hidden"]:
        return self.down(ACTIVATIONS[self.config.activation](self.up(hidden)))


class Encoded(NamedTuple):
    """What an encoder returns.

    Attributes:
        hidden: the last hidden state.
        layers: on demand, the embeddings and the state after every block (before a final norm).
    """

    hidden: Float[Array, "batch length hidden"]
    layers: Float[Array, "layers+1 batch length hidden"] | None = None


class Transformer(nnx.Module):
    """A stack of blocks, held as one block whose parameters have a leading axis ``layers``.

    The pre-norm stack ends with a norm; the post-norm stack's last block already does.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.layers = _stacked_blocks(config, rngs)
        self.norm = (
            layer_norm(config.hidden, epsilon=config.epsilon, dtype=config.dtype, rngs=rngs)
            if config.norm == "pre"
            else None
        )

    def __call__(
        self,
        hidden: Float[Array, "batch length hidden"],
        visibility: Visibility,
        key: Key[Array, ""] | None = None,
        *,
        every_layer: bool = False,
    ) -> Encoded:
        graph, parameters = nnx.split(self.layers)
        keys = None if key is None else jax.random.split(key, self.config.layers)

        def block(
            hidden: Array, layer: tuple[nnx.State, Array | None]
        ) -> tuple[Array, Array | None]:
            hidden = nnx.merge(graph, layer[0])(hidden, visibility, layer[1])
            hidden = constrain(hidden, "batch", None, None)
            return hidden, hidden if every_layer else None

        first = hidden = constrain(hidden, "batch", None, None)
        hidden, rest = jax.lax.scan(_remat(block, self.config.remat), hidden, (parameters, keys))
        layers = None if rest is None else jnp.concatenate([first[None], rest])
        return Encoded(hidden if self.norm is None else self.norm(hidden), layers)


def _stacked_blocks(config: TransformerConfig, rngs: nnx.Rngs) -> Block:
    """Blocks with their own initial values, as one block with a leading axis ``layers``."""

    @nnx.vmap(in_axes=0, out_axes=0)
    def create(key: Key[Array, ""]) -> Block:
        return Block(config, rngs=nnx.Rngs(params=key))

    blocks = create(jax.random.split(rngs.params(), config.layers))
    for _, variable in nnx.iter_graph(blocks):
        if isinstance(variable, nnx.Param):
            variable.set_metadata("axes", ("layers", *variable.get_metadata("axes")))
    return blocks


def _remat(block: Callable, policy: str) -> Callable:
    """The block, computed again in the backward pass as far as the policy says."""
    if policy == "none":
        return block
    policies = jax.checkpoint_policies
    products = policies.save_from_both_policies(
        policies.dots_with_no_batch_dims_saveable, policies.save_only_these_names(SAVED)
    )
    kept = {"dots": products, "full": None}[policy]
    return jax.checkpoint(block, policy=kept, prevent_cse=False)
