"""How tensors become parameters and parameters tensors: rows of a table, each of which can be read both ways."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

Arrays = Sequence[np.ndarray]
Pieces = Sequence[tuple[tuple[slice, ...], np.ndarray]]
"""Parts of an array: where each lies, as a start and a stop for each axis, and the memory for it."""

_ROWS = 64
"""Rows of a tensor that are copied at a time: of so many, what is transposed stays in the cache."""


@dataclass(frozen=True)
class Change:
    """A rearrangement of values, and its inverse; it adds up and scales nothing.

    Attributes:
        ours: from the tensors of a layer to our parameter of it; best a view of them, of which nothing is read yet.
        theirs: from that to the tensors.
        axis: of our parameter, along which the tensors lie side by side; ``ours`` then gets them one by one.
    """

    ours: Callable[[Arrays], np.ndarray]
    theirs: Callable[[np.ndarray], Arrays]
    axis: int | None = None

    def fill(self, pieces: Pieces, tensors: Arrays) -> None:
        """Write our parameter of a layer, as far as its pieces go; no more is read."""
        if self.axis is None:
            whole = self.ours(tensors)
            for index, place in pieces:
                _copy(whole[index], place, tensors[0])
            return
        for number, tensor in enumerate(tensors):
            whole = self.ours([tensor])
            for index, place in pieces:
                along = index[self.axis]
                if along.start <= number < along.stop:
                    rest = index[: self.axis] + index[self.axis + 1 :]
                    _copy(
                        whole[rest], np.moveaxis(place, self.axis, 0)[number - along.start], tensor
                    )


@dataclass(frozen=True)
class Row:
    """A parameter and the tensors that it is made of.

    Attributes:
        part: of the model to which it belongs; a part is there whole or not at all.
        ours: path of the parameter.
        theirs: names of the tensors; with ``{layer}``, the parameter is that of all layers, stacked.
        change: between them.
    """

    part: str
    ours: str
    theirs: tuple[str, ...]
    change: Change

    @property
    def stacked(self) -> bool:
        """Does the parameter hold all layers?"""
        return "{layer}" in self.theirs[0]

    def names(self, layers: int) -> list[tuple[str, ...]]:
        """The tensors' names, those of each layer by themselves."""
        if not self.stacked:
            return [self.theirs]
        return [tuple(each.format(layer=i) for each in self.theirs) for i in range(layers)]

    def fill(
        self, read: Callable[[str], np.ndarray], pieces: Pieces
    ) -> Iterator[Callable[[], None]]:
        """What writes the parameter into its pieces; a layer a task, in any order. Each tensor is read once."""
        if not self.stacked:
            yield partial(self._fill, read, self.theirs, pieces)
            return
        for layer, names in enumerate(self.names(max(index[0].stop for index, _ in pieces))):
            of_layer = [
                (index[1:], place[layer - index[0].start])
                for index, place in pieces
                if index[0].start <= layer < index[0].stop
            ]
            if of_layer:
                yield partial(self._fill, read, names, of_layer)

    def _fill(
        self, read: Callable[[str], np.ndarray], names: tuple[str, ...], pieces: Pieces
    ) -> None:
        self.change.fill(pieces, [read(name) for name in names])

    def to_theirs(self, parameter: np.ndarray) -> Iterable[tuple[str, np.ndarray]]:
        """The tensors by name."""
        places = list(parameter) if self.stacked else [parameter]
        for place, names in zip(places, self.names(len(places)), strict=True):
            yield from zip(names, self.change.theirs(place), strict=True)


def _copy(values: np.ndarray, place: np.ndarray, tensor: np.ndarray) -> None:
    """Copy a view of a tensor, some rows of the tensor at a time."""
    if values.ndim == 0:
        place[...] = values
        return
    axis = max(range(values.ndim), key=lambda each: abs(values.strides[each]))
    apart = max(abs(values.strides[axis]), 1)
    step = max(_ROWS * math.prod(tensor.shape[-1:]) * tensor.itemsize // apart, 1)
    for start in range(0, values.shape[axis], step):
        piece = (slice(None),) * axis + (slice(start, start + step),)
        place[piece] = values[piece]


def _one(ours: Callable, theirs: Callable) -> Change:
    return Change(lambda arrays: ours(arrays[0]), lambda array: [theirs(array)])


SAME = _one(lambda a: a, lambda a: a)
"""Vectors and tables."""

LEADING = _one(lambda a: a[0], lambda a: a[None])
"""A tensor with an axis of size 1 before those of ours."""

TRANSPOSED = _one(np.transpose, np.transpose)
"""A weight that PyTorch keeps as (outputs, inputs)."""

REVERSED = _one(lambda a: a[::-1], lambda a: a[::-1])
"""A bias of two classes, in the other order."""

REVERSED_TRANSPOSED = _one(lambda a: a[::-1].T, lambda a: a.T[::-1])
"""A weight to two classes, in the other order."""


def query_key_value(heads: int) -> Change:
    """Three weights (heads x size, inputs) and one kernel (inputs, heads, 3, size)."""

    def ours(arrays: Arrays) -> np.ndarray:
        (one,) = arrays
        return one.reshape(heads, -1, one.shape[-1]).transpose(2, 0, 1)

    def theirs(array: np.ndarray) -> Arrays:
        return list(array.transpose(2, 1, 3, 0).reshape(3, -1, array.shape[0]))

    return Change(ours, theirs, axis=2)


def query_key_value_bias(heads: int) -> Change:
    """Three vectors (heads x size,) and one array (heads, 3, size)."""
    return Change(
        lambda arrays: arrays[0].reshape(heads, -1),
        lambda array: list(array.swapaxes(0, 1).reshape(3, -1)),
        axis=1,
    )


def fused(change: Change, count: int) -> Change:
    """A change of ``count`` tensors that lie side by side in ours, of one that holds them along its first axis."""
    axis = change.axis
    assert axis is not None

    def ours(array: np.ndarray) -> np.ndarray:
        return np.stack([change.ours([each]) for each in np.split(array, count)], axis)

    return _one(ours, lambda a: np.concatenate(change.theirs(a)))


def joined_heads(heads: int) -> Change:
    """A weight (outputs, heads x size) and a kernel (heads, size, outputs)."""
    return _one(
        lambda a: a.T.reshape(heads, -1, a.shape[0]), lambda a: a.reshape(-1, a.shape[-1]).T
    )


def padded(rows: int, columns: int) -> Change:
    """A table or vector of so many rows, and ours with more, which are zeros."""

    def ours(array: np.ndarray) -> np.ndarray:
        return np.pad(array, [(0, columns - rows)] + [(0, 0)] * (array.ndim - 1))

    return SAME if rows == columns else _one(ours, lambda a: a[:rows])


def below(rows: int) -> Change:
    """A table with so many rows, zeros that nothing reads, below those that ours has."""
    return _one(lambda a: a[rows:], lambda a: np.pad(a, [(rows, 0)] + [(0, 0)] * (a.ndim - 1)))


def patches(height: int, width: int, channels: int) -> Change:
    """A convolution's weight (outputs, channels, height, width) and a kernel of flat patches."""

    def theirs(array: np.ndarray) -> np.ndarray:
        return array.reshape(height, width, channels, -1).transpose(3, 2, 0, 1)

    return _one(lambda a: a.transpose(2, 3, 1, 0).reshape(-1, a.shape[0]), theirs)


def reshaped(shape: tuple[int, ...]) -> Change:
    """A tensor of that shape, and a vector."""
    return _one(lambda a: a.reshape(-1), partial(np.reshape, shape=shape))


def linear(part: str, ours: str, theirs: str, kernel: Change = TRANSPOSED) -> list[Row]:
    """Kernel and bias of an affine map."""
    return [
        Row(part, f"{ours}/kernel", (f"{theirs}.weight",), kernel),
        Row(part, f"{ours}/bias", (f"{theirs}.bias",), SAME),
    ]


def norm(part: str, ours: str, theirs: str) -> list[Row]:
    """Scale and bias of a layer normalisation."""
    return [
        Row(part, f"{ours}/scale", (f"{theirs}.weight",), SAME),
        Row(part, f"{ours}/bias", (f"{theirs}.bias",), SAME),
    ]


def attention(part: str, ours: str, projections: str, *, heads: int, out: str) -> list[Row]:
    """An attention layer's four projections.

    Args:
        part: of the model.
        ours: path of the layer.
        projections: their names of queries, keys and values, with ``{}`` for which.
        heads: of the attention.
        out: their name of the last projection.
    """
    names = [projections.replace("{}", each) for each in ("query", "key", "value")]
    weights, biases = (tuple(f"{name}.{kind}" for name in names) for kind in ("weight", "bias"))
    return [
        Row(part, f"{ours}/qkv/kernel", weights, query_key_value(heads)),
        Row(part, f"{ours}/qkv/bias", biases, query_key_value_bias(heads)),
        *linear(part, f"{ours}/out", out, joined_heads(heads)),
    ]
