"""What holds for every selection."""

from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from pydantic import ValidationError
from selections import (
    EXACT,
    LENGTH,
    MACHINERY,
    OF_WORDS,
    ROWS,
    SELECTIONS,
    TRACES,
    chosen,
    densities,
    every_row,
    example_keys,
    many,
    random_rows,
    ratios,
    row,
    same,
    seeds,
    uniformity,
)

from mlmjax.core import prng
from mlmjax.core.errors import UserError
from mlmjax.masking import (
    Selection,
    TokenSelection,
    eligible_tokens,
    select_tokens,
    word_numbers,
)

each = pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS.keys())
each_machinery = pytest.mark.parametrize("selection", MACHINERY.values(), ids=MACHINERY.keys())
words_of = jax.jit(jax.vmap(word_numbers))


@pytest.mark.parametrize("name", SELECTIONS)
@given(seed=seeds, ratio=ratios, eligible=densities, words=densities, sentences=densities)
@settings(max_examples=5)
def test_masks_of_any_rows(name, seed, ratio, eligible, words, sentences):
    """Well formed, of eligible tokens and whole words, and as near to the budget as words allow."""
    rows = random_rows(seed, eligible=eligible, words=words, sentences=sentences)
    masks = many(SELECTIONS[name])(example_keys(seed=seed), rows, ratio)
    found, eligible = chosen(masks), np.asarray(rows.eligible)
    count, total = found.sum(axis=1), eligible.sum(axis=1)
    used = np.arange(LENGTH) < count[:, None]
    assert np.array_equal(masks.weight, used)
    assert np.array_equal(masks.positions, np.argsort(~found, kind="stable") * used)
    assert (eligible | ~found).all()

    word = np.asarray(words_of(rows.eligible, rows.word_starts))
    members = word[:, None] == np.arange(LENGTH)[:, None]
    sizes, taken = members.sum(axis=2), (members & found[:, None]).sum(axis=2)
    if name in OF_WORDS:
        assert ((taken == 0) | (taken == sizes)).all()

    if name in EXACT:
        budget = np.clip(np.round(np.float32(ratio) * np.float32(total)), total > 0, total)
        left = budget - count
        if name in OF_WORDS:
            assert not ((sizes > taken) & (sizes <= left[:, None])).any()
            smallest = np.where(sizes > 0, sizes, LENGTH).min(axis=1)
            assert (count == smallest)[left < 0].all()
            assert (smallest > budget)[left < 0].all()
        else:
            assert not left.any()


@each
def test_ratio_one_selects_everything_eligible(selection):
    rows = random_rows()
    assert np.array_equal(chosen(many(selection)(example_keys(), rows, 1.0)), rows.eligible)


@each
def test_specials_and_padding_are_never_selected(selection):
    special = (0, 1, 2, 3, 9)
    rng = np.random.default_rng(0)
    tokens = jnp.asarray(rng.integers(0, 12, (ROWS, LENGTH)))
    valid = jnp.asarray(np.arange(LENGTH) < rng.integers(1, LENGTH + 1, (ROWS, 1)))
    eligible = eligible_tokens(tokens, valid, special=special)
    masks = many(selection)(example_keys(), row(eligible, valid), 1.0)
    assert np.array_equal(chosen(masks), np.asarray(valid) & ~np.isin(tokens, special))


def test_without_special_ids_all_valid_tokens_are_eligible():
    valid = jnp.arange(LENGTH) < 5
    assert np.array_equal(eligible_tokens(jnp.zeros(LENGTH, jnp.int32), valid, special=()), valid)


@each
def test_a_row_without_eligible_tokens_has_no_target(selection):
    nothing = every_row(np.zeros(LENGTH, bool))
    mask = many(selection)(example_keys(), nothing, 0.5)
    assert not mask.weight.any()
    assert not mask.positions.any()


@each
def test_masks_do_not_depend_on_the_batch(selection):
    """Neither on its order, nor on what was drawn before."""
    rows, keys = random_rows(), example_keys()
    masks = many(selection)(keys, rows, 0.15)
    order = np.random.default_rng(0).permutation(ROWS)
    shuffled, expected = jax.tree.map(itemgetter(order), (rows, masks))
    jax.random.normal(prng.stream(prng.root(0), "dropout"), (3,))
    assert same(many(selection)(keys[order], shuffled, 0.15), expected)


@each_machinery
def test_masks_do_not_depend_on_vmap(selection):
    rows, keys = random_rows(), example_keys()
    masks = many(selection)(keys, rows, 0.15)
    alone = jax.jit(lambda key, row: selection(key, row, ratio=0.15, capacity=LENGTH))
    for number in (0, 700, ROWS - 1):
        one, expected = jax.tree.map(itemgetter(number), (rows, masks))
        assert same(alone(keys[number], one), expected)


@each_machinery
def test_masks_do_not_depend_on_the_devices(selection):
    assert jax.device_count() == 8
    inputs = (example_keys(), random_rows())
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
        chosen(many(selection)(keys, row, 0.5))
        for keys in (example_keys(), example_keys(epoch=1), example_keys(seed=1))
    )
    # A short row has few arrangements of long spans, so that some agree by chance.
    assert len(np.unique(first, axis=0)) > ROWS / 4
    assert (first != epoch).any(axis=1).mean() > 0.98
    assert (first != seed).any(axis=1).mean() > 0.98


@pytest.mark.parametrize("name", sorted({*EXACT} - {"hierarchical"}))
@pytest.mark.parametrize("word", [1, 3])
def test_every_position_is_equally_likely(name, word):
    """First and last included; with special tokens in the middle, and words of one size."""
    eligible = np.ones(LENGTH, bool)
    eligible[[0, 10, 23]] = False
    starts = np.zeros(LENGTH, bool)
    starts[1:10:word] = starts[11:23:word] = True
    rows, select = every_row(eligible, starts), many(EXACT[name])
    assert uniformity(lambda keys: select(keys, rows, 0.3), eligible) > 1e-3


def test_tokens_that_overflow_leave_the_rest_equally_likely():
    select = many(SELECTIONS["tokens-bernoulli"], capacity=4)
    eligible = np.ones(LENGTH, bool)
    eligible[:2] = False
    rows = every_row(eligible)
    assert uniformity(lambda keys: select(keys, rows, 0.9), eligible) > 1e-3


def test_bernoulli_tokens_are_each_as_likely_as_the_ratio():
    rows = every_row(np.ones(LENGTH, bool))
    share = chosen(many(SELECTIONS["tokens-bernoulli"])(example_keys(), rows, 0.3)).mean(0)
    assert np.abs(share - 0.3).max() < 4.5 * np.sqrt(0.3 * 0.7 / ROWS)


@each
def test_a_scheduled_ratio_compiles_once(selection):
    rows, keys = every_row(np.ones(LENGTH, bool)), example_keys()
    many(selection)(keys, rows, 0.3)
    before = TRACES[selection, LENGTH]
    for ratio in (0.1, 0.5, 0.9):
        share = many(selection)(keys, rows, ratio).weight.mean()
        assert float(share) == pytest.approx(ratio, abs=0.02)
    assert TRACES[selection, LENGTH] == before


@each
def test_capacity_is_what_the_ratio_needs(selection):
    assert selection.capacity(512) < 512
    assert selection.capacity(512, 1.0) == 512
    assert selection.capacity(1) == 1
    assert selection.capacity(512, 0.3) > selection.capacity(512)
    every = row(np.ones(128, bool))
    masked = jax.eval_shape(lambda: selection(prng.root(0), every).positions)
    assert masked.shape == (selection.capacity(128),)


def test_no_target_of_a_long_row_is_lost_to_the_capacity():
    row = jnp.ones(2048, bool)
    select = jax.jit(
        lambda key, capacity: select_tokens(
            key, row, ratio=0.15, capacity=capacity, count="bernoulli"
        ),
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
    every = jnp.ones(LENGTH, bool)
    for selection in SELECTIONS.values():
        with pytest.raises(UserError, match="Give the capacity"):
            selection(prng.root(0), row(every), ratio=jnp.float32(0.2))
    with pytest.raises(UserError, match=r"ratio is 1\.5"):
        select_tokens(prng.root(0), every, ratio=1.5)
    with pytest.raises(UserError, match="at least one place"):
        select_tokens(prng.root(0), every, ratio=0.5, capacity=0)
    with pytest.raises(ValidationError, match="greater than 0"):
        TokenSelection(ratio=0.0)
    with pytest.raises(TypeError, match="abstract"):
        Selection()


@each
def test_a_selection_is_a_value(selection):
    assert Selection.from_json(selection.to_json()) == selection
    assert hash(selection) == hash(selection.updated())
