"""The audit of masks of patches: its figures against the masks themselves, and every must, broken on purpose."""

import json
from functools import cache
from itertools import chain

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from mlmjax.core.types import Context, Mask
from mlmjax.evaluation.audit.masks import Examples
from mlmjax.evaluation.audit.patch_counters import PartTally, heat_map
from mlmjax.evaluation.audit.patches import audit_patches
from mlmjax.masking import BlockPatches, GridPatches, RandomPatches, StagedRatio
from mlmjax.objectives.mae import MaskedAutoencoder

GRID, PATCHES, ROWS = (6, 8), 48, 64


def examples(batches=4, *, epochs=2, last=ROWS):
    """Batches of ids; of the last, some rows only fill it."""
    for number in range(batches):
        ids = np.stack([np.zeros(ROWS), number * ROWS + np.arange(ROWS)], axis=-1)
        rows = [
            {"id": ids.astype(np.uint32), "epoch": np.full(ROWS, epoch, np.int32)}
            for epoch in range(epochs)
        ]
        yield Examples(rows, last if number == batches - 1 else ROWS)


@cache
def audited(objective, *, batches=4, epochs=2, last=ROWS, step=0, grid=GRID):
    data = examples(batches, epochs=epochs, last=last)
    return audit_patches(objective, data, grid=grid, seed=5, step=step)


def masks(objective, *, batches=4, epochs=2, last=ROWS, step=0):
    """What training would draw: [epochs, examples, patches]."""
    draw, found = jax.jit(lambda batch, context: objective.select(GRID, batch, context)), []
    for one in examples(batches, epochs=epochs, last=last):
        dense = [
            np.asarray(draw(batch, Context.of(5, step=step)).dense(PATCHES)) for batch in one.epochs
        ]
        found.append(np.stack(dense)[:, : one.count] > 0)
    return np.concatenate(found, axis=1)


def flood(mask):
    """Sizes of connected parts, one patch after the other."""
    left, sizes = {tuple(place) for place in np.argwhere(mask).tolist()}, []
    while left:
        waiting, size = [left.pop()], 0
        while waiting:
            row, column = waiting.pop()
            size += 1
            for place in (
                (row + 1, column),
                (row - 1, column),
                (row, column + 1),
                (row, column - 1),
            ):
                if place in left:
                    left.remove(place)
                    waiting.append(place)
        sizes.append(size)
    return sizes


@given(arrays.arrays(bool, st.tuples(*[st.integers(1, 5)] * 3)))
@settings(max_examples=40)
def test_connected_parts_against_a_flood(chosen):
    """Neighbours in the batch, or across the edge of the grid, are none."""
    tally = PartTally(chosen.shape[1:])
    for part in np.split(chosen, [len(chosen) // 2]):
        tally.add(part.reshape(len(part), chosen[0].size))
    sizes = [flood(each) for each in chosen]
    every, found = list(chain(*sizes)), tally.figures("selection")
    assert np.repeat(np.arange(1, len(found.counts) + 1), found.counts).tolist() == sorted(every)
    assert found.of_an_example == pytest.approx(len(every) / len(chosen))
    assert found.largest == pytest.approx(np.mean([max(each, default=0) for each in sizes]))
    assert found.mean == pytest.approx(np.mean(every) if every else 0)
    around = [size for size in every for _ in range(size)]
    assert found.around == pytest.approx(np.mean(around) if around else 0)


BLOCKS = MaskedAutoencoder(selection=BlockPatches(ratio=0.4, smallest=6))
RANDOM = MaskedAutoencoder(selection=RandomPatches(ratio=0.4))


def test_figures_are_those_of_the_masks_that_training_draws():
    found, drawn = audited(BLOCKS, last=9), masks(BLOCKS, last=9)
    count = round(0.4 * PATCHES)
    assert (found.examples, found.epochs, found.grid) == (3 * ROWS + 9, 2, GRID)
    assert (found.masked.patches, found.masked.masked) == (drawn.size, drawn.sum())
    assert found.masked.ratio == count / PATCHES
    assert (found.masked.count, found.masked.least, found.masked.most) == (count,) * 3
    assert found.capacity == count
    share = drawn.mean(axis=(0, 1)).reshape(GRID)
    where = found.heat_map
    assert np.allclose(where.masked, share)
    ratio = count / PATCHES
    assert np.allclose(
        where.sigmas, (share - ratio) / np.sqrt(ratio * (1 - ratio) / len(drawn[0]) / 2)
    )
    assert where.sigmas[where.row][where.column] == where.largest
    assert abs(where.largest) == np.abs(where.sigmas).max()
    sizes = [flood(each.reshape(GRID)) for each in drawn.reshape(-1, PATCHES)]
    assert found.parts[0].mean == pytest.approx(np.mean(list(chain(*sizes))))
    assert not found.broken


def test_blocks_hang_together_and_lie_in_the_middle():
    """Random patches do neither, and look like the random masks beside them."""
    blocks, random = (audited(objective, last=9) for objective in (BLOCKS, RANDOM))
    assert blocks.parts[0].mean > 2 * blocks.parts[1].mean
    assert random.parts[0].mean == pytest.approx(random.parts[1].mean, rel=0.1)
    assert blocks.parts[1].mean == pytest.approx(random.parts[1].mean, rel=0.1)
    assert blocks.heat_map.p < 1e-6 < 1e-3 < random.heat_map.p
    assert blocks.heat_map.masked[3][4] > blocks.heat_map.masked[0][0]


def test_p_of_the_heat_map_is_uniform_if_all_patches_are_alike():
    random = np.random.default_rng(0)

    def p() -> float:
        masks = random.random((500, PATCHES)).argsort(axis=1) < 19
        return heat_map(masks.sum(axis=0).reshape(GRID), 500).p

    found = [p() for _ in range(300)]
    # Patches that are masked leave fewer for the others, so deviations are a little smaller.
    assert stats.kstest(found, "uniform", alternative="greater").pvalue > 1e-3
    assert 0.4 < np.mean(found) < 0.65


def test_a_heat_map_of_masks_without_any_choice():
    """Of all patches, or none: nothing deviates."""
    for share in (0, 1):
        found = heat_map(np.full(GRID, 9 * share), 9)
        assert (found.largest, found.p) == (0, 1)
        assert set(chain(*found.masked)) == {share}


def test_masks_of_few_kinds_repeat_as_often_as_chance_has_it():
    """A grid has four masks at this ratio: that is no alarm."""
    found = audited(MaskedAutoencoder(selection=GridPatches()))
    assert found.between_examples.identical > found.between_examples.compared / 5
    assert found.between_keys.identical > found.between_keys.compared / 5
    assert not found.broken
    narrow = audited(MaskedAutoencoder(selection=GridPatches(ratio=0.5)), grid=(1, 2))
    assert not narrow.broken


def test_a_ratio_in_stages_and_static_masks():
    objective = MaskedAutoencoder(
        selection=RandomPatches(),
        ratio_schedule=StagedRatio(stages=((0, 0.25), (10, 0.5))),
        static_masks=2,
    )
    early, late = (audited(objective, epochs=3, step=step) for step in (0, 10))
    for found, count in ((early, 12), (late, 24)):
        assert (found.masked.least, found.masked.most, found.masked.count) == (count,) * 3
        assert (found.masked.lowest, found.masked.highest, found.capacity) == (0.25, 0.5, 24)
        # The third epoch has the masks of the first, by choice.
        assert found.by_choice.identical == found.by_choice.compared == 4 * ROWS
        assert found.heat_map.examples == 2 * 4 * ROWS
        assert not found.broken


class Wrong(RandomPatches):
    """Masks one patch twice and one outside the grid, and sometimes nothing."""

    def __call__(self, key, grid, *, ratio=None, capacity=None, step=0):
        mask = super().__call__(key, grid)
        positions = mask.positions.at[1].set(mask.positions[0]).at[2].set(PATCHES)
        return Mask(positions, mask.weight * (jax.random.bits(key) % 2))


class OneKey(MaskedAutoencoder):
    """Leaves the example's id and the epoch out of its keys."""

    def select(self, grid, batch, context):
        same = {name: jnp.zeros_like(batch[name]) for name in ("id", "epoch")}
        return super().select(grid, {**batch, **same}, context)


class NoKey(RandomPatches):
    """Knows one mask."""

    def __call__(self, key, grid, *, ratio=None, capacity=None, step=0):
        return super().__call__(jax.random.key(0), grid)


class All(RandomPatches):
    """Masks all patches, whatever was asked for; so all masks are alike."""

    def __call__(self, key, grid, *, ratio=None, capacity=None, step=0):
        return super().__call__(key, grid, ratio=1.0)


REPEATS = {
    "same mask under another key",
    "same mask in another epoch",
    "same mask as another example",
}


def broken(objective):
    return {must.name: must.found for must in audited(objective).broken}


def test_every_must_can_break():
    wrong, every = (broken(MaskedAutoencoder(selection=kind())) for kind in (Wrong, All))
    names = {must.name for must in audited(RANDOM, last=9).musts}
    assert {*wrong, *every} == names - REPEATS | {"same mask under another key"}
    assert 0 < wrong["examples without a masked patch"] < 8 * ROWS
    assert wrong["patches masked twice"] == wrong["positions outside the grid"]
    assert every["examples without a visible patch"] == 8 * ROWS
    assert every["examples with another count than asked"] == 8 * ROWS


def test_masks_that_repeat_are_found():
    """Keys without the example's id and epoch, and a selection that does not look at its key."""
    assert broken(OneKey()).keys() == REPEATS - {"same mask under another key"}
    assert broken(MaskedAutoencoder(selection=NoKey())) == {"same mask under another key": 8 * ROWS}


def test_figures_are_json():
    text = json.dumps(audited(BLOCKS, last=9).as_json(), allow_nan=False)
    found = json.loads(text)
    assert found["kept"] is True
    assert found["masked"]["count"] == round(0.4 * PATCHES)
    assert np.shape(found["heat_map"]["masked"]) == GRID
    assert [parts["what"] for parts in found["parts"]] == ["selection", "random"]
    assert len(found["musts"]) == 8
