"""Attention by jax's kernel for TPUs, which never holds the score matrix ("splash attention")."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mlmjax.nn.blockwise import PADDING, SAVED, block_length, lengthened

LANES = 128
"""The kernel's blocks are multiples of this."""


def splash_attention(
    query: Float[Array, "batch length heads size"],
    keys: Float[Array, "batch length heads size"],
    value: Float[Array, "batch length heads size"],
    segments: Int[Array, "batch length"] | None = None,
    *,
    interpret: bool = False,
) -> Float[Array, "batch length heads size"]:
    """Attention of a row's positions to those of the same segment; softmax is float32.

    Rows are lengthened to a multiple of the kernel's blocks, and these places are a segment of their own.

    Args:
        query: of each position.
        keys: of each position.
        value: of each position.
        segments: its number; by default a row is one segment.
        interpret: run the kernel's program step by step on any platform, for tests.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel as splash,
    )
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    batch, length, heads, size = query.shape
    block = block_length(length, multiple=LANES)
    more = -length % block
    if more and segments is None:
        segments = jnp.zeros((batch, length), jnp.int32)
    whole = masks.FullMask((length + more, length + more))
    sizes = splash.BlockSizes(
        block_q=block,
        block_kv=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_q_dq=block,
        block_kv_dq=block,
    )
    kernel = splash.make_splash_mha_single_device(
        masks.MultiHeadMask([whole] * heads),
        block_sizes=sizes,
        residual_checkpoint_name=SAVED,
        interpret=interpret,
    )
    query = query * size**-0.5  # which the kernel leaves to its caller
    arrays = (lengthened(each, more).swapaxes(1, 2) for each in (query, keys, value))
    ids = None
    if segments is not None:
        segments = lengthened(segments, more, fill=PADDING)
        ids = splash.SegmentIds(segments, segments)
    return jax.vmap(kernel)(*arrays, ids).swapaxes(1, 2)[:, :length]
