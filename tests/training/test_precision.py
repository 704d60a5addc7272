"""Half precision: every product has operands of it, and the loss falls as in float32."""

import re

import jax
import numpy as np
import pytest

from mlmjax.experiment import Experiment, load_experiment
from mlmjax.planning.products import equations
from mlmjax.sharding import MeshConfig
from mlmjax.training.step import Program

ONE = MeshConfig(data=1)
PRODUCTS = ("dot_general", "conv_general_dilated")


@pytest.fixture
def halved(experiment: Experiment) -> list[Experiment]:
    """Small models of text and of images in bfloat16; with dropout and without, which are two ways of attention."""
    bert = experiment.model.updated(dtype="bfloat16")
    plain = bert.updated(dropout=0.0, attention_dropout=0.0)
    mae = load_experiment("mae_tiny")
    parts = {
        name: getattr(mae.model, name).updated(dtype="bfloat16", layers=2)
        for name in ("encoder", "decoder")
    }
    return [
        experiment.updated(model=bert),
        experiment.updated(model=plain),
        mae.updated(
            model=mae.model.updated(**parts),
            data=mae.data.updated(batch=8),
            run=experiment.run,
        ),
    ]


def program(experiment: Experiment, devices: list[jax.Device]) -> Program:
    fitted = experiment.fitted(experiment.data.abstract_vocabulary())
    return Program.of(fitted, ONE.make(devices))


def test_no_product_has_a_factor_in_float32(halved: list[Experiment]) -> None:
    """Neither forward nor backward, nor in the loss; what is added up may be float32."""
    for each in halved:
        one = program(each, jax.devices()[:1])
        traced = one.step().trace(one.state, one.batch).jaxpr
        factors = [
            (equation.primitive.name, *(str(given.aval.dtype) for given in equation.invars))
            for equation, _ in equations(traced.jaxpr)
            if equation.primitive.name in PRODUCTS
        ]
        assert len(factors) > 20
        assert {kind for _, *kinds in factors for kind in kinds} == {"bfloat16"}


def test_no_product_of_the_compiled_step_has_either(halved: list[Experiment]) -> None:
    """For a TPU, whose compiler makes convolutions of products."""
    pytest.importorskip("libtpu")
    from mlmjax.planning.chips import Topology
    from mlmjax.planning.plan import devices

    chips = devices(Topology.parse("v5e:1x1"))
    for each in (halved[1], halved[2]):
        one = program(each, chips)
        text = one.step().lower(one.state, one.batch).compile().as_text()
        kinds = dict(re.findall(r"%([\w.\-]+) = \(?(\w+)\[", text))
        products = re.findall(r" (?:convolution|dot)\(([^)]*)\)", text)
        assert len(products) > 20
        for given in products:
            found = {kinds[name] for name in re.findall(r"%([\w.\-]+)", given)}
            assert "f32" not in found, given


def curve(dtype: str, seed: int) -> np.ndarray:
    """The losses of 300 steps of bert_tiny, smoothed over 30."""
    asked = load_experiment("bert_tiny").updated(mesh=ONE)
    asked = asked.updated(
        model=asked.model.updated(dtype=dtype), run=asked.run.updated(seed=seed, log_every=1)
    )
    prepared = asked.data.prepare()
    one = Program.of(asked.fitted(prepared.vocabulary), ONE.make(jax.devices()[:1]))
    step, state, losses = one.step(), one.initial_state(), []
    settings = {"seed": seed, "batch": asked.data.batch, "threads": 1}
    for batch in prepared.batches(**settings, start=0, stop=300):
        state, report = step(state, one.place(batch))
        losses.append(float(report["loss"]))
    return np.convolve(losses, np.ones(30) / 30, mode="valid")


@pytest.mark.slow
def test_the_loss_in_half_precision_stays_within_the_noise_of_float32() -> None:
    """Noise is what another seed, with other masks and initial values, makes of it."""
    whole, half = curve("float32", 0), curve("bfloat16", 0)
    noise = np.abs(curve("float32", 1) - whole)
    apart = np.abs(half - whole)
    print(f"apart at most {apart.max():.4f}, noise at most {noise.max():.4f}")
    print(f"at the end {whole[-1]:.4f} and {half[-1]:.4f}")
    assert whole[-1] < whole[0] - 1.5
    assert apart.max() < noise.max()
    assert apart.mean() < noise.mean()
