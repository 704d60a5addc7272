"""Masks of patches: random, in blocks, and regular."""

from collections import Counter
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from pydantic import ValidationError
from scipy import ndimage, stats

from mlmjax.core import prng
from mlmjax.core.errors import UserError
from mlmjax.masking import (
    BlockPatches,
    GridPatches,
    PatchSelection,
    RandomPatches,
    StagedRatio,
    complement,
    patch_count,
    select_patch_blocks,
    select_patch_grid,
    select_patches,
)

SELECTIONS = {"random": RandomPatches(), "blocks": BlockPatches(), "grid": GridPatches()}
GRIDS = [(14, 14), (3, 11), (1, 1)]
ROWS = 512
TRACES = Counter()
"""How often a selection was traced for a grid."""

each = pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS.keys())
seeds = st.integers(0, 2**31 - 1)


@cache
def many(selection, grid):
    """The masks of a batch of keys for a ratio, and what they leave."""
    patches = grid[0] * grid[1]

    def one(key, ratio):
        TRACES[selection, grid] += 1
        mask = selection(key, grid, ratio=ratio, capacity=patches)
        return mask, complement(mask, patches, capacity=patches)

    return jax.jit(jax.vmap(one, (0, None)))


def keys_of(seed=0, epoch=0, rows=ROWS):
    ids = np.stack([np.zeros(rows), np.arange(rows)], axis=1).astype(np.uint32)
    stream = prng.stream(prng.root(seed), "mask")
    return prng.per_example(stream, jnp.full(rows, epoch), jnp.asarray(ids))


def chosen(masks, grid):
    """Whether each patch is masked, after a check of the mask's form."""
    positions, weight = np.asarray(masks.positions), np.asarray(masks.weight)
    times = np.zeros((len(positions), grid[0] * grid[1]), int)
    np.add.at(times, (np.arange(len(positions))[:, None], positions), weight.astype(int))
    assert times.max(initial=0) <= 1
    found = times > 0
    used = np.arange(positions.shape[1]) < found.sum(axis=1)[:, None]
    assert np.array_equal(weight, used)
    rank = np.argsort(~found, axis=1, kind="stable")[:, : positions.shape[1]]
    assert np.array_equal(positions, rank * used)
    return found.reshape(-1, *grid)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@each
def test_exact_counts_of_any_ratio(selection, grid):
    """Of one compilation, since a ratio may be traced; a half is rounded as where it is not."""
    patches, keys = grid[0] * grid[1], keys_of()
    for ratio in (0.0, 0.02, 0.35, 0.5, 0.75, 0.97, 1.0):
        count = patch_count(patches, ratio)
        assert abs(count - ratio * patches) <= 0.5
        mask, others = many(selection, grid)(keys, ratio)
        found = chosen(mask, grid)
        assert (found.sum(axis=(1, 2)) == count).all()
        # Masked and visible patches partition the positions.
        assert np.array_equal(chosen(others, grid), ~found)
    assert TRACES[selection, grid] == 1


@each
def test_a_known_ratio_needs_no_capacity(selection):
    """And gives the mask that it gives with a larger one, of which no place is unused."""
    known = jax.jit(lambda key: selection(key, (3, 11)))(keys_of()[3])
    assert known.positions.shape == (selection.count(33),) == (25,)
    assert known.weight.all()
    traced = many(selection, (3, 11))(keys_of(), 0.75)[0]
    assert np.array_equal(traced.positions[3, :25], known.positions)


@pytest.mark.parametrize("ratio", [0.4, 0.75])
def test_blocks_have_the_exact_count_over_ten_thousand_draws(ratio):
    found = np.concatenate(
        [
            chosen(many(SELECTIONS["blocks"], (14, 14))(keys_of(seed), ratio)[0], (14, 14))
            for seed in range(20)
        ]
    )
    assert len(found) > 10_000
    assert (found.sum(axis=(1, 2)) == round(196 * ratio)).all()
    # Every place is reached.
    assert found.any(axis=0).all()


def test_the_complement_of_nothing_is_everything_in_order():
    """So gathering by it changes nothing; and unused places of a mask hide no position."""
    everything = np.arange(12)

    @partial(jax.jit, static_argnums=(0, 1))
    def split(ratio, capacity):
        mask = select_patches(prng.root(0), (3, 4), ratio=ratio, capacity=capacity)
        return mask, complement(mask, 12, capacity=12)

    for capacity in (None, 5):
        nothing, others = split(0.0, capacity)
        assert nothing.positions.shape == (capacity or 0,)
        assert np.array_equal(others.positions, everything)
        assert others.weight.all()
    mask, others = split(1.0, None)
    assert np.array_equal(mask.positions, everything)
    assert not others.weight.any()


@given(seed=seeds, ratio=st.floats(0, 1))
@settings(max_examples=20)
def test_gathered_patches_scatter_back(seed, ratio):
    """Masked and visible patches, each put where it was taken from, are the image."""
    patches = np.random.default_rng(seed).normal(size=(33, 6))
    parts = many(SELECTIONS["random"], (3, 11))(keys_of(seed), ratio)
    back = np.full_like(patches, np.nan)
    for part in parts:
        positions = np.asarray(part.positions[0])[np.asarray(part.weight[0]) > 0]
        back[positions] = patches[positions]
    assert np.array_equal(back, patches)


@each
def test_neighbours_in_the_batch_are_independent(selection):
    """A mask depends on its own key alone; and different keys overlap as often as chance has it."""
    grid, keys = (14, 14), keys_of()
    masks = many(selection, grid)(keys, 0.4)[0]
    order = np.random.default_rng(0).permutation(ROWS)
    shuffled = many(selection, grid)(keys[order], 0.4)[0]
    assert np.array_equal(shuffled.positions, masks.positions[order])
    found = chosen(masks, grid)
    overlap = (found & np.roll(found, 1, axis=0)).mean(axis=(1, 2))
    # Two independent masks both hold a position with the square of its share.
    expected = np.square(found.mean(axis=0)).mean()
    assert abs(overlap.mean() - expected) < 5 * overlap.std() / np.sqrt(ROWS) + 1 / ROWS


@each
def test_masks_do_not_depend_on_the_devices(selection):
    assert jax.device_count() == 8
    mesh = Mesh(np.array(jax.devices()), ("data",))
    keys, grid = keys_of(), (3, 11)
    placed = jax.device_put(keys, NamedSharding(mesh, PartitionSpec("data")))
    spread, alone = (many(selection, grid)(one, 0.75)[0].positions for one in (placed, keys))
    assert len(spread.sharding.device_set) == 8
    assert len(alone.sharding.device_set) == 1
    assert np.array_equal(spread, alone)


@each
def test_examples_epochs_and_seeds_differ(selection):
    """At a ratio that the lattice does not give, so that regular masks are many too."""
    first, epoch, seed = (
        chosen(many(selection, (14, 14))(keys, 0.3)[0], (14, 14)).reshape(ROWS, -1)
        for keys in (keys_of(), keys_of(epoch=1), keys_of(seed=1))
    )
    # Of large blocks, a few are alike by chance.
    assert len(np.unique(first, axis=0)) > 0.95 * ROWS
    assert (first != epoch).any(axis=1).mean() > 0.99
    assert (first != seed).any(axis=1).mean() > 0.99


def test_random_patches_are_uniform():
    """Every position, by chi-square; and every pair of positions, which masks of blocks fail."""
    found = [
        chosen(many(SELECTIONS["random"], (3, 11))(keys_of(seed), 0.75)[0], (3, 11))
        for seed in range(8)
    ]
    found = np.concatenate(found).reshape(-1, 33).astype(float)
    (rows, patches), share = found.shape, 25 / 33
    # The count is fixed: positions are correlated by -1 / (patches - 1).
    variance = rows * share * (1 - share) * patches / (patches - 1)
    square = ((found.sum(axis=0) - rows * share) ** 2 / variance).sum()
    assert 1e-3 < stats.chi2.sf(square, patches - 1) < 1 - 1e-3
    together = np.corrcoef(found, rowvar=False)[np.triu_indices(patches, 1)]
    assert np.abs(together + 1 / (patches - 1)).max() < 5 / np.sqrt(rows)


@pytest.mark.parametrize(
    ("grid", "count", "aspect"), [((14, 14), 24, 0.3), ((12, 20), 25, 1.0), ((3, 11), 14, 0.1)]
)
def test_a_block_is_a_rectangle_of_the_right_size_and_aspect(grid, count, aspect):
    """A count of no more than the smallest size is reached with one block."""
    selection = BlockPatches(ratio=count / (grid[0] * grid[1]), smallest=count, aspect=aspect)
    found = chosen(jax.jit(jax.vmap(lambda key: selection(key, grid)))(keys_of()), grid)
    sides = np.array([[each.any(axis=1).sum(), each.any(axis=0).sum()] for each in found])
    long, short = sides.max(axis=1), sides.min(axis=1)
    assert (found.sum(axis=(1, 2)) == count).all()
    # Only the last line, of either direction, is cut.
    assert ((long * short - count) < long).all()
    room = min(short.max(), *grid)
    least = max(round(np.sqrt(count * aspect)), -(-count // max(grid)))
    assert least - 1 <= short.min() <= least
    assert room == min(round(np.sqrt(count)), *grid)
    assert all(ndimage.label(each)[1] == 1 for each in found)
    assert found.any(axis=0).all()


def test_blocks_are_as_likely_turned_or_mirrored():
    found = np.concatenate(
        [
            chosen(many(SELECTIONS["blocks"], (14, 14))(keys_of(seed), 0.1)[0], (14, 14))
            for seed in range(4)
        ]
    )
    sides = np.array([[each.any(axis=1).sum(), each.any(axis=0).sum()] for each in found])
    tall, wide = (sides[:, 0] > sides[:, 1]).sum(), (sides[:, 0] < sides[:, 1]).sum()
    assert tall + wide > len(found) / 2
    assert stats.binomtest(int(tall), int(tall + wide)).pvalue > 1e-3
    for turned in (found[:, ::-1], found[:, :, ::-1], found.swapaxes(1, 2)):
        difference = found.mean(axis=0) - turned.mean(axis=0)
        assert np.abs(difference).max() < 5 * np.sqrt(2 * 0.1 / len(found))


def test_blocks_hang_together():
    """Random patches lie in many parts, blocks in few."""

    def parts(name):
        found = chosen(many(SELECTIONS[name], (14, 14))(keys_of(), 0.4)[0], (14, 14))
        return np.mean([ndimage.label(each)[1] for each in found])

    assert parts("blocks") < 4
    assert parts("random") > 15


def test_what_blocks_leave_open_is_filled(monkeypatch):
    """One block masks hardly anything; the count is exact all the same."""
    monkeypatch.setattr("mlmjax.masking.patch_blocks.ROUNDS", 1)
    select = jax.jit(jax.vmap(lambda key: select_patch_blocks(key, (14, 14), ratio=0.9)))
    assert (chosen(select(keys_of()), (14, 14)).sum(axis=(1, 2)) == 176).all()


@pytest.mark.parametrize(("ratio", "stride"), [(0.75, 2), (8 / 9, 3), (15 / 16, 4)])
def test_a_grid_keeps_every_kth_patch_in_both_directions(ratio, stride):
    """From every first patch that there may be."""
    found = chosen(many(SELECTIONS["grid"], (12, 24))(keys_of(), ratio)[0], (12, 24))
    firsts = set()
    for each in found:
        rows, columns = (np.flatnonzero(~each.all(axis=axis)) for axis in (1, 0))
        assert {*np.diff(rows), *np.diff(columns)} == {stride}
        assert np.array_equal(
            np.argwhere(~each), [(row, column) for row in rows for column in columns]
        )
        firsts.add((rows[0], columns[0]))
    assert len(firsts) == stride**2


def test_a_grid_where_nothing_divides_is_as_regular_as_it_can_be():
    """Of 3 by 11 patches with 8 in sight, those are all of one lattice, or that and more."""
    row, column = np.indices((3, 11))
    for each in chosen(many(SELECTIONS["grid"], (3, 11))(keys_of(), 0.75)[0], (3, 11)):
        lattices = [(row % 2 == up) & (column % 2 == left) for up in (0, 1) for left in (0, 1)]
        assert any((lattice >= ~each).all() or (lattice <= ~each).all() for lattice in lattices)


def test_half_of_a_grid_is_a_chequerboard():
    row, column = np.indices((14, 14))
    for each in chosen(many(SELECTIONS["grid"], (14, 14))(keys_of(), 0.5)[0], (14, 14)):
        assert np.array_equal(each, (row + column + each[0, 0]) % 2 == 1)


def test_a_ratio_in_stages_has_one_shape():
    schedule = StagedRatio(stages=((0, 0.5), (10, 0.75), (20, 0.6)))
    selection, patches = RandomPatches(), 196

    @jax.jit
    def step(key, number):
        ratio = schedule.at(number, selection.ratio)
        capacity = selection.count(patches, schedule.highest(selection.ratio))
        mask = selection(key, (14, 14), ratio=ratio, capacity=capacity, step=number)
        sight = patches - selection.count(patches, schedule.lowest(selection.ratio))
        return mask, complement(mask, patches, capacity=sight)

    for number, count in ((0, 98), (9, 98), (10, 147), (20, 118), (99, 118)):
        mask, visible = step(prng.root(number), number)
        assert (mask.positions.shape, visible.positions.shape) == ((147,), (98,))
        assert mask.weight.sum() == count
        assert visible.weight.sum() == patches - count
    assert step._cache_size() == 1


def test_bad_input_is_refused():
    key = prng.root(0)
    for select in (select_patches, select_patch_blocks, select_patch_grid):
        with pytest.raises(UserError, match="Give the capacity"):
            select(key, (4, 4), ratio=jnp.float32(0.5))
        with pytest.raises(UserError, match=r"ratio is 1\.5"):
            select(key, (4, 4), ratio=1.5)
        with pytest.raises(UserError, match="capacity is -1"):
            select(key, (4, 4), ratio=0.5, capacity=-1)
    with pytest.raises(UserError, match="smallest is 0"):
        select_patch_blocks(key, (4, 4), ratio=0.5, smallest=0)
    with pytest.raises(UserError, match="aspect 3"):
        select_patch_blocks(key, (4, 4), ratio=0.5, aspect=3.0)
    for bad in ({"ratio": 0.0}, {"ratio": 1.0}, {"smallest": 0}, {"aspect": 0.0}, {"aspect": 2.0}):
        with pytest.raises(ValidationError, match=next(iter(bad))):
            BlockPatches(**bad)
    with pytest.raises(TypeError, match="abstract"):
        PatchSelection()


@each
def test_a_selection_is_a_value(selection):
    assert PatchSelection.from_json(selection.to_json()) == selection
    assert hash(selection) == hash(selection.updated())
