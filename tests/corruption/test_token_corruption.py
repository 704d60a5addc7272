"""Corruption of tokens: shares, which tokens are drawn, and that nothing else changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from pydantic import ValidationError
from scipy import stats

from mlmjax.core import prng
from mlmjax.core.config import Config
from mlmjax.core.errors import UserError
from mlmjax.core.types import Mask
from mlmjax.core.vocabulary import Vocabulary
from mlmjax.corruption import Kind, TokenCorruption, corrupt_tokens
from mlmjax.corruption.draws import bits_at

LENGTH = 16
VOCABULARY = Vocabulary(
    size=50, padding=0, unknown=1, start=2, separator=3, mask=17, special=(0, 1, 2, 3, 17, 18, 49)
)

seeds = st.integers(0, 2**31 - 1)
rows = st.lists(st.integers(0, 49), min_size=LENGTH, max_size=LENGTH)
chosen = st.sets(st.integers(0, LENGTH - 1), max_size=8)


def mask_of(positions, capacity=8):
    """The mask of some positions of one row."""
    unused = [0] * (capacity - len(positions))
    weight = [1.0] * len(positions) + [0.0] * len(unused)
    return Mask(
        jnp.asarray([*sorted(positions), *unused], jnp.int32), jnp.asarray(weight, jnp.float32)
    )


def everywhere(number, length):
    """The mask of all positions of ``number`` rows."""
    return Mask(jnp.broadcast_to(jnp.arange(length), (number, length)), jnp.ones((number, length)))


@jax.jit
def corrupt(key, tokens, mask):
    return TokenCorruption()(key, tokens, mask, VOCABULARY)


def keys(number, seed=0):
    return jax.random.split(prng.stream(prng.root(seed), "corruption"), number)


@given(seed=seeds, row=rows, positions=chosen)
def test_each_place_has_its_fate_and_nothing_else_changes(seed, row, positions):
    row = jnp.asarray(row, jnp.int32)
    found = corrupt(prng.root(seed), row, mask_of(positions))
    tokens, kind = np.asarray(found.tokens), np.asarray(found.kind)
    others = sorted(set(range(LENGTH)) - positions)
    assert found.tokens.dtype == row.dtype
    assert np.array_equal(tokens[others], np.asarray(row)[others])
    for position, fate in zip(sorted(positions), kind, strict=False):
        if fate == Kind.MASK:
            assert tokens[position] == VOCABULARY.mask
        elif fate == Kind.KEEP:
            assert tokens[position] == row[position]
        else:
            assert tokens[position] not in VOCABULARY.special
    assert (kind[len(positions) :] == Kind.KEEP).all()


@given(seed=seeds, index=st.lists(st.integers(0, 999), min_size=8, max_size=8))
def test_the_words_of_some_positions_are_those_of_the_whole_draw(seed, index):
    index = jnp.asarray(index)
    found, whole = some_and_all(prng.root(seed), index)
    assert np.array_equal(found, whole[index])


@jax.jit
def some_and_all(key, index):
    return bits_at(key, index), jax.random.bits(key, (1000,), jnp.uint32)


@given(seed=seeds, row=rows)
def test_unused_places_leave_the_first_token_alone(seed, row):
    row = jnp.asarray(row, jnp.int32)
    assert np.array_equal(corrupt(prng.root(seed), row, mask_of(set())).tokens, row)
    first = corrupt(prng.root(seed), row, mask_of({0}))
    if first.kind[0] == Kind.MASK:
        assert first.tokens[0] == VOCABULARY.mask


@given(seed=seeds, row=rows, positions=chosen)
def test_a_fate_does_not_depend_on_the_rest_of_the_mask(seed, row, positions):
    row = jnp.asarray(row, jnp.int32)
    all_ = corrupt(prng.root(seed), row, mask_of(range(LENGTH), LENGTH)).tokens
    some = corrupt(prng.root(seed), row, mask_of(positions)).tokens
    places = sorted(positions)
    assert np.array_equal(some[jnp.asarray(places, jnp.int32)], np.asarray(all_)[places])


@pytest.mark.parametrize("shares", [(0.8, 0.1, 0.1), (0.5, 0.2, 0.3), (1 / 3, 1 / 3, 1 / 3)])
def test_shares_over_a_million_tokens(shares):
    size, number, length = 1000, 2000, 512
    corruption = TokenCorruption(mask=shares[0], random=shares[1], keep=shares[2])
    vocabulary = VOCABULARY.updated(size=size)
    tokens = jnp.full((number, length), 999, jnp.int32)
    found = jax.jit(jax.vmap(lambda key, row, mask: corruption(key, row, mask, vocabulary)))(
        keys(number), tokens, everywhere(number, length)
    )
    kind, seen = np.asarray(found.kind), np.asarray(found.tokens)
    counts = np.bincount(kind.ravel(), minlength=3)
    assert counts.sum() == number * length > 1_000_000
    assert stats.chisquare(counts, np.array(shares) * counts.sum()).pvalue > 1e-3
    by_position = np.stack([(kind == fate).sum(axis=0) for fate in Kind])
    assert stats.chi2_contingency(by_position).pvalue > 1e-3
    assert (seen[kind == Kind.MASK] == VOCABULARY.mask).all()
    assert (seen[kind == Kind.KEEP] == 999).all()
    drawn = np.bincount(seen[kind == Kind.RANDOM], minlength=size)
    assert not drawn[list(VOCABULARY.special)].any()
    assert stats.chisquare(np.delete(drawn, VOCABULARY.special)).pvalue > 1e-3


SPANS = TokenCorruption(mask=0.5, random=0.3, keep=0.2, unit="span")


@jax.jit
def corrupt_spans(key, tokens, mask):
    return SPANS(key, tokens, mask, VOCABULARY)


@given(seed=seeds, row=rows, positions=chosen)
def test_a_span_has_one_fate(seed, row, positions):
    """That of its first token alone; which of two touching spans a token came from is not seen."""
    row = jnp.asarray(row, jnp.int32)
    kind = np.asarray(corrupt_spans(prng.root(seed), row, mask_of(positions)).kind)
    starts = {at for at in positions if at - 1 not in positions}
    fate = np.asarray(corrupt_spans(prng.root(seed), row, mask_of(starts)).kind)
    of_run = dict(zip(sorted(starts), fate, strict=False))
    for position, found in zip(sorted(positions), kind, strict=False):
        while position not in starts:
            position -= 1
        assert found == of_run[position]
    assert (kind[len(positions) :] == Kind.KEEP).all()


def test_shares_of_spans_and_tokens_drawn_one_by_one():
    """Runs of three with a gap after each: shares over runs, and the random tokens of a run differ."""
    number, length = 3000, 64
    positions = jnp.asarray([at for at in range(length) if at % 4], jnp.int32)
    mask = Mask(
        jnp.broadcast_to(positions, (number, positions.size)), jnp.ones((number, positions.size))
    )
    tokens = jnp.full((number, length), 20, jnp.int32)
    found = jax.jit(jax.vmap(corrupt_spans))(keys(number), tokens, mask)
    kind = np.asarray(found.kind).reshape(number, -1, 3)
    assert (kind == kind[..., :1]).all()
    counts = np.bincount(kind[..., 0].ravel(), minlength=3)
    assert stats.chisquare(counts, np.array([0.5, 0.3, 0.2]) * counts.sum()).pvalue > 1e-3
    seen = np.asarray(found.tokens)[:, np.asarray(positions)].reshape(kind.shape)
    drawn = seen[kind[..., 0] == Kind.RANDOM]
    same = (drawn[:, 0] == drawn[:, 1]).mean()
    assert same == pytest.approx(1 / (50 - 7), rel=0.15)


@pytest.mark.parametrize("only", list(Kind))
def test_a_share_of_one_is_all_and_of_zero_is_nothing(only):
    shares = tuple(float(kind == only) for kind in Kind)
    found = jax.jit(
        jax.vmap(
            lambda key, row, mask: corrupt_tokens(
                key, row, mask=mask, mask_id=4, size=9, special=(4,), shares=shares
            )
        )
    )(keys(200), jnp.full((200, 512), 5, jnp.int32), everywhere(200, 512))
    assert (found.kind == only).all()


@settings(max_examples=8)
@given(
    special=st.sets(st.integers(0, 11), max_size=11),
    seed=seeds,
)
def test_every_ordinary_token_is_drawn_and_no_special_one(special, seed):
    found = corrupt_tokens(
        prng.root(seed),
        jnp.zeros(400, jnp.int32),
        mask=Mask(jnp.arange(400), jnp.ones(400)),
        mask_id=0,
        size=12,
        special=tuple(special),
        shares=(0.0, 1.0, 0.0),
    )
    assert set(np.asarray(found.tokens).tolist()) == set(range(12)) - special


def test_corruption_does_not_depend_on_how_it_is_computed():
    """Neither on jit, vmap, the order of the batch, nor the devices."""
    inputs = (
        keys(16),
        jnp.asarray(np.random.default_rng(0).integers(0, 50, (16, LENGTH)), jnp.int32),
        everywhere(16, LENGTH),
    )
    many = jax.jit(jax.vmap(corrupt))
    whole = many(*inputs)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    spread = many(*jax.device_put(inputs, NamedSharding(mesh, PartitionSpec("data"))))
    assert len(spread.tokens.sharding.device_set) == 8
    assert same(spread, whole)
    order = np.random.default_rng(1).permutation(16)
    part = jax.tree.map(lambda leaf: leaf[order], inputs)
    assert same(many(*part), jax.tree.map(lambda leaf: leaf[order], whole))
    key, row, mask = jax.tree.map(lambda leaf: leaf[3], inputs)
    alone = TokenCorruption()(key, row, mask, VOCABULARY)
    assert same(alone, jax.tree.map(lambda leaf: leaf[3], whole))


def same(first, second):
    return all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    )


def test_bad_shares_are_refused():
    with pytest.raises(ValidationError, match=r"must sum to 1 .* 0\.9, 0\.1 and 0\.1"):
        TokenCorruption(mask=0.9)
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        TokenCorruption(mask=1.1, random=-0.1, keep=0.0)
    row, mask = jnp.zeros(LENGTH, jnp.int32), mask_of({1})
    with pytest.raises(UserError, match="must sum to 1"):
        corrupt_tokens(
            prng.root(0), row, mask=mask, mask_id=1, size=9, special=(1,), shares=(0.5, 0.1, 0.1)
        )
    with pytest.raises(UserError, match="no random token"):
        corrupt_tokens(prng.root(0), row, mask=mask, mask_id=1, size=2, special=(0, 1))


def test_a_corruption_is_a_value():
    corruption = TokenCorruption(mask=1.0, random=0.0, keep=0.0)
    assert Config.from_json(corruption.to_json()) == corruption
