"""Multi-head attention and the visibility that restricts it."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from mlmjax.nn.dropout import dropout
from mlmjax.nn.linear import Linear

Implementation = Literal["xla", "cudnn"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Visibility:
    """Who may attend to whom: every position to every valid position, in packed rows of its own document.

    Attributes:
        valid: is there a token at this position? Padding is seen by nobody. None where no position is padding,
            as in images: then attention needs no mask.
        documents: in packed rows, the number of each token's document within its row; None where a row is one
            text.
    """

    valid: Bool[Array, "batch length"] | None = None
    documents: Int[Array, "batch length"] | None = None

    def mask(self) -> Bool[Array, "batch 1 queries length"] | None:
        """True where a query (third axis; 1 where all see the same) may attend to a key (last axis).

        None where every position sees every other.
        """
        keys = None if self.valid is None else self.valid[:, None, None, :]
        if self.documents is None:
            return keys
        own = self.documents[:, None, :, None] == self.documents[:, None, None, :]
        return own if keys is None else keys & own


class Attention(nnx.Module):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2), query, key and value in one product."""

    def __init__(
        self,
        hidden: int,
        heads: int,
        *,
        dropout: float,
        implementation: Implementation,
        std: float,
        dtype: str,
        rngs: nnx.Rngs,
    ):
        self.dropout = dropout
        self.implementation = implementation
        size = hidden // heads
        self.qkv = Linear(
            hidden,
            (heads, 3, size),
            axes=("embed", "heads", None, None),
            std=std,
            dtype=dtype,
            rngs=rngs,
        )
        self.out = Linear(
            (heads, size), hidden, axes=("heads", None, "embed"), std=std, dtype=dtype, rngs=rngs
        )

    def __call__(
        self,
        hidden: Float[Array, "batch length hidden"],
        visibility: Visibility,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "batch length hidden"]:
        qkv = self.qkv(hidden)
        query, keys, value = qkv[..., 0, :], qkv[..., 1, :], qkv[..., 2, :]
        if key is None or self.dropout == 0:
            mixed = jax.nn.dot_product_attention(
                query,
                keys,
                value,
                mask=visibility.mask(),
                implementation=self.implementation,
            )
        else:
            mixed = attention_with_dropout(
                query, keys, value, mask=visibility.mask(), rate=self.dropout, key=key
            )
        return self.out(mixed)


def attention_with_dropout(
    query: Float[Array, "batch queries heads size"],
    keys: Float[Array, "batch keys heads size"],
    value: Float[Array, "batch keys heads size"],
    *,
    mask: Bool[Array, "#batch #heads #queries keys"] | None,
    rate: float,
    key: Key[Array, ""],
) -> Float[Array, "batch queries heads size"]:
    """Attention with dropout on its probabilities, which ``jax.nn.dot_product_attention`` lacks.

    BERT drops attention probabilities (Devlin et al. 2019, appendix A.2). Softmax is float32.
    """
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, keys, preferred_element_type=jnp.float32)
    scores = scores * query.shape[-1] ** -0.5
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
    probabilities = dropout(jax.nn.softmax(scores), rate, key=key).astype(value.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", probabilities, value)
