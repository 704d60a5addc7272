"""Attention in blocks: the scores of some queries and some keys at a time, so that memory grows as the length.

The softmax is put together from its parts as the blocks come (Dao et al. 2022, "FlashAttention", algorithms 1 and
4). Plain XLA, for any platform.
"""

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int, Shaped

LONGEST = 512
"""Positions in a block at most."""

PADDING = -1
"""The segment of padding."""

SAVED = "attention"
"""The name of what attention in blocks keeps for its backward pass: its output, and one number a query."""

LOWEST = float(jnp.finfo(jnp.float32).min)


def block_length(length: int, *, multiple: int = 1) -> int:
    """Positions in each of the equal blocks that a row is cut into: as few blocks as can be, as little padding."""
    blocks = -(-length // LONGEST)
    return -(-length // (blocks * multiple)) * multiple


def lengthened(
    values: Shaped[Array, "batch length *rest"], more: int, *, fill: int = 0
) -> Shaped[Array, "batch longer *rest"]:
    """Rows with more positions at their ends."""
    widths = [(0, 0), (0, more)] + [(0, 0)] * (values.ndim - 2)
    return jnp.pad(values, widths, constant_values=fill)


def blockwise_attention(
    query: Float[Array, "batch length heads size"],
    keys: Float[Array, "batch length heads size"],
    value: Float[Array, "batch length heads size"],
    segments: Int[Array, "batch length"] | None = None,
    *,
    block: int | None = None,
) -> Float[Array, "batch length heads size"]:
    """Attention of a row's positions to those of the same segment; softmax is float32.

    Args:
        query: of each position.
        keys: of each position.
        value: of each position.
        segments: its number; by default a row is one segment.
        block: positions in a block; by default at most :data:`LONGEST`, in blocks of one size.
    """
    length = query.shape[1]
    block = block_length(length) if block is None else block
    more = -length % block
    if more and segments is None:
        segments = jnp.zeros(query.shape[:2], jnp.int32)
    own = None if segments is None else _cut(lengthened(segments, more, fill=PADDING), block)
    parts = (_cut(lengthened(each, more), block) for each in (query, keys, value))
    mixed = _blockwise(*(each.swapaxes(2, 3) for each in parts), own)
    return jnp.moveaxis(mixed, (0, 3), (1, 2)).reshape(lengthened(query, more).shape)[:, :length]


def _cut(
    values: Shaped[Array, "batch longer *rest"], block: int
) -> Shaped[Array, "blocks batch block *rest"]:
    batch, length, *rest = values.shape
    return jnp.moveaxis(values.reshape(batch, length // block, block, *rest), 1, 0)


@jax.custom_vjp
def _blockwise(
    query: Float[Array, "blocks batch heads block size"],
    keys: Float[Array, "blocks batch heads block size"],
    value: Float[Array, "blocks batch heads block size"],
    segments: Int[Array, "blocks batch block"] | None,
) -> Float[Array, "blocks batch heads block size"]:
    return _forward(query, keys, value, segments)[0]


def _product(formula: str, *factors: Array) -> Array:
    return jnp.einsum(formula, *factors, preferred_element_type=jnp.float32)


def _scores(query: Array, keys: Array, own: Array | None, others: Array | None) -> Array:
    """Of a block of queries and one of keys; the lowest number where their segments are two."""
    scores = _product("bhqd,bhkd->bhqk", query, keys) * query.shape[-1] ** -0.5
    if own is None or others is None:
        return scores
    return jnp.where(own[:, None, :, None] == others[:, None, None, :], scores, LOWEST)


def _forward(
    query: Array, keys: Array, value: Array, segments: Array | None
) -> tuple[Array, tuple]:
    def of_queries(rows: tuple) -> tuple[Array, Array]:
        query, own = rows

        def add(found: tuple, columns: tuple) -> tuple[tuple, None]:
            mixed, top, total = found
            keys, value, others = columns
            scores = _scores(query, keys, own, others)
            new = jnp.maximum(top, scores.max(axis=-1, keepdims=True))
            weights, shrunk = jnp.exp(scores - new), jnp.exp(top - new)
            total = total * shrunk + weights.sum(axis=-1, keepdims=True)
            part = _product("bhqk,bhkd->bhqd", weights.astype(value.dtype), value)
            return (mixed * shrunk + part, new, total), None

        one = jnp.zeros((*query.shape[:-1], 1))
        first = (jnp.zeros(query.shape), one + LOWEST, one)
        (mixed, top, total), _ = jax.lax.scan(add, first, (keys, value, segments))
        return (mixed / total).astype(query.dtype), top + jnp.log(total)

    mixed, level = jax.lax.map(of_queries, (query, segments))
    mixed, level = checkpoint_name(mixed, SAVED), checkpoint_name(level, SAVED)
    return mixed, (query, keys, value, segments, mixed, level)


def _backward(kept: tuple, upstream: Array) -> tuple[Array, Array, Array, None]:
    query, keys, value, segments, mixed, level = kept
    # The derivative of the softmax takes away what all keys have in common, which is known from the output.
    common = (upstream.astype(jnp.float32) * mixed).sum(axis=-1, keepdims=True)
    rows = (query, segments, upstream, common, level)

    def of_keys(to_query: Array, columns: tuple) -> tuple[Array, tuple[Array, Array]]:
        keys, value, others = columns

        def add(found: tuple[Array, Array], rows: tuple) -> tuple[tuple[Array, Array], Array]:
            query, own, upstream, common, level = rows
            weights = jnp.exp(_scores(query, keys, own, others) - level)
            slope = weights * (_product("bhqd,bhkd->bhqk", upstream, value) - common)
            slope = (slope * query.shape[-1] ** -0.5).astype(query.dtype)
            to_keys = found[0] + _product("bhqk,bhqd->bhkd", slope, query)
            to_value = found[1] + _product("bhqk,bhqd->bhkd", weights.astype(query.dtype), upstream)
            return (to_keys, to_value), _product("bhqk,bhkd->bhqd", slope, keys)

        none = jnp.zeros(keys.shape)
        (to_keys, to_value), more = jax.lax.scan(add, (none, none), rows)
        return to_query + more, (to_keys.astype(keys.dtype), to_value.astype(keys.dtype))

    none = jnp.zeros(query.shape)
    to_query, (to_keys, to_value) = jax.lax.scan(of_keys, none, (keys, value, segments))
    return to_query.astype(query.dtype), to_keys, to_value, None


_blockwise.defvjp(_forward, _backward)
