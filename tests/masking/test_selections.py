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
    ROWS,
    SELECTIONS,
    TRACES,
    chosen,
    compiled,
    every_row,
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
    tokens = jnp.asarray(rng.integers(0, 12, (ROWS, LENGTH)))
    valid = jnp.asarray(np.arange(LENGTH) < rng.integers(1, LENGTH + 1, (ROWS, 1)))
    eligible = eligible_tokens(tokens, valid, special=special)
    masks = many(selection)(example_keys(), eligible, valid, 1.0)
    assert np.array_equal(chosen(masks), np.asarray(valid) & ~np.isin(tokens, special))


def test_without_special_ids_all_valid_tokens_are_eligible():
    valid = jnp.arange(LENGTH) < 5
    assert np.array_equal(eligible_tokens(jnp.zeros(LENGTH, jnp.int32), valid, special=()), valid)


@each
def test_a_row_without_eligible_tokens_has_no_target(selection):
    nothing = every_row(np.zeros(LENGTH, bool))
    mask = many(selection)(example_keys(), nothing, ~nothing, 0.5)
    assert not mask.weight.any()
    assert not mask.positions.any()


@each
def test_masks_do_not_depend_on_how_they_are_computed(selection):
    """Neither on jit, vmap, the order and size of the batch, nor what was drawn before."""
    eligible, starts = random_rows()
    keys = example_keys()
    masks = many(selection)(keys, eligible, starts, 0.15)
    for row in (0, 700, ROWS - 1):
        expected = jax.tree.map(lambda leaf, row=row: leaf[row], masks)
        assert same(compiled(selection)(keys[row], eligible[row], starts[row], 0.15), expected)
    plain = selection(keys[row], eligible[row], starts[row], ratio=0.15, capacity=LENGTH)
    assert same(plain, expected)
    order = np.random.default_rng(0).permutation(ROWS)
    shuffled = many(selection)(keys[order], eligible[order], starts[order], 0.15)
    assert same(shuffled, jax.tree.map(lambda leaf: leaf[order], masks))
    jax.random.normal(prng.stream(prng.root(0), "dropout"), (3,))
    assert same(many(selection)(example_keys(), eligible, starts, 0.15), masks)


@each
def test_masks_do_not_depend_on_the_devices(selection):
    assert jax.device_count() == 8
    inputs = (example_keys(), *random_rows())
    mesh = Mesh(np.array(jax.devices()), ("data",))
    placed = jax.device_put(inputs, NamedSharding(mesh, PartitionSpec("data")))
    spread = many(selection)(*placed, 0.15)
    assert len(spread.positions.sharding.device_set) == 8
    alone = many(selection)(*inputs, 0.15)
    assert len(alone.positions.sharding.device_set) == 1
    assert same(spread, alone)


@each
def test_examples_epochs_and_seeds_differ(selection):
    row = every_row(np.ones(LENGTH, bool))
    first, epoch, seed = (
        chosen(many(selection)(keys, row, row, 0.5))
        for keys in (example_keys(), example_keys(epoch=1), example_keys(seed=1))
    )
    # A short row has few arrangements of long spans, so that some agree by chance.
    assert len(np.unique(first, axis=0)) > ROWS / 4
    assert (first != epoch).any(axis=1).mean() > 0.98
    assert (first != seed).any(axis=1).mean() > 0.98


@each_exact
@pytest.mark.parametrize("word", [1, 3])
def test_every_position_is_equally_likely(selection, word):
    """First and last included; with special tokens in the middle, and words of one size."""
    eligible = np.ones(LENGTH, bool)
    eligible[[0, 10, 23]] = False
    starts = np.zeros(LENGTH, bool)
    starts[1:10:word] = starts[11:23:word] = True
    rows = every_row(eligible), every_row(starts)
    assert uniformity(lambda keys: many(selection)(keys, *rows, 0.3), eligible) > 1e-3


def test_tokens_that_overflow_leave_the_rest_equally_likely():
    select = many(SELECTIONS["tokens-bernoulli"], capacity=4)
    row = np.ones(LENGTH, bool)
    row[:2] = False
    rows = every_row(row), every_row(row)
    assert uniformity(lambda keys: select(keys, *rows, 0.9), row) > 1e-3


def test_bernoulli_tokens_are_each_as_likely_as_the_ratio():
    rows = every_row(np.ones(LENGTH, bool))
    share = chosen(many(SELECTIONS["tokens-bernoulli"])(example_keys(), rows, rows, 0.3)).mean(0)
    assert np.abs(share - 0.3).max() < 4.5 * np.sqrt(0.3 * 0.7 / ROWS)


@each
def test_a_scheduled_ratio_compiles_once(selection):
    row = jnp.ones(LENGTH, bool)
    found = [compiled(selection)(prng.root(0), row, row, ratio) for ratio in (0.1, 0.5, 0.9)]
    counts = [len(targets(mask)) for mask in found]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    assert TRACES[selection] == 1


@each
def test_capacity_is_what_the_ratio_needs(selection):
    assert selection.capacity(512) < 512
    assert selection.capacity(512, 1.0) == 512
    assert selection.capacity(1) == 1
    assert selection.capacity(512, 0.3) > selection.capacity(512)
    row = jnp.ones(128, bool)
    masked = jax.eval_shape(lambda: selection(prng.root(0), row, row).positions)
    assert masked.shape == (selection.capacity(128),)


@pytest.mark.parametrize("count", ["exact", "bernoulli"])
def test_no_target_of_a_long_row_is_lost_to_the_capacity(count):
    row = jnp.ones(2048, bool)
    select = jax.jit(
        lambda key, capacity: select_tokens(key, row, ratio=0.15, capacity=capacity, count=count),
        static_argnums=1,
    )
    fitting, roomy = (select(prng.root(0), capacity).weight.sum() for capacity in (None, 2048))
    assert fitting == roomy


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
