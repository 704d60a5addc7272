"""The spans behind the masks of a batch, and their lengths."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from mlmjax.core.types import Batch, Context
from mlmjax.masking import Row, SpanLaw, eligible_tokens, word_numbers
from mlmjax.masking.base import exact_count
from mlmjax.masking.packed import unpack
from mlmjax.masking.units import unit_sizes
from mlmjax.objectives.hiding import example_keys
from mlmjax.objectives.mlm import MaskedLanguageModel


class Spans(NamedTuple):
    """Lengths of the spans of each row, or of each document in a packed row.

    Attributes:
        length: of the spans in the order in which they were selected, in units; 0 beyond the last.
        whole: whether no budget could have cut the span, whatever its length; so that these lengths are
            independent draws from the law.
    """

    length: Int[Array, "*batch spans"]
    whole: Bool[Array, "*batch spans"]


def drawn_spans(objective: MaskedLanguageModel, batch: Batch, context: Context) -> Spans:
    """The spans that ``objective.mask`` selects, whose selection is a :class:`SpanLaw`."""
    selection, vocabulary, tokens = objective.selection, objective.vocabulary, batch["tokens"]
    assert isinstance(selection, SpanLaw)
    assert vocabulary is not None
    ratio, places = objective.ratio(context.step), objective.capacity(tokens.shape[1])
    epoch = batch["epoch"] % objective.static_masks if objective.static_masks else batch["epoch"]
    rows = Row(
        eligible=eligible_tokens(tokens, batch["valid"], special=vocabulary.special),
        word_starts=batch["word_starts"],
        sentence_starts=batch["sentence_starts"],
        frequency=batch["frequency"],
    )

    def one(key: Key[Array, ""], row: Row) -> Spans:
        number = selection.spans(key, row, ratio=ratio, capacity=places, step=context.step)
        starts = selection.unit_starts(row)
        unit = word_numbers(row.eligible, jnp.ones_like(row.eligible) if starts is None else starts)
        begins = row.eligible & (jnp.diff(unit, prepend=-1) != 0)
        length = jnp.zeros(unit.size, jnp.int32)
        length = length.at[jnp.where(begins & (number >= 0), number, unit.size)].add(1, mode="drop")
        budget = exact_count(row.eligible.sum(), ratio)
        most = selection.law().size * jnp.maximum(unit_sizes(unit).max(), 1)
        return Spans(length, (jnp.arange(unit.size) < budget // most) & (length > 0))

    def packed(keys: Key[Array, " documents"], row: Row, documents: Int[Array, " length"]) -> Spans:
        apart = jax.tree.map(lambda each: unpack(each, documents, count=keys.size), row)
        return jax.vmap(one)(keys, apart)

    if "documents" in batch:
        keys = example_keys(context.seed, epoch, batch["document_ids"]).mask
        return jax.vmap(packed)(keys, rows, batch["documents"])
    return jax.vmap(one)(example_keys(context.seed, epoch, batch["id"]).mask, rows)
