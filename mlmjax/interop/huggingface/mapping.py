"""How tensors become parameters and parameters tensors: rows of a table, each of which can be read both ways."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

Arrays = Sequence[np.ndarray]


@dataclass(frozen=True)
class Change:
    """A rearrangement of values, and its inverse; it adds up and scales nothing.

    Attributes:
        ours: from the tensors of a layer to our parameter of it.
        theirs: from that to the tensors.
    """

    ours: Callable[[Arrays], np.ndarray]
    theirs: Callable[[np.ndarray], Arrays]


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

    def to_ours(self, read: Callable[[str], np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        """The parameter, of that shape, in float32; of many layers, each tensor is read for its place."""
        if not self.stacked:
            return np.asarray(self.change.ours([read(name) for name in self.theirs]), np.float32)
        whole = np.empty(shape, np.float32)
        for place, names in zip(whole, self.names(shape[0]), strict=True):
            place[...] = self.change.ours([read(name) for name in names])
        return whole

    def to_theirs(self, parameter: np.ndarray) -> Iterable[tuple[str, np.ndarray]]:
        """The tensors by name."""
        places = list(parameter) if self.stacked else [parameter]
        for place, names in zip(places, self.names(len(places)), strict=True):
            yield from zip(names, self.change.theirs(place), strict=True)


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
        stacked = np.stack(arrays)
        return stacked.reshape(3, heads, -1, stacked.shape[-1]).transpose(3, 1, 0, 2)

    def theirs(array: np.ndarray) -> Arrays:
        return list(array.transpose(2, 1, 3, 0).reshape(3, -1, array.shape[0]))

    return Change(ours, theirs)


def query_key_value_bias(heads: int) -> Change:
    """Three vectors (heads x size,) and one array (heads, 3, size)."""
    return Change(
        lambda arrays: np.stack(arrays).reshape(3, heads, -1).swapaxes(0, 1),
        lambda array: list(array.swapaxes(0, 1).reshape(3, -1)),
    )


def fused(change: Change, count: int) -> Change:
    """The same change of one tensor that holds its ``count``, one after the other along the first axis."""
    return _one(
        lambda a: change.ours(np.split(a, count)), lambda a: np.concatenate(change.theirs(a))
    )


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
