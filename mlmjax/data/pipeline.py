"""Batches as a pure function of (seed, step), on any number of hosts, from any step on."""

from collections.abc import Generator
from dataclasses import dataclass

import grain
import numpy as np
from grain.experimental import index_shuffle
from jaxtyping import Int

from mlmjax.core.errors import UserError
from mlmjax.data.pairs import draw_seconds, draws
from mlmjax.data.rows import Rows

Arrays = dict[str, np.ndarray]

_ENDLESS = 2**48
_AHEAD = 8


def batches(
    rows: Rows,
    *,
    seed: int,
    batch: int,
    start: int = 0,
    stop: int | None = None,
    process_index: int = 0,
    process_count: int = 1,
    threads: int = 4,
) -> Generator[Arrays, None, None]:
    """Training batches ``start``, ``start + 1``, ...: this process's slice of each.

    Position p = step * batch + i of an endless stream lies in epoch ``p // len(rows)``. An epoch
    visits each row once, in an order that is a pseudorandom permutation keyed on (seed, epoch) and
    computed per position; so any batch is found without those before it.

    Args:
        rows: prepared rows.
        seed: the run's seed.
        batch: rows in a global batch.
        start: the first step.
        stop: the step before which to end; none is endless.
        process_index: which slice of each global batch to give.
        process_count: into how many slices.
        threads: threads that read ahead.

    Returns:
        An iterator of arrays by name: ``tokens`` int32 [batch, length], ``valid`` and
        ``word_starts`` bool, ``segments`` int32, ``id`` uint32 [batch, 2] (high and low word of the
        row's index), ``epoch`` int32 [batch]; for pairs ``is_next`` int32 [batch]. Closing or
        dropping it ends its threads.

    Raises:
        UserError: the batch does not divide among the processes.
    """
    local = _local(batch, process_count)
    size = (_ENDLESS if stop is None else stop) - start
    return _stream(_Shuffled(rows, size, seed, batch, start, process_index * local, local), threads)


def heldout_batches(
    rows: Rows,
    *,
    seed: int,
    batch: int,
    process_index: int = 0,
    process_count: int = 1,
    threads: int = 4,
) -> Generator[Arrays, None, None]:
    """Every row once, in order, as epoch 0; see :func:`batches`.

    The last batch is filled up with rows that are padding throughout, so its shape is that of the
    others.
    """
    local = _local(batch, process_count)
    return _stream(_InOrder(rows, seed, batch, process_index * local, local), threads)


@dataclass(frozen=True)
class _Shuffled:
    rows: Rows
    size: int
    seed: int
    batch: int
    start: int
    offset: int
    local: int

    def __len__(self) -> int:
        return max(0, self.size)

    def __getitem__(self, place: int) -> Arrays:
        first = (self.start + place) * self.batch + self.offset
        positions = range(first, first + self.local)
        count = len(self.rows)
        epoch = [position // count for position in positions]
        seeds = {e: draws("order", self.seed, e, count=1)[0] % 2**32 for e in set(epoch)}
        index = [
            index_shuffle(position % count, max_index=count - 1, seed=seeds[e], rounds=4)
            for position, e in zip(positions, epoch, strict=True)
        ]
        return assemble(self.rows, np.array(index), np.array(epoch), seed=self.seed)


@dataclass(frozen=True)
class _InOrder:
    rows: Rows
    seed: int
    batch: int
    offset: int
    local: int

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch)

    def __getitem__(self, place: int) -> Arrays:
        first = place * self.batch + self.offset
        index = np.arange(first, min(first + self.local, len(self.rows)))
        arrays = assemble(self.rows, index, np.zeros(len(index), np.int64), seed=self.seed)
        missing = self.local - len(index)
        empty = {"tokens": self.rows.padding}
        return {
            name: np.pad(
                array,
                [(0, missing)] + [(0, 0)] * (array.ndim - 1),
                constant_values=empty.get(name, 0),
            )
            for name, array in arrays.items()
        }


def assemble(
    rows: Rows, index: Int[np.ndarray, " batch"], epoch: Int[np.ndarray, " batch"], *, seed: int
) -> Arrays:
    """The arrays of some rows in some epochs: what :func:`batches` yields."""
    table = rows.read(index.tolist())
    arrays: Arrays = {}
    if rows.pairs:
        table, arrays["is_next"] = draw_seconds(rows, table, index=index, epoch=epoch, seed=seed)
    return {
        "tokens": table["tokens"].astype(np.int32),
        "valid": np.arange(rows.length) < table["used"][:, None],
        "word_starts": table["word_starts"].copy(),
        "segments": table["segments"].astype(np.int32),
        "id": np.stack([index >> 32, index & 0xFFFFFFFF], axis=-1).astype(np.uint32),
        "epoch": epoch.astype(np.int32),
        **arrays,
    }


def _local(batch: int, process_count: int) -> int:
    if batch % process_count:
        raise UserError(
            f"A batch of {batch} rows does not divide among {process_count} processes; choose a "
            "multiple (--data.batch)."
        )
    return batch // process_count


def _stream(source: _Shuffled | _InOrder, threads: int) -> Generator[Arrays, None, None]:
    # The source gives whole batches, read in one call each, so threads work on whole batches too.
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=_AHEAD)
    iterator = iter(grain.MapDataset.source(source).to_iter_dataset(options))
    try:
        yield from iterator
    finally:
        iterator.close()
