"""Folders that jax serves alone: the script of their README, run where mlmjax and flax cannot be imported."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors import safe_open
from tokenizers import Tokenizer as Raw

import mlmjax
from mlmjax.cli import main
from mlmjax.core.errors import UserError
from mlmjax.data.images import ImageData
from mlmjax.data.text import TextData
from mlmjax.data.tokenizer import Tokenizer
from mlmjax.experiment import Experiment
from mlmjax.models.base import ModelConfig
from mlmjax.models.bert import BertConfig
from mlmjax.models.classifier import BertClassifierConfig, VitClassifierConfig
from mlmjax.models.mae import DecoderConfig, MaeConfig
from mlmjax.models.vit import VitConfig
from mlmjax.nn.attention import Visibility
from mlmjax.objectives.classification import Classification
from mlmjax.objectives.mae import MaskedAutoencoder
from mlmjax.objectives.mlm import MaskedLanguageModel
from mlmjax.optim import AdamW
from mlmjax.targets import PixelScale
from mlmjax.training.folder import Run
from mlmjax.training.state import module_graph, shapes
from tests.commands import refused
from tests.interop.test_huggingface import WORDS, folder_of

SMALL = {"layers": 2, "hidden": 16, "heads": 2, "mlp": 24}
TEXT = {**SMALL, "vocabulary": len(WORDS), "vocabulary_multiple": 8, "positions": 40}
VIT = VitConfig(
    **SMALL, image=(4, 6), patch=(2, 2), channels=2, input=PixelScale(mean=(0.4,), std=(0.3,))
)
CLASSES = ["no", "perhaps", "yes"]

MODELS = {
    # Attention that differs by platform does not hinder it.
    "tokens": BertConfig(**TEXT, attention="flash", attention_dropout=0.0, remat="full"),
    "texts": BertClassifierConfig(**TEXT, classes=3, segments=1),
    "patches": MaeConfig(encoder=VIT, decoder=DecoderConfig(**SMALL)),
    "images": VitClassifierConfig(encoder=VIT, classes=3, pooling="mean"),
}

SERVE = """
import json, os, sys


class Refuse:
    def find_spec(self, name, *rest):
        if name.split(".")[0] in ("mlmjax", "flax"):
            raise ImportError(name + " is not for serving")


sys.meta_path.insert(0, Refuse())
import numpy
for folder in sys.argv[1:]:
    os.chdir(folder)
    script = open("README.md").read().split("```python\\n")[1].split("```")[0]
    space = {}
    exec(script, space)
    inputs = [each["name"] for each in json.load(open("signature.json"))["inputs"]]
    numpy.savez("given.npz", **{name: space[name] for name in inputs})
    numpy.savez("found.npz", **space["outputs"])
assert not {"mlmjax", "flax"} & {name.split(".")[0] for name in sys.modules}
"""


def run_of(model: ModelConfig, folder: Path) -> Run:
    """A run of drawn parameters, as if it had been loaded."""
    folder.mkdir()
    tokenizer = None
    if isinstance(model, MaeConfig | VitClassifierConfig):
        data = ImageData(size=VIT.image, channels=VIT.channels)
        objective = MaskedAutoencoder() if isinstance(model, MaeConfig) else Classification()
    else:
        data, objective = TextData(length=16), MaskedLanguageModel()
        (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
        tokenizer = Tokenizer.load(folder / "vocab.txt")
    (folder / "manifest.json").write_text(json.dumps({"data": {"classes": CLASSES}}))
    config = Experiment(model=model, objective=objective, data=data, optimizer=AdamW())
    graph, state = module_graph(model)
    draw = np.random.default_rng(3)
    # Not by the model's own initial values, which take seconds to compile.
    parameters = jax.tree.map(
        lambda each: jnp.float32(draw.normal(scale=0.3, size=each.shape)), shapes(state)
    )
    classifies = isinstance(model, BertClassifierConfig | VitClassifierConfig)
    classes = tuple(CLASSES) if classifies else ()
    module = nnx.merge(graph, parameters)
    return Run(module, config, 7, str(folder), tokenizer, classes=classes)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Run, Path]]:
    """Each run, and the folder in which its README's script was run."""
    place = tmp_path_factory.mktemp("served")
    runs = {name: run_of(model, place / f"run-{name}") for name, model in MODELS.items()}
    for name, run in runs.items():
        mlmjax.to_stablehlo(run, place / name)
    folders = [str(place / name) for name in MODELS]
    subprocess.run(
        [sys.executable, "-c", SERVE, *folders], check=True, cwd=place, env=dict(os.environ)
    )
    return {name: (run, place / name) for name, run in runs.items()}


def own(run: Run, given: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """What the run's own model says."""
    model, name = run.model, type(run.model).__name__
    if name == "Mae":
        return {"hidden": model.encode(model.patches(given["pixels"])).hidden}
    if name == "VitClassifier":
        return {"logits": model.logits(given["pixels"])}
    seen = Visibility(given["valid"])
    if name == "BertClassifier":
        return {"logits": model.logits(given["tokens"], given["segments"], seen)}
    hidden = model.encode(given["tokens"], given["segments"], seen).hidden
    return {"hidden": hidden, "logits": model.mlm_logits(hidden)}


@pytest.mark.parametrize("name", MODELS)
def test_the_readme_computes_what_the_run_does_with_jax_alone(
    name: str, served: dict[str, tuple[Run, Path]]
) -> None:
    run, folder = served[name]
    given, found = (dict(np.load(folder / f"{each}.npz")) for each in ("given", "found"))
    graph, parameters = nnx.split(run.model)
    expected = jax.jit(lambda p, given: own(replace(run, model=nnx.merge(graph, p)), given))(
        parameters, given
    )
    assert found.keys() == expected.keys()
    # What padding sees is left to the implementation of attention.
    valid = given["valid"] if name == "tokens" else slice(None)
    signature = json.loads((folder / "signature.json").read_text())
    for each, values in expected.items():
        ours, theirs = np.asarray(values, np.float32)[valid], found[each][valid]
        assert np.abs(ours).max() > 0.1
        assert np.abs(ours - theirs).max() <= 1e-6 * np.abs(ours).max()
        said = signature["outputs"][each]
        sizes = [
            found[each].shape[at] if size in ("batch", "length") else size
            for at, size in enumerate(said["shape"])
        ]
        assert (tuple(sizes), said["dtype"]) == (found[each].shape, found[each].dtype)
    for each in signature["inputs"]:
        assert given[each["name"]].dtype == each["dtype"]
        assert given[each["name"]].shape[0] == 2
        assert each["shape"][0] == "batch"
    assert signature["platforms"] == ["cpu", "cuda", "tpu"]
    assert (folder / "manifest.json").exists()
    if name in ("texts", "images"):
        assert json.loads((folder / "classes.json").read_text()) == CLASSES


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("tokens", ("pooler", "next_sentence")),
        ("texts", ()),
        ("patches", ("decoder", "head")),
    ],
)
def test_only_parameters_that_are_read_are_kept(
    name: str, absent: tuple[str, ...], served: dict[str, tuple[Run, Path]]
) -> None:
    run, folder = served[name]
    with safe_open(folder / "parameters.safetensors", framework="numpy") as file:
        kept = {each.split("/")[0] for each in file.keys()}  # noqa: SIM118
    whole = {str(path[0]) for path, _ in nnx.to_flat_state(nnx.state(run.model, nnx.Param))}
    assert whole - kept == set(absent) & whole


def test_any_length_up_to_the_models_and_none_beyond(
    served: dict[str, tuple[Run, Path]],
) -> None:
    _, folder = served["tokens"]
    artifact = jax.export.deserialize((folder / "model.jax_export").read_bytes())
    with safe_open(folder / "parameters.safetensors", framework="numpy") as file:
        parameters = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tokens = np.full((3, 40), 5, np.int32)
    rest = np.zeros_like(tokens), np.ones(tokens.shape, bool)
    found = jax.jit(artifact.call)(parameters, tokens, *rest)
    assert found["logits"].shape == (3, 40, len(WORDS))
    with pytest.raises(ValueError, match=r"refining shapes|length <= 40"):
        artifact.call(parameters, *(np.pad(each, ((0, 0), (0, 1))) for each in (tokens, *rest)))


def test_the_tokenizer_reads_texts_as_the_run_does(served: dict[str, tuple[Run, Path]]) -> None:
    run, folder = served["tokens"]
    raw, text = Raw.from_file(str(folder / "tokenizer.json")), "the cat [MASK] on mats ."
    special = run.tokenizer.vocabulary
    ids = [special.start, *run.tokenizer.encode_with_masks(text).ids, special.separator]
    found = raw.encode(text)
    assert special.mask in ids
    assert found.ids[: sum(found.attention_mask)] == ids
    assert len(found.ids) % 8 == 0
    assert len(raw.encode("cat " * 100).ids) == 40


def test_the_command_leaves_out_what_was_never_trained_and_refuses_what_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = folder_of("huggingface_bert_encoder", tmp_path / "model")
    run, out = str(tmp_path / "run"), tmp_path / "out"
    main(["import", str(source), "--out", run])
    command = ("export", run, "--out", str(out), "--format", "stablehlo")
    said = refused(capsys, *command, "--architecture", "BertModel")
    assert "--architecture BertModel is a class of transformers" in said
    assert "No checkpoint found at step 3" in refused(capsys, *command, "--step", "3")
    main(command)
    assert "tokens, segments, valid -> hidden." in capsys.readouterr().out
    assert [*json.loads((out / "signature.json").read_text())["outputs"]] == ["hidden"]
    assert "exists: choose another" in refused(capsys, *command)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model", "out", "run"]


def test_what_cannot_be_served_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    run = run_of(MODELS["texts"], tmp_path / "run")
    out = tmp_path / "out"
    with pytest.raises(UserError, match="needs classifier, which the imported weights did not"):
        mlmjax.to_stablehlo(replace(run, untrained=("classifier",)), out)
    with pytest.raises(UserError, match="has no tokenizer"):
        mlmjax.to_stablehlo(replace(run, tokenizer=None), out)
    with pytest.raises(UserError, match="A Linear cannot be exported"):
        mlmjax.to_stablehlo(replace(run, model=run.model.classifier), out)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        mlmjax.to_stablehlo(run, tmp_path / "file" / "out")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "run"]
