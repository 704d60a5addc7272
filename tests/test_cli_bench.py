"""``mlmjax bench``: figures that agree with each other and with the work, and how it refuses."""

import time
from pathlib import Path

import numpy as np
import pytest

from mlmjax.cli import main
from mlmjax.data.base import Batches, Prepared
from mlmjax.experiment import Experiment, load_experiment
from mlmjax.sharding import MeshConfig
from mlmjax.training import ceiling, speed
from mlmjax.training.ceiling import product_rate
from mlmjax.training.speed import measure, pipeline_rate
from mlmjax.training.step import Program
from tests.commands import printed, refused

POSITIVE = {
    "steps_per_second",
    "rows_per_second",
    "tokens_per_second",
    "step_seconds",
    "data_wait_seconds",
    "data_wait_share",
    "pipeline_rows_per_second",
    "trace_seconds",
    "compile_seconds",
    "model_flops",
    "model_flops_per_second",
    "ceiling_flops_per_second",
    "utilisation",
    "peak_bytes",
}


def bench(config: str) -> list[str]:
    """The command; always of the same program, which is then compiled once."""
    return ["bench", config, "--mesh.fsdp", "4", "--model.layers", "1"]


@pytest.fixture(autouse=True)
def small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight fake devices need seconds for large ones."""
    monkeypatch.setattr(ceiling, "SIZES", (128, 256))


@pytest.fixture
def prepared(experiment: Experiment) -> Prepared:
    """The data."""
    return experiment.data.prepare()


@pytest.fixture
def program(config: str, prepared: Prepared) -> Program:
    """What :func:`bench` measures."""
    asked = load_experiment(config).updated(mesh=MeshConfig(fsdp=4))
    asked = asked.updated(model=asked.model.updated(layers=1))
    return Program.of(asked.fitted(prepared.vocabulary))


def test_figures_agree(config: str, program: Program, capsys: pytest.CaptureFixture) -> None:
    before = sorted(Path.cwd().iterdir())
    found = printed(capsys, *bench(config), "--steps", "5", "--json")
    assert sorted(Path.cwd().iterdir()) == before
    assert all(found[name] > 0 for name in POSITIVE)
    assert found["mesh"] == {"data": 2, "fsdp": 4, "tensor": 1}
    assert (found["devices"], found["dtype"], found["batch"]) == (8, "float32", 8)
    assert (found["steps"], found["skipped"]) == (5, 0)

    seconds = found["step_seconds"]
    assert found["steps_per_second"] == pytest.approx(1 / seconds)
    assert found["rows_per_second"] == pytest.approx(8 * found["steps_per_second"])
    assert found["tokens_per_second"] == pytest.approx(32 * found["rows_per_second"])
    assert found["data_wait_share"] == pytest.approx(found["data_wait_seconds"] / seconds)
    assert found["data_wait_share"] < 1

    assert found["model_flops"] == program.work.flops
    reached = found["model_flops"] / (seconds * found["ceiling_flops_per_second"])
    assert found["utilisation"] == pytest.approx(reached)

    held = found["bytes_per_device"]
    parts = ("arguments", "results", "temporaries", "code")
    assert held["total"] == sum(held[name] for name in parts)
    assert 0 < held["arguments"] < held["total"] < found["peak_bytes"]
    assert found["peak_of"] == "process"


def test_tables(config: str, capsys: pytest.CaptureFixture) -> None:
    main([*bench(config), "--steps", "2"])
    said = capsys.readouterr().out
    assert "8 x cpu, data 2 x fsdp 4 x tensor 1; batch 8, float32, 2 steps" in said
    for row in ("tokens a second", "waiting for data", "compiling", "a product on all devices"):
        assert row in said
    assert "state and batch" in said
    assert "Compiled programs are kept in" in said  # as the tests' settings say
    assert not Path("runs").exists()


def test_waiting_is_told_apart_and_every_batch_is_used(
    program: Program, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "product_rate", lambda mesh, dtype: 1e12)
    given: list[tuple[int, int, int]] = []

    def slow(start: int, stop: int) -> Batches:
        stream = prepared.batches(seed=0, batch=8, start=start, stop=stop, threads=1)
        for count, batch in enumerate(stream, 1):
            time.sleep(0.05)
            given.append((start, stop, count))
            yield batch

    steps: list[int] = []
    found = measure(program, slow, steps=4, warmup=2, on_step=steps.append)
    assert steps == [1, 2, 3, 4, 5, 6]
    assert found.step_seconds > found.wait_seconds >= 0.05
    assert found.wait_share > 0.3
    assert found.pipeline < 8 / 0.05
    assert found.utilisation == pytest.approx(program.work.flops / found.step_seconds / 1e12)
    assert (0, 6, 6) in given
    assert all(start >= 6 for start, stop, _ in given if stop != 6)  # rows not read before


def test_the_pipeline_is_timed_over_whole_batches() -> None:
    asked: list[tuple[int, int]] = []

    def part(start: int, stop: int) -> Batches:
        asked.append((start, stop))
        for _ in range(start, stop):
            time.sleep(0.01)
            yield {"id": np.zeros((6, 2), np.uint32)}

    rate = pipeline_rate(part, batch=6, start=3, count=5)
    assert asked == [(3, 8), (8, 28), (28, 108)]
    assert 200 < rate < 600


def test_the_ceiling_is_that_of_all_devices_and_larger_products_are_tried(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = experiment.mesh.make()
    tried: list[tuple[int, ...]] = []

    def seconds(multiply, left, right) -> float:
        assert len(left.sharding.device_set) == 8
        assert left.addressable_shards[0].data.shape == (1, *left.shape[1:])
        product = np.asarray(multiply(left, right))
        np.testing.assert_allclose(product[5], left[5] @ right[5], atol=1e-3)
        tried.append(left.shape)
        return 0.01 if len(tried) <= 4 * 2 else 1.0

    monkeypatch.setattr(ceiling, "SIZES", (16, 32, 64, 128))
    monkeypatch.setattr(ceiling, "_seconds", seconds)
    assert product_rate(mesh, "float32") == 2 * 8 * 32**3 / 0.01
    assert sorted(set(tried)) == [(8, 16, 16), (8, 32, 32), (8, 64, 64)]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--steps", "0"), "--steps 0: it must be at least 1"),
        (("--steps", "many"), "--steps: invalid int value: 'many'"),
        (("--stepz", "3"), "--stepz"),
        (("--mesh.fsdp", "3"), "--mesh.fsdp 3"),
        (("--data.batch", "12"), "--data.batch 12 is not divided by 8"),
        (("--mesh.data", "2", "--mesh.tensor", "4", "--model.mlp", "66"), "--mesh.tensor 4"),
        (("--data.root", "nowhere"), "nowhere"),
        (("--data.length", "64"), "--data.length to at most 32"),
    ],
)
def test_bad_options_are_refused(
    config: str, capsys: pytest.CaptureFixture, options: tuple[str, ...], sentence: str
) -> None:
    assert sentence in refused(capsys, "bench", config, *options)
    assert not Path("runs").exists()


def test_bad_configs_are_refused(capsys: pytest.CaptureFixture) -> None:
    assert "mlmjax bench CONFIG" in refused(capsys, "bench")
    assert "Did you mean bert_tiny" in refused(capsys, "bench", "bert_tinny")
