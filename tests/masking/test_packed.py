"""Packed rows: each document apart, and their masks together again."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlmjax.core.types import Mask
from mlmjax.masking.base import exact_count
from mlmjax.masking.packed import (
    document_positions,
    pack_masks,
    packed_capacity,
    taken,
    unpack,
)

LENGTH, DOCUMENTS = 20, 5

lengths = st.lists(st.integers(1, LENGTH), max_size=DOCUMENTS).filter(
    lambda sizes: sum(sizes) <= LENGTH
)


def numbers(sizes):
    """The number of each token's document, given the documents' lengths."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    padding = np.full(LENGTH - owner.size, DOCUMENTS)
    return jnp.asarray(np.concatenate([owner, padding]), jnp.int32)


positions_of = jax.jit(document_positions)
apart = jax.jit(lambda values, documents: unpack(values, documents, count=DOCUMENTS))
together = jax.jit(
    lambda masks, documents: pack_masks(masks, documents, capacity=8),
)


@given(sizes=lengths)
def test_positions_start_anew_in_each_document(sizes):
    found = np.asarray(positions_of(numbers(sizes)))
    used = sum(sizes)
    wanted = [place for size in [*sizes, LENGTH - used] for place in range(size)]
    assert found.tolist() == wanted
    both = positions_of(jnp.stack([numbers(sizes), numbers([LENGTH])]))
    np.testing.assert_array_equal(both, [wanted, np.arange(LENGTH)])


@given(sizes=lengths)
def test_documents_are_moved_to_rows_of_their_own(sizes):
    values = np.arange(1, LENGTH + 1)
    found = np.asarray(apart(jnp.asarray(values), numbers(sizes)))
    begins = np.cumsum([0, *sizes])
    for document, row in enumerate(found):
        size = sizes[document] if document < len(sizes) else 0
        wanted = values[begins[document] : begins[document] + size] if size else []
        assert row.tolist() == [*wanted, *[0] * (LENGTH - size)]
    assert apart(jnp.ones(LENGTH, bool), numbers(sizes)).sum() == sum(sizes)


@given(sizes=lengths, seed=st.integers(0, 2**31 - 1))
def test_masks_are_put_together_in_order(sizes, seed):
    """As lists; what is beyond the capacity falls out at the end, and places bring along what is theirs."""
    rng = np.random.default_rng(seed)
    begins, wanted = np.cumsum([0, *sizes]), []
    positions, weight = np.zeros((DOCUMENTS, 6), np.int32), np.zeros((DOCUMENTS, 6), np.float32)
    for document, size in enumerate(sizes):
        chosen = np.sort(rng.choice(size, rng.integers(0, min(size, 6) + 1), replace=False))
        positions[document, : chosen.size], weight[document, : chosen.size] = chosen, 1
        wanted += [(begins[document] + place, document) for place in chosen]
    mask, source = together(Mask(jnp.asarray(positions), jnp.asarray(weight)), numbers(sizes))
    used = len(wanted[:8])
    assert mask.weight.tolist() == [1.0] * used + [0.0] * (8 - used)
    assert mask.positions.tolist() == [at for at, _ in wanted[:8]] + [0] * (8 - used)
    owner = np.broadcast_to(np.arange(DOCUMENTS)[:, None], weight.shape)
    brought = taken(jnp.asarray(owner), source, fill=9).tolist()
    assert brought == [document for _, document in wanted[:8]] + [9] * (8 - used)


@given(sizes=lengths, percent=st.integers(1, 100))
def test_the_capacity_holds_the_exact_counts_of_any_documents(sizes, percent):
    ratio = percent / 100
    count = sum(int(exact_count(jnp.int32(size), ratio)) for size in sizes)
    whole = int(exact_count(jnp.int32(LENGTH), ratio))
    assert count <= packed_capacity(whole, length=LENGTH, documents=DOCUMENTS) <= LENGTH
