"""One step: the same on any mesh, in any number of micro-batches; skipped where it is not finite."""

import math
import re
from dataclasses import replace
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlmjax.core.types import Context
from mlmjax.core.vocabulary import Vocabulary
from mlmjax.experiment import Experiment, load_experiment
from mlmjax.optim import Adafactor, AdamW, Lamb, WarmupSchedule
from mlmjax.planning.traffic import traffic
from mlmjax.sharding import MeshConfig
from mlmjax.training.step import Program, loss_and_gradient

VOCABULARY = Vocabulary(
    size=120, padding=0, unknown=1, start=2, separator=3, mask=4, special=(0, 1, 2, 3, 4)
)
ONE = MeshConfig(data=1)


@pytest.fixture
def small(experiment: Experiment) -> Experiment:
    return experiment.updated(mesh=ONE).fitted(VOCABULARY)


def rows(step: int = 0) -> dict[str, np.ndarray]:
    """A batch of eight; the first row has two tokens, so that targets are unevenly spread."""
    random = np.random.default_rng(step)
    tokens = random.integers(5, 120, (8, 32), dtype=np.int32)
    used = np.array([4, 32, 32, 32, 32, 32, 32, 32])
    valid = np.arange(32) < used[:, None]
    tokens = np.where(valid, tokens, 0)
    tokens[:, 0] = 2
    return {
        "tokens": tokens,
        "valid": valid,
        "word_starts": np.ones((8, 32), bool),
        "sentence_starts": np.zeros((8, 32), bool),
        "segments": np.zeros((8, 32), np.int32),
        "frequency": np.full((8, 32), 0.01, np.float32),
        "id": np.stack([np.zeros(8), 8 * step + np.arange(8)], 1).astype(np.uint32),
        "epoch": np.zeros(8, np.int32),
    }


def program_on(experiment: Experiment, mesh: MeshConfig) -> Program:
    devices = mesh.data * mesh.fsdp * mesh.tensor
    return Program.of(experiment, mesh.make(jax.devices()[:devices]))


def run(experiment: Experiment, mesh: MeshConfig, steps: int = 3) -> tuple[dict, dict]:
    program = program_on(experiment, mesh)
    step, state = program.step(), program.initial_state()
    for number in range(steps):
        state, report = step(state, program.place(rows(number)))
    return jax.device_get(state.parameters), jax.device_get(report)


@pytest.mark.slow  # tests/test_distributed.py compares the losses of shipped configs
@pytest.mark.parametrize(
    "mesh",
    [MeshConfig(data=8), MeshConfig(data=1, fsdp=8), MeshConfig(data=2, fsdp=2, tensor=2)],
)
def test_one_device_and_eight_agree(small: Experiment, mesh: MeshConfig) -> None:
    alone, report = run(small, ONE)
    spread, spread_report = run(small, mesh)
    chex.assert_trees_all_close(spread, alone, rtol=2e-3, atol=2e-5)
    chex.assert_trees_all_close(spread_report, report, rtol=1e-3, atol=1e-4)


def test_parameters_and_moments_lie_in_shards(small: Experiment) -> None:
    program = program_on(small, MeshConfig(data=1, fsdp=4, tensor=2))
    state = program.initial_state()
    whole = state.parameters["encoder"]["layers"]["up"]["kernel"]
    moments = [
        leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(state.optimizer)
        if "up" in jax.tree_util.keystr(path) and "kernel" in jax.tree_util.keystr(path)
    ]
    assert len(moments) == 2
    for leaf in (whole, *moments):
        assert {shard.data.size for shard in leaf.addressable_shards} == {leaf.size // 8}


def test_initial_values_do_not_depend_on_the_mesh(small: Experiment) -> None:
    alone = program_on(small, ONE).initial_state()
    spread = program_on(small, MeshConfig(data=2, fsdp=2, tensor=2)).initial_state()
    chex.assert_trees_all_close(jax.device_get(alone), jax.device_get(spread), atol=1e-7)


@pytest.mark.parametrize(
    "accumulate",
    [pytest.param(2, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow), 8],
)
def test_micro_batches_give_the_gradient_of_the_whole(small: Experiment, accumulate: int) -> None:
    """Rows with 1 and with 5 targets fall into different micro-batches; the sums are divided once."""
    plain = small.updated(model=small.model.updated(dropout=0.0, attention_dropout=0.0))
    program = program_on(plain, ONE)
    parameters = program.initial_state().parameters
    batch = program.place(rows())

    def gradient(parts: int) -> tuple:
        return jax.jit(
            lambda parameters: loss_and_gradient(
                plain.objective,
                program.graph,
                parameters,
                batch,
                Context.of(0, training=True),
                accumulate=parts,
            )
        )(parameters)

    whole, wanted = gradient(1)
    parts, found = gradient(accumulate)
    chex.assert_trees_all_close(found, wanted, rtol=1e-4, atol=1e-6)
    assert float(parts.value()) == pytest.approx(float(whole.value()), rel=1e-5)
    for name, metric in whole.metrics.items():
        assert float(parts.metrics[name].value()) == pytest.approx(float(metric.value()), abs=1e-4)


def test_weights_are_found_without_the_encoder(small: Experiment) -> None:
    """The pass that finds the denominators costs no encoder: FLOPs stay those of one pass."""

    def flops(accumulate: int) -> float:
        program = program_on(small.updated(run=small.run.updated(accumulate=accumulate)), ONE)
        compiled = program.step().lower(program.state, program.batch).compile()
        return compiled.as_text().count(" dot(") + compiled.as_text().count("custom-call")

    assert flops(2) == pytest.approx(flops(1), rel=0.1)


def test_a_step_that_is_not_finite_moves_only_the_counters(small: Experiment) -> None:
    program = program_on(small, ONE)
    step, state = program.step(), program.initial_state()
    state, _ = step(state, program.place(rows(0)))
    bias = state.parameters["mlm"]["bias"]
    poisoned = jax.tree.map(jnp.copy, state.parameters)
    poisoned["mlm"]["bias"] = jnp.full_like(bias, jnp.nan)
    before = jax.device_get(replace(state, parameters=poisoned))
    after, report = step(replace(state, parameters=poisoned), program.place(rows(1)))
    after = jax.device_get(after)
    chex.assert_trees_all_equal(after.parameters, before.parameters)
    chex.assert_trees_all_equal(after.optimizer, before.optimizer)
    assert (int(after.step), int(after.skipped), int(after.skipped_in_a_row)) == (2, 1, 1)
    assert np.isnan(float(report["mask_loss"]))  # nothing was counted since the last logged step
    assert all(np.isfinite(each.sum).all() for each in after.metrics.values())
    healthy = replace(after, parameters=program.initial_state().parameters)
    good, _ = step(healthy, program.place(rows(2)))
    assert (int(good.skipped), int(good.skipped_in_a_row)) == (1, 0)


def test_logged_metrics_cover_the_steps_since_the_last(small: Experiment) -> None:
    small = small.updated(run=small.run.updated(log_every=3))
    program = program_on(small, ONE)
    step, state = program.step(), program.initial_state()
    for number in range(6):
        state, report = step(state, program.place(rows(number)))
        assert float(state.metrics["gradient_norm"].weight) == number % 3 + 1
    total = state.metrics["mask_loss"]
    assert float(report["mask_loss"]) == pytest.approx(float(total.sum / total.weight))


@pytest.mark.parametrize(
    "optimizer",
    [AdamW, *(pytest.param(each, marks=pytest.mark.slow) for each in (Lamb, Adafactor))],
)
def test_every_optimizer_learns(small: Experiment, optimizer: type) -> None:
    schedule = WarmupSchedule(peak=1e-2, warmup=0, decay="constant")
    program = program_on(small.updated(optimizer=optimizer(learning_rate=schedule)), ONE)
    step, state = program.step(), program.initial_state()
    losses = []
    for _ in range(60):
        state, report = step(state, program.place(rows(0)))
        losses.append(float(report["mask_loss"]))
    assert losses[-1] < 0.9 * losses[0]


def held(tree: Any) -> tuple[int, int]:
    """Bytes of all arrays, and of those parts of them that lie on the first device."""
    leaves = jax.tree.leaves(tree)
    return sum(each.nbytes for each in leaves), sum(
        shard.data.nbytes
        for each in leaves
        for shard in each.addressable_shards
        if shard.device == jax.devices()[0]
    )


def test_fsdp_leaves_an_eighth_on_each_device(small: Experiment) -> None:
    """All that has an axis of the hidden width is cut; other biases are small, and are not."""
    state = program_on(small, MeshConfig(data=1, fsdp=8)).initial_state()
    for tree in (state.parameters, state.optimizer):
        whole, here = held(tree)
        assert whole / 8 <= here < whole / 6


def test_fsdp_gathers_one_layer_at_a_time() -> None:
    """BERT-large: what is computed in between is far less than its parameters."""
    large = load_experiment("bert_large").updated(mesh=MeshConfig(data=1, fsdp=8))
    large = large.updated(data=large.data.updated(batch=8, length=64))
    program = Program.of(large.fitted(large.data.abstract_vocabulary()))
    compiled = program.step().lower(program.state, program.batch).compile()
    shapes = jax.tree.leaves(program.state.parameters)
    parameters = sum(4 * math.prod(each.shape) for each in shapes)
    memory = compiled.memory_analysis()
    assert memory.argument_size_in_bytes < 3.1 * parameters / 8  # with both moments
    assert memory.temp_size_in_bytes < 0.3 * parameters  # of which gradients are an eighth

    text = compiled.as_text()
    layers = large.model.layers
    gathered = re.findall(r"= \w+\[([\d,]*)\]\S* all-gather\(", text)
    assert gathered
    assert not any(shape.startswith(f"{layers},") for shape in gathered)
    # Four kernels of each layer, once forward and once backward.
    assert traffic(text).between["all-gather"].count >= 2 * 4 * layers
