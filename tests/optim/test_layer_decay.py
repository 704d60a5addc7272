"""Learning rates by layer: those of each layer by itself, in a stack."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlmjax.core.errors import UserError
from mlmjax.models.classifier import BertClassifierConfig, VitClassifierConfig
from mlmjax.models.mae import MaeConfig
from mlmjax.models.vit import VitConfig
from mlmjax.optim import AdamW, WarmupSchedule, layer_scales
from mlmjax.training.state import build_parameters, module_graph, shapes

SIZES = {"layers": 3, "hidden": 8, "heads": 2, "mlp": 16}
BERT = BertClassifierConfig(vocabulary=20, positions=8, classes=2, norm="pre", **SIZES)
VIT = VitClassifierConfig(
    encoder=VitConfig(image=(4, 4), patch=(2, 2), **SIZES), classes=2, pooling="mean"
)
DECAY = 0.5


def depth(path: tuple[str, ...], layer: int | None) -> int:
    """As one would write it down for these two models."""
    if layer is not None:
        return layer + 1
    if path[0] in ("token", "position", "segment", "norm"):
        return 0
    return 0 if path[:2] in (("encoder", "embed"), ("encoder", "class_token")) else 4


def apart(parameters: dict) -> dict[tuple, dict[str, jax.Array]]:
    """Every parameter, those of each layer by themselves, by path and layer; below it stands its name."""
    found = {}
    for path, leaf in jax.tree.leaves_with_path(parameters):
        keys = tuple(key.key for key in path)
        layers = enumerate(leaf) if "layers" in keys else [(None, leaf)]
        found.update({(keys, layer): {keys[-1]: each} for layer, each in layers})
    return found


@pytest.mark.parametrize("config", [BERT, VIT], ids=["text", "images"])
def test_a_stack_learns_as_its_layers_do_apart(config: BertClassifierConfig | VitClassifierConfig):
    """The layers as parameters of their own, whose learning rates are written down by hand."""
    parameters = jax.tree.map(np.asarray, build_parameters(config, 0))
    optimizer = AdamW(
        learning_rate=WarmupSchedule(peak=1e-2, warmup=1), clip=None, layer_decay=DECAY
    )
    whole = optimizer.build(parameters, steps=4)
    single = optimizer.updated(layer_decay=None).build(apart(parameters), steps=4)
    states = whole.init(parameters), single.init(apart(parameters))
    for step in range(3):
        draw = np.random.default_rng(step)
        gradient = jax.tree.map(
            lambda each, draw=draw: draw.normal(size=each.shape).astype(np.float32), parameters
        )
        stacked, first = jax.jit(whole.update)(gradient, states[0], parameters)
        found, second = jax.jit(single.update)(apart(gradient), states[1], apart(parameters))
        states = first, second
        for name, each in apart(stacked).items():
            key = name[0][-1]
            scaled = found[name][key] * DECAY ** (4 - depth(*name))
            np.testing.assert_allclose(each[key], scaled, rtol=1e-5, atol=1e-9)
        parameters = jax.tree.map(np.add, parameters, jax.tree.map(np.asarray, stacked))


def test_the_head_has_the_whole_rate_and_none_has_more() -> None:
    scales = layer_scales(shapes(module_graph(VIT)[1]), 0.75)
    assert float(scales["classifier"]["kernel"]) == 1
    assert float(scales["pooled_norm"]["scale"]) == 1
    assert float(scales["encoder"]["blocks"]["norm"]["scale"]) == 1
    np.testing.assert_allclose(
        scales["encoder"]["blocks"]["layers"]["up"]["kernel"][:, 0, 0], [0.75**3, 0.75**2, 0.75]
    )
    np.testing.assert_allclose(scales["encoder"]["class_token"], 0.75**4)


def test_without_decay_nothing_is_added_to_the_state() -> None:
    parameters = build_parameters(VIT, 0)
    before = AdamW().build(parameters, 4).init(parameters)
    after = AdamW(layer_decay=1.0).build(parameters, 4).init(parameters)
    assert len(after) == len(before) + 1


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"kernel": jnp.ones(3)}, "here there is none"),
        (shapes(module_graph(MaeConfig())[1]), "encoder.blocks.layers"),
    ],
)
def test_models_without_one_stack_are_refused(parameters: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        AdamW(layer_decay=0.7).build(parameters, 4)
