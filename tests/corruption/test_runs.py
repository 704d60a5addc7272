"""Runs of neighbouring positions, against a plain loop."""

import jax
import jax.numpy as jnp
from hypothesis import given
from hypothesis import strategies as st

from mlmjax.core.types import Mask
from mlmjax.corruption import runs

LENGTH, CAPACITY = 16, 9

chosen = st.sets(st.integers(0, LENGTH - 1), max_size=CAPACITY)
find = jax.jit(runs)


def places(positions):
    """Positions and weights of one mask; unused places hold 0."""
    unused = CAPACITY - len(positions)
    return [*sorted(positions), *[0] * unused], [1.0] * len(positions) + [0.0] * unused


@given(first=chosen, second=chosen)
def test_a_run_goes_as_far_as_neighbours_are_selected(first, second):
    """In both rows of a batch; an unused place is a run of its own."""
    rows = [places(first), places(second)]
    mask = Mask(*(jnp.asarray(part) for part in zip(*rows, strict=True)))
    found = find(mask)
    for row, positions in enumerate((first, second)):
        for place, position in enumerate(sorted(positions)):
            start = end = position
            while start - 1 in positions:
                start -= 1
            while end + 1 in positions:
                end += 1
            assert (int(found.start[row, place]), int(found.end[row, place])) == (start, end)
        assert not found.start[row, len(positions) :].any()
        assert not found.end[row, len(positions) :].any()
