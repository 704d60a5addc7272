"""What the tests of this room share: a small model, and ten short documents, each in a row of its own or packed."""

from functools import cache

import jax.numpy as jnp
import numpy as np
from flax import nnx

from mlmjax.core.types import Batch
from mlmjax.core.vocabulary import Vocabulary
from mlmjax.models.bert import Bert, BertConfig

VOCABULARY = Vocabulary(
    size=90, padding=0, unknown=1, start=2, separator=3, mask=4, special=(0, 1, 2, 3, 4)
)
LENGTH, ROWS, DOCUMENTS = 24, 4, 5
SIZES = (3, 4, 5, 6, 6, 7, 8, 9, 13, 24)
"""Tokens of each document, [CLS] and [SEP] included."""
MODEL = BertConfig(
    vocabulary=90, layers=1, hidden=16, heads=2, mlp=32, positions=LENGTH, span_boundary=3
)


@cache
def model() -> Bert:
    """A model of those sizes, built once for all tests."""
    return nnx.jit(lambda: MODEL.build(nnx.Rngs(params=0)))()


def documents() -> list[dict[str, np.ndarray]]:
    """What each document is; its words have one token or two."""
    found = []
    for number, size in enumerate(SIZES):
        rng = np.random.default_rng(number)
        inner = rng.integers(5, 90, size - 2)
        word = rng.random(size) < 0.6
        word[1::2] = True
        word[[0, -1]] = False
        found.append(
            {
                "tokens": np.array([2, *inner, 3], np.int32),
                "valid": np.ones(size, bool),
                "word_starts": word,
                "sentence_starts": word & (rng.random(size) < 0.3),
                "frequency": np.array([0, *inner / 4000, 0], np.float32),
                "segments": np.zeros(size, np.int32),
                "id": np.array([7, 1000 + number], np.uint32),
            }
        )
    return found


def alone(epoch: int = 0) -> Batch:
    """Each document in a row of its own, with its id."""
    rows = [_row([one]) for one in documents()]
    ids = [one["id"] for one in documents()]
    return _batch(rows, np.stack(ids), epoch)


def packed(rows: list[list[int]], epoch: int = 0) -> Batch:
    """Packed rows, each given by the numbers of its documents."""
    every, found = documents(), []
    for row in rows:
        chosen = [every[number] for number in row]
        sizes = [len(one["tokens"]) for one in chosen]
        owner = np.full(LENGTH, DOCUMENTS, np.int32)
        owner[: sum(sizes)] = np.repeat(np.arange(len(row)), sizes)
        ids = np.zeros((DOCUMENTS, 2), np.uint32)
        for place, one in enumerate(chosen):
            ids[place] = one["id"]
        found.append({**_row(chosen), "documents": owner, "document_ids": ids})
    numbers = np.arange(len(rows), dtype=np.uint32)
    return _batch(found, np.stack([numbers * 0, numbers], 1), epoch)


def _row(chosen: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Documents one behind the other, padded with zero and False."""
    every, found = documents()[0], {}
    for name in every.keys() - {"id"}:
        found[name] = np.zeros(LENGTH, every[name].dtype)
        joined = [one[name] for one in chosen]
        values = np.concatenate(joined) if joined else found[name][:0]
        found[name][: values.size] = values
    return found


def _batch(rows: list[dict[str, np.ndarray]], ids: np.ndarray, epoch: int) -> Batch:
    batch = {name: jnp.asarray(np.stack([row[name] for row in rows])) for name in rows[0]}
    return {**batch, "id": jnp.asarray(ids), "epoch": jnp.full(len(rows), epoch, jnp.int32)}
