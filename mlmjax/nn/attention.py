"""Multi-head attention and the visibility that restricts it."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from mlmjax.core.axes import per_shard, platform
from mlmjax.core.errors import UserError
from mlmjax.nn.blockwise import PADDING, blockwise_attention
from mlmjax.nn.dropout import dropout
from mlmjax.nn.linear import Linear
from mlmjax.nn.splash import splash_attention

Implementation = Literal["xla", "blockwise", "flash", "splash", "cudnn"]
"""``xla`` holds all scores of a row at once, and alone has dropout. With the others memory grows as the length, not
its square: ``blockwise`` in XLA, on any platform; ``splash`` on TPUs; ``cudnn`` on NVIDIA GPUs in half precision;
``flash`` is whichever of these three suits the platform."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Visibility:
    """Who may attend to whom: every position to every valid position, in packed rows of its own document.

    Attributes:
        valid: is there a token at this position? Padding stands at the end of a row, is seen by no token, and what
            it sees itself is left to the implementation. None where no position is padding, as in images: then
            attention needs no mask.
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

    def segments(self) -> Int[Array, "batch length"] | None:
        """The number of each position's segment, such that tokens of one see each other; padding is one of its own.

        None where every position sees every other.
        """
        if self.valid is None:
            return self.documents
        documents = jnp.zeros((), jnp.int32) if self.documents is None else self.documents
        return jnp.where(self.valid, documents, PADDING)


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
            mixed = attention(query, keys, value, visibility, implementation=self.implementation)
        else:
            mixed = plain_attention(
                query, keys, value, mask=visibility.mask(), rate=self.dropout, key=key
            )
        return self.out(mixed)


def attention(
    query: Float[Array, "batch length heads size"],
    keys: Float[Array, "batch length heads size"],
    value: Float[Array, "batch length heads size"],
    visibility: Visibility,
    *,
    implementation: Implementation,
) -> Float[Array, "batch length heads size"]:
    """Attention of a row's positions to each other, without dropout; softmax is float32.

    Raises:
        UserError: the implementation is for another platform.
    """
    chosen = _chosen(implementation, query, visibility)
    if chosen == "xla":
        return plain_attention(query, keys, value, mask=visibility.mask())
    if chosen == "blockwise":
        return blockwise_attention(query, keys, value, visibility.segments())
    places = ("batch", None, "heads", None)
    kernel = per_shard(
        _splash if chosen == "splash" else _cudnn,
        inputs=(places, places, places, ("batch",)),
        output=places,
    )
    return kernel(query, keys, value, visibility)


def _chosen(implementation: Implementation, query: Array, visibility: Visibility) -> Implementation:
    """The implementation on the platform that the program is for."""
    place = platform()
    if implementation == "flash":
        if place == "tpu":
            return "splash"
        return "cudnn" if place == "gpu" and _cudnn_takes(query, visibility) else "blockwise"
    needed = {"splash": "tpu", "cudnn": "gpu"}.get(implementation)
    if needed in (None, place):
        return implementation
    if place is None:
        return "blockwise"  # what is only counted: its products are the same
    raise UserError(
        f"attention '{implementation}' is a kernel for {needed.upper()}s, and this program is for a "
        f"{place.upper()}: set attention to 'flash', which chooses by platform, or to 'xla'."
    )


def _cudnn_takes(query: Array, visibility: Visibility) -> bool:
    """Whether cuDNN has a kernel for these arrays and this GPU: in half precision, from Ampere on."""
    _, length, _, size = query.shape
    if query.dtype not in (jnp.bfloat16, jnp.float16) or size % 8 or size > 128:
        return False
    if visibility.documents is not None and length % 2:
        return False  # it takes a mask of even length alone
    capability = getattr(jax.local_devices(backend="gpu")[0], "compute_capability", "")
    major, _, _ = capability.partition(".")
    return major.isdecimal() and int(major) >= 8


def _splash(query: Array, keys: Array, value: Array, visibility: Visibility) -> Array:
    return splash_attention(query, keys, value, visibility.segments())


def _cudnn(query: Array, keys: Array, value: Array, visibility: Visibility) -> Array:
    """Padding is told by the length of each row; what tells documents apart is a mask, one for all heads.

    That one does grow with the square of the length. cuDNN can be told where each document begins instead, to which
    jax has no public way.
    """
    lengths = mask = None
    if visibility.documents is not None:
        mask = visibility.mask()
    elif visibility.valid is not None:
        # A row that is nothing but padding sees its first place: with none at all a mean would be over nothing.
        lengths = jnp.maximum(visibility.valid.sum(axis=1, dtype=jnp.int32), 1)
    return jax.nn.dot_product_attention(
        query, keys, value, mask=mask, key_value_seq_lengths=lengths, implementation="cudnn"
    )


def plain_attention(
    query: Float[Array, "batch queries heads size"],
    keys: Float[Array, "batch keys heads size"],
    value: Float[Array, "batch keys heads size"],
    *,
    mask: Bool[Array, "#batch #heads #queries keys"] | None,
    rate: float = 0.0,
    key: Key[Array, ""] | None = None,
) -> Float[Array, "batch queries heads size"]:
    """Attention by all scores at once, and with dropout on its probabilities; softmax is float32.

    BERT drops attention probabilities (Devlin et al. 2019, appendix A.2). ``jax.nn.dot_product_attention`` has no
    dropout, and in half precision its backward pass multiplies in float32.
    """
    scores = _scores(query, keys) * query.shape[-1] ** -0.5
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
    probabilities = dropout(jax.nn.softmax(scores), rate, key=key).astype(value.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", probabilities, value)


@jax.custom_vjp
def _scores(
    query: Float[Array, "batch queries heads size"], keys: Float[Array, "batch keys heads size"]
) -> Float[Array, "batch heads queries keys"]:
    """Products of queries and keys: float32, made of operands of their own type, forward and backward."""
    return jnp.einsum("bqhd,bkhd->bhqk", query, keys, preferred_element_type=jnp.float32)


def _scores_forward(query: Array, keys: Array) -> tuple[Array, tuple[Array, Array]]:
    return _scores(query, keys), (query, keys)


def _scores_backward(kept: tuple[Array, Array], upstream: Array) -> tuple[Array, Array]:
    query, keys = kept
    upstream = upstream.astype(query.dtype)
    to_query = jnp.einsum("bhqk,bkhd->bqhd", upstream, keys)
    return to_query, jnp.einsum("bhqk,bqhd->bkhd", upstream, query)


_scores.defvjp(_scores_forward, _scores_backward)
