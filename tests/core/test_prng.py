"""Keys are a pure function of names and numbers."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlmjax.core import prng

words = st.integers(0, 2**32 - 1)


def bits(key: jax.Array) -> np.ndarray:
    return np.asarray(jax.random.key_data(key))


@given(seed=words, name=st.text(), epoch=words, high=words, low=words)
def test_the_key_of_an_example_does_not_depend_on_its_batch(
    seed: int, name: str, epoch: int, high: int, low: int
) -> None:
    key = prng.stream(prng.root(seed), name)
    ids = jnp.array([[high, low], [3, 4], [high, low]], jnp.uint32)
    epochs = jnp.array([epoch, 1, epoch], jnp.uint32)
    batch = bits(prng.per_example(key, epochs, ids))
    alone = bits(prng.per_example(key, epochs[:1], ids[:1]))
    np.testing.assert_array_equal(batch[0], alone[0])
    np.testing.assert_array_equal(batch[0], batch[2])


def test_streams_epochs_and_ids_differ() -> None:
    ids = jnp.array([[0, 1], [1, 0], [0, 2]], jnp.uint32)
    found = [
        bits(prng.per_example(prng.stream(prng.root(seed), name), jnp.full(3, epoch), ids))
        for seed in (0, 1)
        for name in ("mask", "dropout")
        for epoch in (0, 1)
    ]
    rows = {tuple(row) for row in np.concatenate(found)}
    assert len(rows) == 8 * 3


def test_keys_are_those_of_earlier_versions() -> None:
    """A change here would change the masks of every run that is resumed."""
    key = prng.fold(prng.stream(prng.root(7), "mask"), 3, 4)
    assert bits(key).tolist() == FROZEN


FROZEN = [4127778776, 2563542946]
