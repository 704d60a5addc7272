"""What the encoder sees in place of masked patches."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats

from mlmjax.core import prng
from mlmjax.core.types import Mask
from mlmjax.corruption import PatchCorruption, corrupt_patches

PATCHES, SIZE = 24, 12
KINDS = ("drop", "vector", "zero", "noise", "swap")
corrupted = jax.jit(corrupt_patches, static_argnames="kind")


def images(seed=0):
    return np.random.default_rng(seed).normal(size=(PATCHES, SIZE)).astype(np.float32)


def mask_of(masked, capacity=PATCHES):
    """A mask of some positions, with places left over: they hold position 0 and change nothing."""
    positions, weight = np.zeros(capacity, np.int32), np.zeros(capacity, np.float32)
    positions[: len(masked)], weight[: len(masked)] = sorted(masked), 1
    return Mask(jnp.asarray(positions), jnp.asarray(weight))


sets = st.sets(st.integers(0, PATCHES - 1))


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**31 - 1), masked=sets)
@settings(max_examples=15)
def test_visible_patches_stay_as_they_are(kind, seed, masked):
    """Bit for bit; and all others change, but for one that has none to be swapped with."""
    patches = images(seed)
    shown = np.asarray(corrupted(prng.root(seed), patches, mask_of(masked), kind=kind))
    changed = (shown != patches).any(axis=1)
    expected = np.isin(np.arange(PATCHES), list(masked))
    if kind == "swap" and len(masked) == 1:
        expected[:] = False
    assert np.array_equal(changed, expected)
    if kind in ("drop", "vector", "zero"):
        assert not shown[sorted(masked)].any()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_drawn_does_not_depend_on_the_capacity(kind):
    masked, patches, key = [0, 3, 4, 11, 20], images(), prng.root(3)
    alone, roomy = (
        corrupted(key, patches, mask_of(masked, capacity), kind=kind)
        for capacity in (len(masked), PATCHES)
    )
    assert np.array_equal(alone, roomy)


@pytest.mark.parametrize("kind", ["drop", "vector", "zero"])
def test_nothing_of_a_hidden_patch_is_left(kind):
    """Not even of one that is not a number."""
    mask, patches = mask_of([2, 5, 23]), images()
    other = patches.copy()
    other[[2, 5, 23]] = [[np.nan], [np.inf], [7]]
    first, second = (corrupted(prng.root(0), each, mask, kind=kind) for each in (patches, other))
    assert np.array_equal(first, second)


@given(seed=st.integers(0, 2**31 - 1), masked=sets)
def test_a_swap_is_one_cycle_of_all_masked_patches(seed, masked):
    patches = np.repeat(np.arange(PATCHES, dtype=np.float32)[:, None], SIZE, axis=1)
    shown = corrupted(prng.root(seed), patches, mask_of(masked), kind="swap")
    source = np.asarray(shown)[:, 0].astype(int)
    if masked:
        start = place = min(masked)
        visited = []
        for _ in masked:
            visited.append(place)
            place = source[place]
        assert place == start
        assert sorted(visited) == sorted(masked)


def test_all_cycles_are_equally_likely():
    """Of four masked patches there are six."""
    patches = jnp.arange(PATCHES, dtype=jnp.float32)[:, None]
    masked = [1, 8, 9, 20]
    keys = jax.vmap(partial(prng.fold, prng.root(0)))(jnp.arange(3000))
    swap = partial(corrupt_patches, patches=patches, mask=mask_of(masked), kind="swap")
    found = np.asarray(jax.jit(jax.vmap(swap))(keys))[:, masked, 0]
    _, counts = np.unique(found, axis=0, return_counts=True)
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 1e-3


def test_noise_is_normal_and_of_the_asked_deviation():
    patches = np.zeros((PATCHES, 500), np.float32) + 3
    shown = corrupted(prng.root(1), patches, mask_of(range(PATCHES)), kind="noise", noise=0.5)
    noise = np.asarray(shown - patches).ravel() / 0.5
    assert stats.kstest(noise, "norm").pvalue > 1e-3
    again = corrupted(prng.root(2), patches, mask_of(range(PATCHES)), kind="noise", noise=0.5)
    assert abs(np.corrcoef(noise, np.asarray(again - patches).ravel())[0, 1]) < 0.05


def test_the_config_asks_for_the_same():
    config = PatchCorruption(kind="noise", noise=2.0)
    mask, patches, key = mask_of([1, 2]), images(), prng.root(0)
    expected = corrupted(key, patches, mask, kind="noise", noise=2.0)
    assert np.array_equal(jax.jit(config)(key, patches, mask), expected)
    assert PatchCorruption.from_json(config.to_json()) == config
    for bad in ({"kind": "blur"}, {"noise": 0.0}, {"noise": float("inf")}):
        with pytest.raises(ValidationError, match=next(iter(bad))):
            PatchCorruption(**bad)
