"""Batches as a pure function of (seed, step), on any number of hosts, from any step on."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol, runtime_checkable

import grain
import numpy as np
from grain.experimental import index_shuffle
from jaxtyping import Int

from mlmjax.core.errors import UserError
from mlmjax.data.draws import draws

Arrays = dict[str, np.ndarray]

_ENDLESS = 2**48
_AHEAD = 8


@runtime_checkable
class Rows(Protocol):
    """Examples of any modality, read at random and from any number of threads."""

    streams: list[tuple[int, int]]
    """The first row of each source, and the one after its last."""
    empty: dict[str, int]
    """What stands in an array of a row that is none, where it is not 0."""

    def __len__(self) -> int: ...

    def assemble(
        self, index: Int[np.ndarray, " batch"], epoch: Int[np.ndarray, " batch"], *, seed: int
    ) -> Arrays:
        """The arrays of some rows in some epochs: a part of a batch. Whatever is random in it is a pure
        function of (seed, epoch, index)."""


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
    weights: Sequence[float] = (1.0,),
) -> Generator[Arrays, None, None]:
    """Training batches ``start``, ``start + 1``, ...: this process's slice of each.

    Position p = step * batch + i of an endless stream lies in epoch ``p // len(rows)``. An epoch
    visits each row once, in an order that is a pseudorandom permutation keyed on (seed, epoch) and
    computed per position; so any batch is found without those before it. Of several sources, the
    weights say which a position is of, in a fixed order; each source has epochs of its own.

    Args:
        rows: prepared rows.
        seed: the run's seed.
        batch: rows in a global batch.
        start: the first step.
        stop: the step before which to end; none is endless.
        process_index: which slice of each global batch to give.
        process_count: into how many slices.
        threads: threads that read ahead.
        weights: of each source of the rows; how much of the stream it makes up.

    Returns:
        An iterator of arrays by name, as the rows assemble them; among them ``valid`` bool, ``id``
        uint32 [batch, 2] (high and low word of the row's index) and ``epoch`` int32 [batch]. Closing or
        dropping it ends its threads.

    Raises:
        UserError: the batch does not divide among the processes.
    """
    local = _local(batch, process_count)
    size = (_ENDLESS if stop is None else stop) - start
    order = _Order(rows.streams, tuple(weights), seed)
    return _stream(
        _Shuffled(rows, size, order, batch, start, process_index * local, local), threads
    )


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

    The last batch is filled up with rows that are empty and not valid, so its shape is that of the
    others.
    """
    local = _local(batch, process_count)
    return _stream(_InOrder(rows, seed, batch, process_index * local, local), threads)


@dataclass(frozen=True)
class _Order:
    """Which row, in which epoch, stands at a position of the endless stream."""

    streams: Sequence[tuple[int, int]]
    weights: tuple[float, ...]
    seed: int

    @cached_property
    def _mixed(self) -> grain.MapDataset | None:
        """(source, how many of its rows came before) of each position; none where there is one source."""
        there = [source for source, (begin, end) in enumerate(self.streams) if end > begin]
        if len(self.streams) == 1:
            return None
        endless = grain.MapDataset.range(_ENDLESS)
        sources = [endless.map(partial(_tagged, source)) for source in there]
        return grain.MapDataset.mix(sources, [self.weights[source] for source in there])

    def at(self, positions: range) -> tuple[Int[np.ndarray, " some"], Int[np.ndarray, " some"]]:
        """Row and epoch at each position."""
        mixed = self._mixed
        places = [mixed[p] if mixed is not None else (0, p) for p in positions]
        sizes = [end - begin for begin, end in self.streams]
        epoch = [before // sizes[source] for source, before in places]
        kinds = set(zip((source for source, _ in places), epoch, strict=True))
        seeds = {kind: self._seed(*kind) for kind in kinds}
        index = [
            self.streams[source][0]
            + index_shuffle(
                before % sizes[source],
                max_index=sizes[source] - 1,
                seed=seeds[source, e],
                rounds=4,
            )
            for (source, before), e in zip(places, epoch, strict=True)
        ]
        return np.array(index), np.array(epoch)

    def _seed(self, source: int, epoch: int) -> int:
        # The first source is named by nothing, so that the order of one alone is not of its place.
        return draws("order", self.seed, epoch, *([source] if source else []), count=1)[0] % 2**32


def _tagged(source: int, place: int) -> tuple[int, int]:
    return source, place


@dataclass(frozen=True)
class _Shuffled:
    rows: Rows
    size: int
    order: _Order
    batch: int
    start: int
    offset: int
    local: int

    def __len__(self) -> int:
        return max(0, self.size)

    def __getitem__(self, place: int) -> Arrays:
        first = (self.start + place) * self.batch + self.offset
        index, epoch = self.order.at(range(first, first + self.local))
        return self.rows.assemble(index, epoch, seed=self.order.seed)


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
        arrays = self.rows.assemble(index, np.zeros(len(index), np.int64), seed=self.seed)
        missing = self.local - len(index)
        return {
            name: np.pad(
                array,
                [(0, missing)] + [(0, 0)] * (array.ndim - 1),
                constant_values=self.rows.empty.get(name, 0),
            )
            for name, array in arrays.items()
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
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(_AHEAD, threads))
    iterator = iter(grain.MapDataset.source(source).to_iter_dataset(options))
    try:
        yield from iterator
    finally:
        iterator.close()
