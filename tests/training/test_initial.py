"""Starting from another run's parameters: what is taken, what is drawn, and what cannot be."""

import json
import shutil
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

import mlmjax
from mlmjax.cli import main
from mlmjax.core.errors import UserError
from mlmjax.core.vocabulary import Vocabulary
from mlmjax.data.images import ImageData
from mlmjax.experiment import Experiment, RunConfig, load_experiment
from mlmjax.models.classifier import BertClassifierConfig, VitClassifierConfig
from mlmjax.models.mae import DecoderConfig, MaeConfig
from mlmjax.models.vit import VitConfig
from mlmjax.objectives.classification import Classification
from mlmjax.optim import AdamW, WarmupSchedule
from mlmjax.sharding import MeshConfig
from mlmjax.training.checkpoint import Checkpoints
from mlmjax.training.folder import RunFolder
from mlmjax.training.initial import Initial, starting_from
from mlmjax.training.state import build_parameters, flat
from mlmjax.training.step import Program
from tests.commands import refused
from tests.conftest import CONFIG

ENCODER = VitConfig(image=(8, 8), patch=(4, 4), channels=1, layers=2, hidden=16, heads=2, mlp=24)
IMAGES = ImageData(size=(8, 8), channels=1, batch=8)


def untrained_run(experiment: Experiment, folder: Path, seed: int = 5) -> dict[str, np.ndarray]:
    """A run folder with a checkpoint of parameters that were drawn; gives them."""
    parameters = jax.jit(partial(build_parameters, experiment.model, seed))()
    files = RunFolder(folder)
    with Checkpoints(files.checkpoints, writes=True) as checkpoints:
        checkpoints.save_parameters(3, parameters)
    files.manifest.write_text("{}")
    files.config.write_text(experiment.to_json())
    return {name: np.asarray(each) for name, each in flat(parameters).items()}


@pytest.fixture
def autoencoder(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    decoder = DecoderConfig(layers=1, hidden=8, heads=2, mlp=8)
    experiment = load_experiment("mae_tiny").updated(
        model=MaeConfig(encoder=ENCODER, decoder=decoder), data=IMAGES
    )
    return tmp_path / "mae", untrained_run(experiment, tmp_path / "mae")


@pytest.mark.parametrize(
    "mesh", [MeshConfig(data=8), MeshConfig(data=1, fsdp=8)], ids=["data", "fsdp"]
)
def test_an_encoder_is_taken_and_the_head_is_drawn(
    autoencoder: tuple[Path, dict[str, np.ndarray]], mesh: MeshConfig
) -> None:
    folder, before = autoencoder
    asked = load_experiment("finetune_image").updated(mesh=mesh)
    asked = starting_from(asked, folder)
    assert asked.model.encoder.updated(remat="none") == ENCODER.updated(remat="none")
    program = Program.of(asked.fitted(None, classes=10))
    initial = Initial.of(program)
    assert initial is not None
    assert {name.split("/")[0] for name in initial.taken} == {"encoder"}
    assert {name.split("/")[0] for name in initial.drawn} == {"classifier"}
    found, drawn = flat(initial.state(program).parameters), flat(program.initial_parameters())
    for name, each in found.items():
        expected = before[name] if name in initial.taken else drawn[name]
        np.testing.assert_array_equal(each, expected)
        assert each.sharding.is_equivalent_to(
            flat(program.state.parameters)[name].sharding, each.ndim
        )


def test_what_is_not_the_encoders_stays(autoencoder: tuple[Path, dict[str, np.ndarray]]) -> None:
    asked = load_experiment("finetune_image")
    encoder = asked.model.encoder.updated(dropout=0.25, dtype="bfloat16", epsilon=0.5)
    model = asked.model.updated(encoder=encoder, classifier_dropout=0.5)
    found = starting_from(asked.updated(model=model), autoencoder[0])
    assert found.model.classifier_dropout == 0.5
    kept = found.model.encoder
    assert (kept.dropout, kept.dtype, kept.epsilon) == (0.25, "bfloat16", ENCODER.epsilon)
    assert (found.optimizer, found.objective) == (asked.optimizer, asked.objective)
    assert found.data == asked.data.updated(size=(8, 8), channels=1)


def test_pretraining_goes_on_elsewhere_with_all_parameters(
    autoencoder: tuple[Path, dict[str, np.ndarray]],
) -> None:
    asked = starting_from(load_experiment("mae_tiny"), autoencoder[0])
    initial = Initial.of(Program.of(asked.fitted(None)))
    assert initial is not None
    assert not initial.drawn
    assert set(initial.taken) == set(autoencoder[1])


@pytest.fixture
def pretrained(experiment: Experiment) -> str:
    """A text run of one step."""
    folder = str(experiment.run.folder)
    mlmjax.pretrain(
        experiment.updated(
            optimizer=AdamW(learning_rate=WarmupSchedule(peak=1e-3, warmup=0)),
            run=experiment.run.updated(steps=1),
        )
    )
    return folder


@pytest.fixture
def records(experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A config of records with a class, whose model has other sizes."""
    monkeypatch.chdir(tmp_path)
    lines = [
        json.dumps({"text": f"The list of values {n} {n * n}.", "label": "ab"[n % 2]})
        for n in range(40)
    ]
    Path("records.jsonl").write_text("\n".join(lines))
    experiment = experiment.updated(
        model=BertClassifierConfig(layers=1, hidden=8, heads=2, mlp=8, positions=16),
        objective=Classification(),
        data=experiment.data.updated(
            root="records.jsonl", layout="documents", label_field="label", length=16, examples=()
        ),
        optimizer=AdamW(learning_rate=WarmupSchedule(peak=1e-3, warmup=0)),
        run=RunConfig(steps=1, tensorboard=False),
    )
    Path("texts.py").write_text(CONFIG.format(text=experiment.to_json()))
    return "texts.py"


def test_fine_tuning_from_the_command_line(
    pretrained: str, records: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = mlmjax.load(pretrained)
    still = ["--optimizer.learning-rate.peak", "1e-30"]
    main(["train", records, "--init", pretrained, *still])
    said = " ".join(capsys.readouterr().out.split())
    assert f"are those of {pretrained}, step 1; drawn: classifier." in said
    after = mlmjax.load("runs/texts", trust_code=True)
    assert after.model.config.hidden == before.model.config.hidden
    assert after.tokenizer is not None
    assert after.tokenizer.hash == before.tokenizer.hash
    for ours, theirs in (
        (after.model.token.embedding, before.model.token.embedding),
        (
            after.model.encoder.layers.attention.qkv.kernel,
            before.model.encoder.layers.attention.qkv.kernel,
        ),
    ):
        np.testing.assert_array_equal(ours[...], theirs[...])
    record = json.loads(Path("runs/texts/manifest.json").read_text())["initial"]
    assert record["run"] == pretrained
    assert record["drawn"] == ["classifier/bias", "classifier/kernel"]
    # Once it is begun, the run stands by itself.
    shutil.rmtree(pretrained)
    main(["train", "runs/texts", "--trust-code"])
    assert "is finished" in capsys.readouterr().out


def test_a_run_that_was_trained_on_in_between_is_refused(pretrained: str, records: str) -> None:
    asked = load_experiment(records)
    asked = starting_from(asked.updated(run=asked.run.updated(folder="out")), pretrained)
    mlmjax.pretrain(asked)
    shutil.rmtree("out/checkpoints")  # as if it had been ended before its first
    manifest = Path(pretrained, "manifest.json")
    manifest.write_text(manifest.read_text() + "\n")
    with pytest.raises(UserError, match="begun with other parameters"):
        mlmjax.pretrain(asked)


def test_refusals(
    pretrained: str,
    records: str,
    autoencoder: tuple[Path, dict[str, np.ndarray]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    mae = str(autoencoder[0])
    train = ["train", records, "--init"]
    assert "runs/none is not a run folder" in refused(capsys, *train, "runs/none")
    assert "BertClassifierConfig cannot start from a MaeConfig" in refused(capsys, *train, mae)
    assert "give the folder of the run" in refused(capsys, *train)
    assert "goes on from what it has" in refused(capsys, "train", pretrained, "--init", mae)
    other = ["--model.hidden", "48", "--model.mlp", "8"]
    assert "none of its parameters" in refused(capsys, *train, pretrained, *other)
    assert not Path("runs").exists()
    shutil.rmtree(Path(pretrained, "checkpoints"))
    assert "has no checkpoint" in refused(capsys, *train, pretrained)


def test_poolings_that_the_encoder_cannot_have_are_refused(tmp_path: Path) -> None:
    experiment = load_experiment("mae_tiny")
    encoder = ENCODER.updated(class_token=False)
    untrained_run(
        experiment.updated(model=experiment.model.updated(encoder=encoder), data=IMAGES),
        tmp_path / "mae",
    )
    asked = load_experiment("finetune_image")
    asked = asked.updated(model=VitClassifierConfig(pooling="class"))
    with pytest.raises(UserError, match=r"--init .*has no class token to pool"):
        starting_from(asked, tmp_path / "mae")


def test_parts_that_an_import_drew_are_drawn_again(tmp_path: Path, experiment: Experiment) -> None:
    model = experiment.model.updated(vocabulary=40)
    files = RunFolder(tmp_path / "imported")
    with Checkpoints(files.checkpoints, writes=True) as checkpoints:
        checkpoints.save_parameters(0, build_parameters(model, 0))
    files.manifest.write_text(json.dumps({"imported": {"untrained": ["mlm"]}}))
    files.config.write_text(experiment.updated(model=model).to_json())
    run = experiment.run.updated(init=str(files.path), seed=1)
    words = Vocabulary(
        size=40, padding=0, unknown=1, start=2, separator=3, mask=4, special=(0, 1, 2, 3, 4)
    )
    program = Program.of(experiment.updated(model=model, run=run).fitted(words))
    initial = Initial.of(program)
    assert initial is not None
    assert {name.split("/")[0] for name in initial.drawn} == {"mlm"}
    head = initial.state(program).parameters["mlm"]
    drawn = program.initial_parameters()["mlm"]
    jax.tree.map(np.testing.assert_array_equal, head, drawn)
