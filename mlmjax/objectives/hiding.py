"""What is hidden of a batch: mask and corruption of each row or, in packed rows, of each document.

One function hides one example. It is mapped over rows with their keys, or over the documents of packed rows with
theirs, so a document is hidden alike wherever it lies.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key, UInt32

from mlmjax.core import prng
from mlmjax.core.types import Mask
from mlmjax.corruption import Corrupted, Kind
from mlmjax.masking import Row
from mlmjax.masking.packed import pack_masks, taken, unpack


class Masked(NamedTuple):
    """A batch with part of it hidden.

    Attributes:
        eligible: positions that might have been selected.
        mask: those that are to be predicted.
        corrupted: what the encoder sees there, and the fate of each target.
        targets: the token ids to be predicted, at the mask's positions.
    """

    eligible: Bool[Array, "batch length"]
    mask: Mask
    corrupted: Corrupted
    targets: Int[Array, "batch capacity"]


class Keys(NamedTuple):
    """The keys of an example, one a use."""

    mask: Key[Array, "*examples"]
    corruption: Key[Array, "*examples"]


Hide = Callable[[Keys, Row, Int[Array, " length"]], tuple[Mask, Corrupted]]
"""Hides one example: its keys, what a selection sees of it, and its tokens."""


def example_keys(
    seed: Key[Array, ""], epoch: Int[Array, " batch"], ids: UInt32[Array, "batch *documents 2"]
) -> Keys:
    """The keys of each row or, where a row has an id for each of its documents, of each document."""

    def keys(name: str) -> Key[Array, "batch *documents"]:
        one = partial(prng.per_example, prng.stream(seed, name), epoch)
        return one(ids) if ids.ndim == 2 else jax.vmap(one, in_axes=1, out_axes=1)(ids)

    return Keys(keys("mask"), keys("corruption"))


def hide_documents(
    hide: Hide,
    keys: Keys,
    row: Row,
    tokens: Int[Array, " length"],
    documents: Int[Array, " length"],
    *,
    capacity: int,
) -> tuple[Mask, Corrupted]:
    """Hide each document of one packed row by itself.

    Args:
        hide: hides one example.
        keys: of each document.
        row: what a selection sees of the row.
        tokens: token ids.
        documents: the number of each token's document.
        capacity: places in the row's mask; what falls out of it is not hidden either.
    """
    apart = partial(unpack, documents=documents, count=keys.mask.size)
    masks, corrupted = jax.vmap(hide)(keys, jax.tree.map(apart, row), apart(tokens))
    mask, source = pack_masks(masks, documents, capacity=capacity)
    seen = taken(jnp.take_along_axis(corrupted.tokens, masks.positions, axis=1), source)
    places = jnp.where(mask.weight > 0, mask.positions, tokens.size)
    return mask, Corrupted(
        tokens=tokens.at[places].set(seen, mode="drop"),
        kind=taken(corrupted.kind, source, fill=Kind.KEEP),
    )
