"""Models that were made here, as Hugging Face folders: they come back with the same answers and class names."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mlmjax
from mlmjax.core.errors import UserError
from mlmjax.models.base import ModelConfig
from mlmjax.models.bert import BertConfig
from mlmjax.models.classifier import BertClassifierConfig, VitClassifierConfig
from mlmjax.training.folder import Run
from tests.interop.test_stablehlo import CLASSES, MODELS, TEXT, VIT, own, run_of

LEARNED = VIT.updated(learned_positions=True)

WRITTEN = {
    "BertForMaskedLM": BertConfig(**TEXT),
    "RobertaPreLayerNormForMaskedLM": BertConfig(**TEXT, norm="pre"),
    "BertForSequenceClassification": BertClassifierConfig(**TEXT, classes=3),
    "RobertaPreLayerNormForSequenceClassification": BertClassifierConfig(
        **TEXT, classes=3, norm="pre", segments=1
    ),
    "ViTForImageClassification": VitClassifierConfig(encoder=LEARNED, classes=3, pooling="class"),
    "ViTMAEForPreTraining": MODELS["patches"],
    "ViTModel": MODELS["patches"].updated(encoder=LEARNED),
}


def given(run: Run) -> dict[str, jax.Array]:
    """Two inputs of its kind."""
    draw = np.random.default_rng(4)
    if run.tokenizer is None:
        return {"pixels": jnp.uint8(draw.integers(0, 256, (2, *VIT.image, VIT.channels)))}
    shape = 2, 9
    return {
        "tokens": jnp.int32(draw.integers(5, run.tokenizer.vocabulary.size, shape)),
        "segments": jnp.zeros(shape, jnp.int32),
        "valid": jnp.arange(9) < jnp.array([[9], [6]]),
    }


@pytest.mark.parametrize("name", WRITTEN)
def test_what_goes_out_comes_back_the_same(name: str, tmp_path: Path) -> None:
    run, out = run_of(WRITTEN[name], tmp_path / "run"), tmp_path / "out"
    asked = name if name == "ViTModel" else None  # of pretraining it would be ViTMAE
    assert mlmjax.to_huggingface(run, out, architecture=asked) == name
    back = mlmjax.from_huggingface(out)
    inputs = given(run)
    before, after = own(run, inputs), own(back, inputs)
    for each, expected in before.items():
        known = expected.shape[-1] if each != "logits" else after[each].shape[-1]
        np.testing.assert_allclose(after[each], expected[..., :known], rtol=1e-6, atol=1e-6)
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == [name]
    if run.classes:
        assert config["id2label"] == dict(zip("012", CLASSES, strict=True))
        assert back.classes == run.classes
    assert mlmjax.to_huggingface(back, tmp_path / "again") == name
    again = tmp_path / "again" / "model.safetensors"
    assert again.read_bytes() == (out / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (MODELS["images"], "--model.pooling class"),
        (BertConfig(**TEXT, norm="pre", head_activation="relu"), "--model.head-activation"),
        (WRITTEN["BertForMaskedLM"].updated(head_activation="relu"), "--model.head-activation"),
    ],
    ids=["mean of patches", "activation of a head", "activation of another"],
)
def test_what_their_classes_cannot_be_is_refused(
    model: ModelConfig, said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=said):
        mlmjax.to_huggingface(run_of(model, tmp_path / "run"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
