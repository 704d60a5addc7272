"""A document is hidden alike wherever it lies: in a row of its own, or among any neighbours."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Array

from mlmjax.core.types import Batch, Context, Mask
from mlmjax.corruption import Corrupted, Kind, TokenCorruption
from mlmjax.masking import Row, SpanSelection, TokenSelection, WordSelection, eligible_tokens
from mlmjax.masking.base import as_mask
from mlmjax.objectives.hiding import Keys, Masked, hide_documents
from mlmjax.objectives.mlm import MaskedLanguageModel
from tests.objectives.examples import DOCUMENTS, LENGTH, ROWS, SIZES, VOCABULARY, alone, packed

OBJECTIVES = {
    "tokens": MaskedLanguageModel(),
    "bernoulli": MaskedLanguageModel(
        selection=TokenSelection(count="bernoulli", at_least_one=True)
    ),
    "words": MaskedLanguageModel(selection=WordSelection(), static_masks=3),
    "spans": MaskedLanguageModel(
        selection=SpanSelection(), corruption=TokenCorruption(unit="span")
    ),
}
EPOCH = 5


@jax.jit
def mask(batch: Batch) -> dict[str, Masked]:
    """What each objective hides, in one program: compiling is nearly all of the time."""
    every = {name: one.fitted(VOCABULARY) for name, one in OBJECTIVES.items()}
    return {name: one.mask(batch, Context.of(3)) for name, one in every.items()}


@cache
def hidden() -> dict[str, Masked]:
    """What is hidden of each document in a row of its own."""
    return jax.device_get(mask(alone(EPOCH)))


@st.composite
def rows(draw: st.DrawFn) -> list[list[int]]:
    """Some documents, in any order, each in the first row that has room."""
    order = draw(st.permutations(range(len(SIZES))))
    rows: list[list[int]] = [[] for _ in range(ROWS)]
    for document in order[: draw(st.integers(1, len(order)))]:
        for row in rows:
            if sum(SIZES[each] for each in row) + SIZES[document] <= LENGTH and len(row) < 5:
                row.append(document)
                break
    return rows


def places(masked: Masked, row: int) -> tuple[np.ndarray, np.ndarray]:
    """The targets' positions, and their kinds, in one row."""
    used = masked.mask.weight[row] > 0
    return masked.mask.positions[row][used], masked.corrupted.kind[row][used]


@given(rows=rows())
def test_a_document_is_hidden_alike_wherever_it_lies(rows: list[list[int]]) -> None:
    every = jax.device_get(mask(packed(rows, EPOCH)))
    for name, single in hidden().items():
        for row, documents in enumerate(rows):
            check_row(every[name], row, documents, single)


def check_row(found: Masked, row: int, documents: list[int], single: Masked) -> None:
    """A packed row is hidden as its documents are one by one."""
    positions, kinds, targets, begin = [], [], [], 0
    for document in documents:
        size = SIZES[document]
        at, kind = places(single, document)
        positions += (at + begin).tolist()
        kinds += kind.tolist()
        targets += single.targets[document][: at.size].tolist()
        shown = found.corrupted.tokens[row, begin : begin + size]
        np.testing.assert_array_equal(shown, single.corrupted.tokens[document, :size])
        begin += size
    got, got_kinds = places(found, row)
    assert got.tolist() == positions
    assert got_kinds.tolist() == kinds
    assert found.targets[row][: got.size].tolist() == targets
    unused = found.mask.weight[row] == 0
    assert (found.corrupted.kind[row][unused] == Kind.KEEP).all()
    assert not found.mask.positions[row][unused].any()
    assert (found.corrupted.tokens[row, begin:] == VOCABULARY.padding).all()


def test_every_document_has_a_target_however_short() -> None:
    """The shortest has one token beside the special ones; in 20 epochs."""
    packing = [[0, 1, 2, 3, 4], [5, 6, 7], [8], [9]]
    for epoch in range(20):
        batch = packed(packing, epoch)
        for found in jax.device_get(mask(batch)).values():
            targets = np.asarray(found.mask.dense(LENGTH)) > 0
            for row, documents in enumerate(packing):
                for number in range(len(documents)):
                    assert targets[row][batch["documents"][row] == number].any()
            assert not (targets & ~found.eligible).any()


def test_what_falls_out_of_the_mask_is_not_hidden() -> None:
    """All ordinary tokens are to be hidden, more than the mask of a row has places."""

    def hide(keys: Keys, row: Row, tokens: Array) -> tuple[Mask, Corrupted]:
        mask = as_mask(row.eligible, LENGTH)
        return mask, Corrupted(jnp.where(row.eligible, VOCABULARY.mask, tokens), 0 * mask.positions)

    batch = packed([[5, 6, 7]])
    tokens, documents = batch["tokens"][0], batch["documents"][0]
    eligible = eligible_tokens(tokens, batch["valid"][0], special=VOCABULARY.special)
    row = Row(eligible, eligible, eligible, jnp.ones(LENGTH))
    keys = Keys(*jax.random.split(jax.random.key(0), (2, DOCUMENTS)))
    documents_hidden = jax.jit(partial(hide_documents, hide, capacity=12))
    mask, corrupted = documents_hidden(keys, row, tokens, documents)
    targets = np.flatnonzero(eligible)
    assert mask.positions.tolist() == targets[:12].tolist()
    assert mask.weight.all()
    wanted = np.asarray(tokens).copy()
    wanted[targets[:12]] = VOCABULARY.mask
    np.testing.assert_array_equal(corrupted.tokens, wanted)
