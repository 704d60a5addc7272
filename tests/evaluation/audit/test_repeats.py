"""Identical masks: the counts against all pairs one by one, and tests that alarm when they should."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlmjax.evaluation.audit.repeats import Fingerprints, few_alike

LENGTH = 6


def one_part(selected):
    """All tokens of a row in one part."""
    return np.zeros(selected.shape, np.int64)


def filled(run, reference=None):
    """Fingerprints of masks [epochs, examples, length]; without a reference, the run is its own."""
    prints = Fingerprints()
    for drawn, masks in ((True, run), (False, run if reference is None else reference)):
        for epoch, selected in enumerate(masks):
            prints.add(
                selected,
                one_part(selected),
                example=np.arange(len(selected)),
                epoch=epoch,
                drawn=drawn,
            )
    return prints


masks = st.lists(
    st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=5, max_size=5),
    min_size=1,
    max_size=3,
).map(np.array)


@given(masks)
def test_pairs_are_counted_one_by_one(run):
    prints = filled(run)
    items = [(example, tuple(m)) for epoch in run for example, m in enumerate(epoch) if m.any()]
    other = [(a, b) for (i, a), (j, b) in combinations(items, 2) if i != j]
    own = [(a, b) for (i, a), (j, b) in combinations(items, 2) if i == j]
    for found, pairs in ((prints.between_examples(), other), (prints.between_epochs(), own)):
        assert found.compared == len(pairs)
        assert found.identical == found.chance == sum(a == b for a, b in pairs)


def random_masks(draw, *, examples=300, epochs=2, kinds=4):
    """Masks of single positions, of which there are few: chance repeats most of them."""
    place = draw.integers(kinds, size=(epochs, examples))
    return place[..., None] == np.arange(LENGTH)


def test_independent_masks_alarm_as_rarely_as_the_p_value_says():
    draw = np.random.default_rng(1)
    p = []
    for _ in range(120):
        prints = filled(random_masks(draw, examples=40), random_masks(draw, examples=40))
        p.append((prints.between_examples().p, prints.between_epochs().p))
    # Five standard deviations above what independence gives.
    for level in (0.05, 0.2, 0.5):
        assert (np.array(p) <= level).mean(axis=0).max() <= level + 5 * np.sqrt(level / 120)


def test_rows_with_one_possible_mask_are_no_alarm():
    fixed = np.tile(np.arange(LENGTH) == 2, (3, 500, 1))
    prints = filled(fixed, fixed)
    assert prints.between_epochs().identical == prints.between_epochs().compared == 500 * 3
    assert not prints.between_epochs().suspicious
    assert not prints.between_examples().suspicious


@pytest.mark.parametrize("shared", ["epochs", "examples", "next epoch"])
def test_keys_that_are_shared_are_found(shared):
    draw = np.random.default_rng(2)
    run, reference = draw.random((2, 3, 400, 64)) < 0.15
    if shared == "epochs":  # a key that leaves out the epoch, in one example of ten
        run[1:, ::10] = run[0, ::10]
    elif shared == "examples":  # a key that leaves out the last bit of the id
        run[:, 1:80:2] = run[:, 0:80:2]
    else:  # a key of id + epoch
        run[1:, :-1] = run[:-1, 1:]
    prints = filled(run, reference)
    examples, epochs = prints.between_examples(), prints.between_epochs()
    assert examples.suspicious == (shared != "epochs")
    assert epochs.suspicious == (shared == "epochs")
    assert examples.chance == epochs.chance == 0


def test_documents_are_compared_wherever_they_lie_in_a_row():
    first = np.array([[0, 1, 0, 0, 1, 0], [1, 0, 0, 1, 0, 0]], bool)
    part = np.array([[0, 0, 1, 1, 1, -1], [0, 0, 0, 1, 1, -1]])
    prints = Fingerprints()
    for drawn in (True, False):
        prints.add(first, part, example=np.arange(2), epoch=0, drawn=drawn)
    # Second tokens of the first row's first document; third of its second; first ones in the other row.
    assert prints.between_examples().compared == 4
    assert prints.between_examples().identical == 0
    prints = Fingerprints()
    part[1] = [-1, -1, 0, 0, -1, -1]
    for drawn in (True, False):
        prints.add(first, part, example=np.arange(2), epoch=0, drawn=drawn)
    assert prints.between_examples().identical == 1


def test_few_alike():
    assert few_alike(0, 0, at_most=0.25).p == 1
    assert not few_alike(100, 20, at_most=0.25).suspicious
    assert few_alike(10, 10, at_most=0.25).suspicious
