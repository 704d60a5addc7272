"""The same run on any devices and any number of processes: the same examples, the same masks, the same losses."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from mlmjax.data.images import ImageData
from mlmjax.experiment import Experiment, load_experiment
from mlmjax.sharding import MeshConfig
from tests.processes import together
from tests.tracing import Traced, trace

ONE = MeshConfig(data=1)
MIXED = MeshConfig(data=2, fsdp=2, tensor=2)
MESHES = [MeshConfig(data=8), MeshConfig(data=1, fsdp=8), MIXED]


def on(experiment: Experiment, mesh: MeshConfig) -> Experiment:
    return experiment.updated(mesh=mesh)


@pytest.fixture(scope="module")
def tiny(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Experiment]:
    """The models, objectives and optimizers of two shipped configs, on a little data."""
    cache = str(tmp_path_factory.mktemp("cache"))
    bert, mae = (load_experiment(name) for name in ("bert_tiny", "mae_tiny"))
    text = bert.data.updated(
        root=str(texts),
        batch=8,
        cache=cache,
        tokenizer=bert.data.tokenizer.updated(vocabulary=120),
        heldout=0.2,
    )
    assert isinstance(mae.data, ImageData)
    images = mae.data.updated(batch=16, cache=cache)
    bert = bert.updated(data=text, model=bert.model.updated(vocabulary_multiple=8))
    mae = mae.updated(data=images)
    return [each.updated(run=each.run.updated(steps=20, log_every=1)) for each in (bert, mae)]


@pytest.fixture(scope="module")
def alone(tiny: list[Experiment]) -> list[list[Traced]]:
    """Their steps on one device."""
    return [trace(on(each, ONE), jax.devices()[:1]) for each in tiny]


def same(found: list[Traced], expected: list[Traced]) -> None:
    """The same examples and masks, bit for bit; losses up to the order of sums."""
    assert len(found) == len(expected) == 20
    for one, other in zip(found, expected, strict=True):
        assert (one.examples, one.masks) == (other.examples, other.masks)
    assert len({each.masks for each in found}) == 20
    np.testing.assert_allclose(
        [each.loss for each in found], [each.loss for each in expected], rtol=2e-4
    )


SPREAD = [
    pytest.param(0, MESHES[0], id="bert_tiny on data 8"),
    pytest.param(0, MESHES[1], id="bert_tiny on fsdp 8"),
    pytest.param(0, MESHES[2], id="bert_tiny on all three"),
    pytest.param(1, MESHES[0], id="mae_tiny on data 8"),
    pytest.param(1, MESHES[1], id="mae_tiny on fsdp 8"),
    pytest.param(1, MESHES[2], id="mae_tiny on all three"),
]


@pytest.mark.parametrize(("kind", "mesh"), SPREAD)
def test_the_run_is_the_same_on_eight_devices(
    tiny: list[Experiment], alone: list[list[Traced]], kind: int, mesh: MeshConfig
) -> None:
    same(trace(on(tiny[kind], mesh)), alone[kind])


PROCESSES = [
    pytest.param(0, 2, MeshConfig(data=1, fsdp=4), id="bert_tiny on 2 processes, fsdp 4"),
    pytest.param(1, 4, MeshConfig(data=2, tensor=2), id="mae_tiny on 4, data 2 and tensor 2"),
    pytest.param(1, 2, MESHES[0], id="mae_tiny on 2, data 8", marks=pytest.mark.slow),
    pytest.param(0, 4, MIXED, id="bert_tiny on 4, all three", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("kind", "count", "mesh"), PROCESSES)
def test_the_run_is_the_same_on_several_processes(
    tiny: list[Experiment],
    alone: list[list[Traced]],
    kind: int,
    count: int,
    mesh: MeshConfig,
    tmp_path: Path,
) -> None:
    asked = on(tiny[kind], mesh).to_json()
    devices = mesh.data * mesh.fsdp * mesh.tensor
    done = together(tmp_path, count, devices=devices, experiments=[asked])
    assert done.status == [0] * count, done.said
    for out in done.out:
        (found,) = json.loads(out.read_text())
        same([Traced(*each) for each in found], alone[kind])
