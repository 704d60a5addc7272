"""Cross-entropy by log-sum-exp, in float32: plain, and in chunks over a large vocabulary.

Most of the memory of masked language modelling's loss is the logits [tokens, vocabulary], their
softmax and its gradient. :func:`chunked_cross_entropy` holds one chunk of columns at a time:
forward keeps a running maximum and sum (the online softmax of Milakov and Gimelshein 2018, "Online
normalizer calculation for softmax", section 3) and, of all its work, only the log-sum-exp of each
token; backward computes each chunk's logits again.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from mlmjax.core.errors import UserError

_Carry = tuple[Array, Array, Array]
_LOWEST = float(jnp.finfo(jnp.float32).min)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TokenLoss:
    """What cross-entropy says of each target.

    Attributes:
        loss: -log p(label), in nats, float32; infinite where the label is none of the columns.
        correct: whether no column has a larger logit than the label. It has no gradient.
    """

    loss: Float[Array, "*places"]
    correct: Bool[Array, "*places"]


def cross_entropy(
    logits: Float[Array, "tokens columns"], labels: Int[Array, " tokens"]
) -> TokenLoss:
    """-log softmax(logits)[label] of each row, in float32.

    Args:
        logits: scores of any float type; a column at -inf has probability 0.
        labels: the column that is right, in [0, columns).
    """
    logits = logits.astype(jnp.float32)
    hits = labels[:, None] == jnp.arange(logits.shape[-1])
    label = jnp.where(hits, logits, -jnp.inf).max(axis=-1)
    return TokenLoss(jax.nn.logsumexp(logits, axis=-1) - label, label >= logits.max(axis=-1))


def full_cross_entropy(
    hidden: Float[Array, "tokens hidden"],
    table: Float[Array, "columns hidden"],
    bias: Float[Array, " columns"],
    labels: Int[Array, " tokens"],
    *,
    vocabulary: int,
) -> TokenLoss:
    """:func:`chunked_cross_entropy` with all logits in memory at once: the reference for it."""
    _check(table, vocabulary)
    logits = _project(hidden, table.astype(hidden.dtype)) + bias.astype(jnp.float32)
    live = jnp.arange(table.shape[0]) < vocabulary
    return cross_entropy(jnp.where(live, logits, -jnp.inf), labels)


def chunked_cross_entropy(
    hidden: Float[Array, "tokens hidden"],
    table: Float[Array, "columns hidden"],
    bias: Float[Array, " columns"],
    labels: Int[Array, " tokens"],
    *,
    vocabulary: int,
    chunk: int = 4096,
) -> TokenLoss:
    """Cross-entropy of ``hidden @ table.T + bias``, whose logits never exist all at once.

    Products are taken in the type of ``hidden`` and added up in float32; the log-sum-exp, the loss
    and the gradient of each chunk are float32. Gradients have the types of the inputs.

    A table that is sharded over its columns stays so in every chunk if the number of columns is a
    multiple of (devices x a number of chunks), as one padded to a multiple of 128 mostly is.

    Args:
        hidden: one vector a target.
        table: one row a column of the softmax, such as the token embeddings.
        bias: one number a column.
        labels: the right token, in [0, vocabulary), also for targets whose weight is 0.
        vocabulary: the number of tokens; columns from there on are padding, with probability 0 and
            no gradient.
        chunk: about how many columns are in memory at once; the chunks are equal, none is larger.

    Raises:
        UserError: ``vocabulary`` does not lie in 1 .. columns, or ``chunk`` is below 1.
    """
    _check(table, vocabulary)
    if chunk < 1:
        raise UserError(f"chunk is {chunk}, but a chunk needs at least 1 column.")
    chunks = _Chunks.plan(table.shape[0], chunk)
    return TokenLoss(*_chunked(chunks, vocabulary, hidden, table, bias, labels))


def _check(table: Array, vocabulary: int) -> None:
    columns = table.shape[0]
    if not 1 <= vocabulary <= columns:
        raise UserError(
            f"vocabulary is {vocabulary}, but the table has {columns} columns: "
            f"give a number from 1 to {columns}, or a larger table."
        )


@dataclass(frozen=True)
class _Chunks:
    """Columns cut into ``count`` chunks of ``width``.

    Strided chunks (c, c + count, c + 2 count, ...) have a part on every device that holds a part of
    the table; contiguous ones would each lie on one device. Where ``count`` does not divide the
    columns the chunks are contiguous, and the last begins early: its first columns belong to the
    chunk before.
    """

    columns: int
    count: int
    width: int
    strided: bool

    @classmethod
    def plan(cls, columns: int, chunk: int) -> "_Chunks":
        least = -(-columns // chunk)
        # Among the counts that divide the columns, the one that leaves the width the most factors
        # of two, hence divisible by a number of devices.
        most = min(2 * least, columns)
        even = [count for count in range(least, most + 1) if columns % count == 0]
        if even:
            count = max(even, key=lambda count: (_twos(columns // count), -count))
            return cls(columns, count, columns // count, strided=True)
        width = -(-columns // least)
        return cls(columns, -(-columns // width), width, strided=False)

    def take(self, array: Array, index: Array) -> Array:
        """The rows of one chunk."""
        if self.strided:
            return lax.dynamic_index_in_dim(self._view(array), index, axis=1, keepdims=False)
        return lax.dynamic_slice_in_dim(array, self._start(index), self.width)

    def put(self, array: Array, rows: Array, index: Array) -> Array:
        """The array with one chunk's rows replaced."""
        if self.strided:
            view = lax.dynamic_update_index_in_dim(self._view(array), rows, index, axis=1)
            return view.reshape(array.shape)
        return lax.dynamic_update_slice_in_dim(array, rows, self._start(index), axis=0)

    def ids(self, index: Array) -> tuple[Int[Array, " width"], Bool[Array, " width"]]:
        """The columns of one chunk, and whether each belongs to it and not to the one before."""
        if self.strided:
            return jnp.arange(self.width) * self.count + index, jnp.ones(self.width, bool)
        ids = self._start(index) + jnp.arange(self.width)
        return ids, ids >= index * self.width

    def _start(self, index: Array) -> Array:
        return jnp.minimum(index * self.width, self.columns - self.width)

    def _view(self, array: Array) -> Array:
        return array.reshape(self.width, self.count, *array.shape[1:])


def _twos(number: int) -> int:
    """The largest power of two that divides a number."""
    return number & -number


def _project(hidden: Array, rows: Array) -> Float[Array, "tokens columns"]:
    return jnp.einsum("th,ch->tc", hidden, rows, preferred_element_type=jnp.float32)


def _chunk_logits(
    chunks: _Chunks, vocabulary: int, index: Array, hidden: Array, rows: Array, bias: Array
) -> tuple[Float[Array, "tokens width"], Int[Array, " width"]]:
    """One chunk's logits, and the token of each column; those not to be counted are -inf and -1."""
    ids, own = chunks.ids(index)
    live = own & (ids < vocabulary)
    logits = _project(hidden, rows) + chunks.take(bias, index).astype(jnp.float32)
    return jnp.where(live, logits, -jnp.inf), jnp.where(live, ids, -1)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _chunked(
    chunks: _Chunks, vocabulary: int, hidden: Array, table: Array, bias: Array, labels: Array
) -> tuple[Array, Array]:
    return _forward(chunks, vocabulary, hidden, table, bias, labels)[0]


def _forward(
    chunks: _Chunks, vocabulary: int, hidden: Array, table: Array, bias: Array, labels: Array
) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    def add(carry: _Carry, index: Array) -> tuple[_Carry, None]:
        top, total, label = carry
        rows = chunks.take(table, index).astype(hidden.dtype)
        logits, ids = _chunk_logits(chunks, vocabulary, index, hidden, rows, bias)
        higher = jnp.maximum(top, logits.max(axis=1))
        total = total * jnp.exp(top - higher) + jnp.exp(logits - higher[:, None]).sum(axis=1)
        hits = jnp.where(labels[:, None] == ids, logits, -jnp.inf)
        return (higher, total, jnp.maximum(label, hits.max(axis=1))), None

    tokens = hidden.shape[0]
    # A finite start: a chunk of padding alone must give exp(lowest - lowest), not exp(-inf + inf).
    start = (jnp.full(tokens, _LOWEST), jnp.zeros(tokens), jnp.full(tokens, -jnp.inf))
    (top, total, label), _ = lax.scan(add, start, jnp.arange(chunks.count))
    logsumexp = top + jnp.log(total)
    return (logsumexp - label, label >= top), (hidden, table, bias, labels, logsumexp)


def _backward(
    chunks: _Chunks, vocabulary: int, kept: tuple[Array, ...], cotangents: tuple[Array, Any]
) -> tuple[Array, Array, Array, None]:
    hidden, table, bias, labels, logsumexp = kept
    upstream, _ = cotangents

    def add(carry: _Carry, index: Array) -> tuple[_Carry, None]:
        hidden_grad, table_grad, bias_grad = carry
        rows = chunks.take(table, index).astype(hidden.dtype)
        logits, ids = _chunk_logits(chunks, vocabulary, index, hidden, rows, bias)
        error = jnp.exp(logits - logsumexp[:, None]) - (labels[:, None] == ids)
        error = error * upstream[:, None]
        bias_rows = error.sum(axis=0).astype(bias.dtype)
        error = error.astype(hidden.dtype)
        product = partial(jnp.einsum, preferred_element_type=jnp.float32)
        table_rows = product("tc,th->ch", error, hidden).astype(table.dtype)
        return (
            hidden_grad + product("tc,ch->th", error, rows),
            chunks.put(table_grad, table_rows, index),
            chunks.put(bias_grad, bias_rows, index),
        ), None

    start = (jnp.zeros(hidden.shape), jnp.zeros_like(table), jnp.zeros_like(bias))
    # Last chunk first: what it wrongly writes to columns of the chunk before is overwritten.
    (hidden_grad, table_grad, bias_grad), _ = lax.scan(
        add, start, jnp.arange(chunks.count), reverse=True
    )
    return hidden_grad.astype(hidden.dtype), table_grad, bias_grad, None


_chunked.defvjp(_forward, _backward)
