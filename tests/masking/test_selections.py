"""What holds for every selection."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from pydantic import ValidationError
from selections import (
    EXACT,
    LENGTH,
    SELECTIONS,
    compiled,
    example_keys,
    flags,
    many,
    random_rows,
    ratios,
    same,
    seeds,
    targets,
    uniformity,
)

from mlmjax.core import prng
from mlmjax.core.errors import UserError
from mlmjax.masking import Selection, TokenSelection, eligible_tokens, select_tokens

each = pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS.keys())
each_exact = pytest.mark.parametrize("selection", EXACT.values(), ids=EXACT.keys())


@each
@given(seed=seeds, eligible=flags, word_starts=flags, ratio=ratios)
def test_a_mask_is_well_formed(selection, seed, eligible, word_starts, ratio):
    mask = compiled(selection)(prng.root(seed), eligible, word_starts, ratio)
    found = targets(mask)
    assert mask.positions.shape == mask.weight.shape == (LENGTH,)
    assert found == sorted(set(found))
    assert np.asarray(eligible)[found].all()
    assert mask.weight.tolist() == [1.0] * len(found) + [0.0] * (LENGTH - len(found))
    assert not mask.positions[len(found) :].any()
    assert np.flatnonzero(mask.dense(LENGTH)).tolist() == found


@each_exact
@given(seed=seeds, eligible=flags, word_starts=flags, ratio=ratios)
def test_the_budget_is_kept(selection, seed, eligible, word_starts, ratio):
    number = int(eligible.sum())
    budget = min(number, max(1, int(np.round(np.float32(ratio) * np.float32(number)))))
    found = targets(compiled(selection)(prng.root(seed), eligible, word_starts, ratio))
    by_words = selection in (EXACT["words"], EXACT["spans"])
    assert len(found) == budget or (by_words and len(found) > 0)
    every = jnp.ones_like(word_starts)
    assert len(targets(compiled(selection)(prng.root(seed), eligible, every, ratio))) == budget


@each
@given(seed=seeds, eligible=flags, word_starts=flags)
def test_ratio_one_selects_everything_eligible(selection, seed, eligible, word_starts):
    mask = compiled(selection)(prng.root(seed), eligible, word_starts, 1.0)
    assert targets(mask) == np.flatnonzero(eligible).tolist()


@each
def test_specials_and_padding_are_never_selected(selection):
    special = (0, 1, 2, 3, 9)
    rng = np.random.default_rng(0)
    tokens = jnp.asarray(rng.integers(0, 12, (200, LENGTH)))
    valid = jnp.asarray(np.arange(LENGTH) < rng.integers(1, LENGTH + 1, (200, 1)))
    eligible = eligible_tokens(tokens, valid, special=special)
    masks = many(selection.updated(ratio=1.0))(example_keys(200), eligible, valid)
    chosen = np.asarray(masks.dense(LENGTH)) > 0
    assert np.array_equal(chosen, np.asarray(valid) & ~np.isin(tokens, special))


def test_without_special_ids_all_valid_tokens_are_eligible():
    valid = jnp.arange(LENGTH) < 5
    assert np.array_equal(eligible_tokens(jnp.zeros(LENGTH, jnp.int32), valid, special=()), valid)


@each
def test_a_row_without_eligible_tokens_has_no_target(selection):
    nothing = jnp.zeros((3, LENGTH), bool)
    mask = many(selection)(example_keys(3), nothing, ~nothing)
    assert not mask.weight.any()
    assert not mask.positions.any()


@each
def test_masks_do_not_depend_on_how_they_are_computed(selection):
    """Neither on jit, vmap, the order and size of the batch, nor what was drawn before."""
    eligible, starts = random_rows(16)
    keys = example_keys(16)
    masks = many(selection)(keys, eligible, starts)
    for row in (0, 7, 15):
        alone = selection(keys[row], eligible[row], starts[row])
        assert same(alone, jax.tree.map(lambda leaf, row=row: leaf[row], masks))
    order = np.random.default_rng(0).permutation(16)[:5]
    shuffled = many(selection)(keys[order], eligible[order], starts[order])
    assert same(shuffled, jax.tree.map(lambda leaf: leaf[order], masks))
    jax.random.normal(prng.stream(prng.root(0), "dropout"), (3,))
    assert same(many(selection)(example_keys(16), eligible, starts), masks)


@each
def test_masks_do_not_depend_on_the_devices(selection):
    assert jax.device_count() == 8
    inputs = (example_keys(16), *random_rows(16))
    found = []
    for number in (1, 8):
        mesh = Mesh(np.array(jax.devices()[:number]), ("data",))
        placed = jax.device_put(inputs, NamedSharding(mesh, PartitionSpec("data")))
        masks = many(selection)(*placed)
        assert len(masks.positions.sharding.device_set) == number
        found.append(jax.device_get(jax.tree.leaves(masks)))
    assert same(*found)


@each
def test_examples_epochs_and_seeds_differ(selection):
    selection = selection.updated(ratio=0.5)
    eligible = jnp.ones((64, LENGTH), bool)
    first, epoch, seed = (
        np.asarray(many(selection)(keys, eligible, eligible).dense(LENGTH))
        for keys in (example_keys(64), example_keys(64, epoch=1), example_keys(64, seed=1))
    )
    assert len(np.unique(first, axis=0)) == 64
    assert (first != epoch).any(axis=1).all()
    assert (first != seed).any(axis=1).all()


@each_exact
@pytest.mark.parametrize("word", [1, 3])
def test_every_position_is_equally_likely(selection, word):
    """First and last included; with special tokens in the middle, and words of one size."""
    eligible = np.ones(LENGTH, bool)
    eligible[[0, 10, 23]] = False
    starts = np.zeros(LENGTH, bool)
    starts[1:10:word] = starts[11:23:word] = True
    rows = 20_000
    keys = example_keys(rows, name=f"mask {word}")
    inputs = (jnp.asarray(np.broadcast_to(it, (rows, LENGTH))) for it in (eligible, starts))
    masks = many(selection.updated(ratio=0.3))(keys, *inputs)
    assert uniformity(masks, eligible) > 1e-3


@each
def test_a_scheduled_ratio_compiles_once(selection):
    traces = []

    @jax.jit
    def select(key, eligible, starts, ratio):
        traces.append(ratio)
        return selection(key, eligible, starts, ratio=ratio, capacity=LENGTH)

    row = jnp.ones(LENGTH, bool)
    counts = [select(prng.root(0), row, row, jnp.float32(r)).weight.sum() for r in (0.1, 0.5, 0.9)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    assert len(traces) == 1


@each
@given(seed=seeds, eligible=flags, word_starts=flags)
def test_capacity_bounds_the_targets(selection, seed, eligible, word_starts):
    mask = select_four(selection)(prng.root(seed), eligible, word_starts)
    assert mask.positions.shape == (4,)


def select_four(selection, known={}):  # noqa: B006 (a cache)
    if selection not in known:
        known[selection] = jax.jit(
            lambda key, eligible, starts: selection(key, eligible, starts, ratio=0.9, capacity=4)
        )
    return known[selection]


@each
def test_capacity_is_what_the_ratio_needs(selection):
    assert selection.capacity(512) < 512
    assert selection.capacity(512, 1.0) == 512
    assert selection.capacity(1) == 1
    assert selection.capacity(512, 0.3) > selection.capacity(512)
    rows = jnp.ones((300, 128), bool)
    masks = many(selection)(example_keys(300), rows, rows)
    assert masks.weight.shape == (300, selection.capacity(128))
    if selection in EXACT.values():
        assert masks.weight.all()


def test_the_exact_capacity_agrees_with_the_count_wherever_a_half_is_rounded():
    select = jax.jit(
        lambda key, row, ratio: select_tokens(key, row, ratio=ratio, capacity=LENGTH).weight.sum()
    )
    for ratio in np.arange(1, 200) / 200:
        count = select(prng.root(0), jnp.ones(LENGTH, bool), jnp.float32(ratio))
        assert count == TokenSelection(ratio=float(ratio)).capacity(LENGTH)


def test_bad_input_is_refused():
    row = jnp.ones(LENGTH, bool)
    with pytest.raises(UserError, match="Give the capacity"):
        TokenSelection()(prng.root(0), row, row, ratio=jnp.float32(0.2))
    with pytest.raises(UserError, match=r"ratio is 1\.5"):
        select_tokens(prng.root(0), row, ratio=1.5)
    with pytest.raises(UserError, match="at least one place"):
        select_tokens(prng.root(0), row, ratio=0.5, capacity=0)
    with pytest.raises(ValidationError, match="greater than 0"):
        TokenSelection(ratio=0.0)
    with pytest.raises(TypeError, match="abstract"):
        Selection()


@each
def test_a_selection_is_a_value(selection):
    assert Selection.from_json(selection.to_json()) == selection
    assert hash(selection) == hash(selection.updated())
