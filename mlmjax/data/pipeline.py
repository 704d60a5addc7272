"""Batches as a pure function of (seed, step), on any number of hosts, from any step on."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol, runtime_checkable

import grain
import numpy as np
from grain.experimental import index_shuffle
from jaxtyping import Int

from mlmjax.data.base import Places
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
    places: Places = None,
    threads: int = 4,
    weights: Sequence[float] = (1.0,),
) -> Generator[Arrays, None, None]:
    """Training batches ``start``, ``start + 1``, ...: whole, or those rows of each that a process needs.

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
        places: the rows of each global batch that are wanted, ascending; all by default.
        threads: threads that read ahead.
        weights: of each source of the rows; how much of the stream it makes up.

    Returns:
        An iterator of arrays by name, as the rows assemble them; among them ``valid`` bool, ``id``
        uint32 [batch, 2] (high and low word of the row's index) and ``epoch`` int32 [batch]. Closing or
        dropping it ends its threads.
    """
    size = (_ENDLESS if stop is None else stop) - start
    order = _Order(rows.streams, tuple(weights), seed)
    wanted = range(batch) if places is None else places
    return _stream(_Shuffled(rows, size, order, batch, start, wanted), threads)


def heldout_batches(
    rows: Rows,
    *,
    seed: int,
    batch: int,
    places: Places = None,
    threads: int = 4,
) -> Generator[Arrays, None, None]:
    """Every row once, in order, as epoch 0; see :func:`batches`.

    The last batch is filled up with rows that are empty and not valid, so its shape is that of the
    others.
    """
    wanted = range(batch) if places is None else places
    return _stream(_InOrder(rows, seed, batch, wanted), threads)


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

    def at(
        self, positions: Sequence[int]
    ) -> tuple[Int[np.ndarray, " some"], Int[np.ndarray, " some"]]:
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
    places: Sequence[int] | np.ndarray

    def __len__(self) -> int:
        return max(0, self.size)

    def __getitem__(self, place: int) -> Arrays:
        first = (self.start + place) * self.batch
        index, epoch = self.order.at([first + int(each) for each in self.places])
        return self.rows.assemble(index, epoch, seed=self.order.seed)


@dataclass(frozen=True)
class _InOrder:
    rows: Rows
    seed: int
    batch: int
    places: Sequence[int] | np.ndarray

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch)

    def __getitem__(self, place: int) -> Arrays:
        index = place * self.batch + np.asarray(self.places, np.int64)
        index = index[index < len(self.rows)]
        arrays = self.rows.assemble(index, np.zeros(len(index), np.int64), seed=self.seed)
        missing = len(self.places) - len(index)
        return {
            name: np.pad(
                array,
                [(0, missing)] + [(0, 0)] * (array.ndim - 1),
                constant_values=self.rows.empty.get(name, 0),
            )
            for name, array in arrays.items()
        }


def _stream(source: _Shuffled | _InOrder, threads: int) -> Generator[Arrays, None, None]:
    # The source gives whole batches, read in one call each, so threads work on whole batches too.
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(_AHEAD, threads))
    iterator = iter(grain.MapDataset.source(source).to_iter_dataset(options))
    try:
        yield from iterator
    finally:
        iterator.close()
