"""Packed rows: several documents in a row, each treated as if it had the row to itself.

A packed row is a batch of documents. :func:`unpack` gives each a row of its own, in which it starts at 0; a
function of one example, mapped over them with the documents' own keys, then depends on nothing else: not on the
neighbours of a document, its place, or the number of documents. :func:`pack_masks` puts their masks into one.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Shaped

from mlmjax.core.types import Mask


class PackedMask(NamedTuple):
    """The masks of the documents of a row as one.

    Attributes:
        mask: of the row.
        source: which place of the documents' masks, laid end to end, each place holds; beyond the last of them
            where it is unused. What belongs to the places is brought along by :func:`taken`.
    """

    mask: Mask
    source: Int[Array, " capacity"]


def document_positions(documents: Int[Array, "*batch length"]) -> Int[Array, "*batch length"]:
    """The position of each token within its document, counted from 0.

    Args:
        documents: the number of each token's document, ascending; that of padding is as good as another.
    """
    place = jnp.arange(documents.shape[-1], dtype=documents.dtype)
    changes = jnp.diff(documents, axis=-1, prepend=documents[..., :1]) != 0
    start = jax.lax.cummax(jnp.where(changes, place, 0), axis=documents.ndim - 1)
    return place - start


def document_starts(documents: Int[Array, " length"], count: int) -> Int[Array, " {count}"]:
    """Where each document of a row starts; the end of the tokens, for one that is not there."""
    return (documents < jnp.arange(count)[:, None]).sum(axis=1, dtype=documents.dtype)


def unpack(
    values: Shaped[Array, " length"], documents: Int[Array, " length"], *, count: int
) -> Shaped[Array, "{count} length"]:
    """Each document of a row in a row of its own, from position 0 on; zero or False behind its end.

    Args:
        values: one a token.
        documents: the number of each token's document, ascending from 0; at least ``count`` where there is
            padding.
        count: documents in a row at most.
    """
    sizes = (documents == jnp.arange(count)[:, None]).sum(axis=1)
    starts, blank = document_starts(documents, count), jnp.zeros_like(values)
    longer = jnp.concatenate([values, blank])
    moved = jax.vmap(lambda start: jax.lax.dynamic_slice_in_dim(longer, start, values.size))(starts)
    return jnp.where(jnp.arange(values.size) < sizes[:, None], moved, blank)


def pack_masks(masks: Mask, documents: Int[Array, " length"], *, capacity: int) -> PackedMask:
    """One mask of a row from the masks of its documents, whose positions count within each.

    Args:
        masks: one a document, stacked.
        documents: the number of each token's document, ascending from 0.
        capacity: places in the row's mask (:func:`packed_capacity`). Where the documents have more targets, the
            last ones of the row fall out.
    """
    count, places = masks.positions.shape
    starts = document_starts(documents, count)
    source = jnp.flatnonzero(masks.weight > 0, size=capacity, fill_value=count * places)
    positions = masks.positions + starts[:, None]
    return PackedMask(Mask(taken(positions, source), taken(masks.weight, source)), source)


def taken(
    values: Shaped[Array, "documents places"], source: Int[Array, " capacity"], *, fill: int = 0
) -> Shaped[Array, " capacity"]:
    """What the places of a packed mask hold, of something that there is for each place of the documents' masks."""
    return values.reshape(-1).at[source].get(mode="fill", fill_value=fill)


def packed_capacity(capacity: int, *, length: int, documents: int) -> int:
    """Places in the mask of a packed row.

    Of the n tokens of a document an exact count takes max(1, round(ratio * n)) <= ratio * n + 1, so all fit. Only
    where many documents consist of words larger than their share may there be more.

    Args:
        capacity: of an unpacked row of the same length.
        length: tokens in a row.
        documents: in a row at most.
    """
    return min(length, capacity + documents)
