"""Meshes, and what does not fit them."""

import jax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec
from pydantic import ValidationError

from mlmjax.core.errors import UserError
from mlmjax.models.bert import BertConfig
from mlmjax.sharding import (
    MeshConfig,
    batch_sharding,
    check_batch,
    local_places,
    parameter_shardings,
)


def test_minus_one_takes_all_that_are_left() -> None:
    assert MeshConfig(data=-1, fsdp=2, tensor=2).sizes(8) == {"data": 2, "fsdp": 2, "tensor": 2}
    assert MeshConfig().sizes(1) == {"data": 1, "fsdp": 1, "tensor": 1}


@pytest.mark.parametrize(
    "mesh", [MeshConfig(data=3), MeshConfig(fsdp=3), MeshConfig(fsdp=16), MeshConfig(fsdp=-1)]
)
def test_a_mesh_that_does_not_fit_the_devices_is_refused(mesh: MeshConfig) -> None:
    with pytest.raises(UserError, match=r"mesh"):
        mesh.sizes(8)


@pytest.mark.parametrize("size", [0, -2])
def test_axes_are_positive(size: int) -> None:
    with pytest.raises(ValidationError, match="positive number of devices"):
        MeshConfig(fsdp=size)


def test_a_batch_that_is_not_divided_names_one_that_is() -> None:
    mesh = MeshConfig(data=4, tensor=2).make()
    check_batch(mesh, 24, accumulate=3)
    with pytest.raises(UserError, match=r"--data.batch 30 .* such as 36"):
        check_batch(mesh, 30, accumulate=3)


def test_parameters_follow_the_table() -> None:
    config = BertConfig(vocabulary=64, layers=2, hidden=16, heads=4, mlp=32, positions=8)
    state = nnx.state(nnx.eval_shape(lambda: config.build(nnx.Rngs(params=0))))
    mesh = MeshConfig(data=1, fsdp=4, tensor=2).make(jax.devices())
    found = parameter_shardings(mesh, state)
    assert found["token"]["embedding"].spec == PartitionSpec("tensor", "fsdp")
    layers = found["encoder"]["layers"]
    assert layers["up"]["kernel"].spec == PartitionSpec(None, "fsdp", "tensor")
    assert layers["attention"]["out"]["kernel"].spec == PartitionSpec(None, "tensor", None, "fsdp")


def test_a_vocabulary_that_is_not_divided_says_what_to_set() -> None:
    config = BertConfig(vocabulary=63, layers=1, hidden=16, heads=4, mlp=32, positions=8)
    state = nnx.state(nnx.eval_shape(lambda: config.build(nnx.Rngs(params=0))))
    with pytest.raises(UserError, match=r"--model.vocabulary-multiple"):
        parameter_shardings(MeshConfig(tensor=2).make(), state)


def test_each_process_reads_what_its_devices_hold() -> None:
    """All rows here; and a batch of places comes to the devices as a whole batch would."""
    mesh = MeshConfig(data=2, fsdp=2, tensor=2).make()
    assert local_places(batch_sharding(mesh), 12).tolist() == list(range(12))
