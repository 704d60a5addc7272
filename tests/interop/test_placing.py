"""Tensors of files in their places: pieces of a parameter, each read once, on any devices."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import PartitionSpec, SingleDeviceSharding
from safetensors.numpy import save_file

from mlmjax.core.errors import UserError
from mlmjax.interop.huggingface import placing
from mlmjax.interop.huggingface.mapping import (
    REVERSED,
    REVERSED_TRANSPOSED,
    SAME,
    TRANSPOSED,
    Change,
    Row,
    joined_heads,
    padded,
    patches,
    query_key_value,
    query_key_value_bias,
    reshaped,
)
from mlmjax.interop.huggingface.tensors import Tensors
from mlmjax.sharding import MeshConfig

# More rows than are copied at a time, and no multiple of them.
CHANGES: dict[str, tuple[Change, list[tuple[int, ...]], tuple[int, ...]]] = {
    "same": (SAME, [(150, 8)], (150, 8)),
    "vector": (SAME, [(150,)], (150,)),
    "transposed": (TRANSPOSED, [(150, 8)], (8, 150)),
    "reversed": (REVERSED, [(2,)], (2,)),
    "reversed and transposed": (REVERSED_TRANSPOSED, [(2, 8)], (8, 2)),
    "queries, keys, values": (query_key_value(10), [(150, 8)] * 3, (8, 10, 3, 15)),
    "their biases": (query_key_value_bias(10), [(150,)] * 3, (10, 3, 15)),
    "joined heads": (joined_heads(4), [(150, 8)], (4, 2, 150)),
    "padded": (padded(150, 160), [(150, 8)], (160, 8)),
    "patches": (patches(2, 3, 5), [(150, 5, 2, 3)], (30, 150)),
    "reshaped": (reshaped((1, 1, 150)), [(1, 1, 150)], (150,)),
}


def row_of(
    name: str, *, layers: int | None
) -> tuple[Row, dict[str, np.ndarray], tuple[int, ...], np.ndarray]:
    """A row, its tensors, the parameter's shape, and that as the tensors' plain rearrangement."""
    change, shapes, shape = CHANGES[name]
    draw = np.random.default_rng(0)
    layered = "{layer}." if layers else ""
    row = Row("", "", tuple(f"{layered}{place}" for place in range(len(shapes))), change)
    tensors = {
        each: draw.standard_normal(size, np.float32)
        for names in row.names(layers or 1)
        for each, size in zip(names, shapes, strict=True)
    }
    whole = (layers, *shape) if layers else shape
    return row, tensors, whole, _plain(row, tensors, whole)


def _plain(row: Row, tensors: dict[str, np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """The parameter by the inverse: where each of its values comes from, in numbers of the tensors' values."""
    numbered = np.arange(1, 1 + np.prod(shape)).reshape(shape)
    flat = np.zeros(numbered.size + 1, np.float32)
    for name, places in row.to_theirs(numbered):
        flat[places] = tensors[name]
    return flat[numbered]


@pytest.mark.parametrize("layers", [None, 3])
@pytest.mark.parametrize("name", CHANGES)
def test_pieces_are_parts_of_the_whole_which_is_the_inverse_of_writing(
    name: str, layers: int | None
) -> None:
    row, tensors, shape, expected = row_of(name, layers=layers)
    cuts = [(0, size // 2, size) for size in shape]
    everything = tuple(slice(0, size) for size in shape)
    corners = [tuple(slice(*cut[side : side + 2]) for cut in cuts) for side in (0, 1)]
    pieces = [
        (index, np.full(expected[index].shape, np.nan, np.float32))
        for index in (everything, *corners)
    ]
    for task in row.fill(tensors.__getitem__, pieces):
        task()
    for index, values in pieces:
        np.testing.assert_array_equal(values, expected[index])


def placed(
    name: str, sharding: Any, *, layers: int | None = 3
) -> tuple[jax.Array, np.ndarray, Counter]:
    row, tensors, shape, expected = row_of(name, layers=layers)
    read: Counter = Counter()

    def counted(each: str) -> np.ndarray:
        read[each] += 1
        return tensors[each]

    with ThreadPoolExecutor(2) as pool:
        return placing.placed(row, counted, shape, sharding, pool=pool), expected, read


def mesh_sharding(*axes: str | None) -> jax.sharding.NamedSharding:
    mesh = MeshConfig(data=2, fsdp=2, tensor=2).make()
    return jax.sharding.NamedSharding(mesh, PartitionSpec(*axes))


@pytest.mark.parametrize("axes", [(None, "fsdp", "tensor"), (None, None, "fsdp"), ()])
def test_each_tensor_is_read_once_for_all_shards(axes: tuple[str | None, ...]) -> None:
    sharding = mesh_sharding(*axes)
    array, expected, read = placed("queries, keys, values", sharding)
    np.testing.assert_array_equal(array, expected)
    assert array.sharding == sharding
    assert read == dict.fromkeys((f"{layer}.{each}" for layer in range(3) for each in range(3)), 1)


@pytest.mark.parametrize("cut", [False, True])
def test_a_device_takes_the_memory_over(cut: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[np.ndarray] = []
    empty = placing._empty

    def seen(shape: tuple[int, ...]) -> np.ndarray:
        made.append(empty(shape))
        return made[-1]

    monkeypatch.setattr(placing, "_empty", seen)
    sharding = (
        mesh_sharding(None, "fsdp", "tensor") if cut else SingleDeviceSharding(jax.devices()[0])
    )
    array, expected, _ = placed("transposed", sharding)
    assert sum(each.size for each in made) == expected.size
    addresses = {each.data.unsafe_buffer_pointer() for each in array.addressable_shards}
    assert addresses == {each.ctypes.data for each in made}


def test_devices_that_share_memory_do_not_write_into_it() -> None:
    array, expected, _ = placed("transposed", mesh_sharding(None, "fsdp"))
    assert len({each.data.unsafe_buffer_pointer() for each in array.addressable_shards}) == 2
    doubled = jax.jit(lambda each: each * 2, donate_argnums=0)(array)
    for shard in doubled.addressable_shards:
        np.testing.assert_array_equal(shard.data, 2 * expected[shard.index])


def test_tensors_are_mapped_in_every_type(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    tensors = {
        "single": draw.standard_normal((3, 4), np.float32),
        "half": draw.standard_normal((5,)).astype(np.float16),
        "brain": draw.standard_normal((2, 3)).astype(ml_dtypes.bfloat16),
        "whole": np.arange(3),
        "flags": np.array([True, False, True]),
        "none": np.zeros((0, 4), np.float32),
        "one": np.array(2.5, np.float32),
    }
    file = tmp_path / "model.safetensors"
    save_file(tensors, file)
    found = Tensors(tmp_path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(found.read(name), tensor, strict=True)
        assert not found.read(name).flags.writeable
        assert found[name].dtype == tensor.dtype.name
    file.write_bytes(file.read_bytes()[:64])
    with pytest.raises(UserError, match="cannot be read any more"):
        found.read("single")
