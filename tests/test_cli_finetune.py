"""Fine-tuning from the command line: what it learns and says, several seeds, and how it refuses."""

import json
import os
import signal
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from mlmjax.cli import main
from mlmjax.data.images import ImageData
from mlmjax.data.text import TextData
from mlmjax.data.tokenizer import TokenizerConfig
from mlmjax.evaluation.baselines import majority
from mlmjax.experiment import Experiment, RunConfig, load_experiment
from mlmjax.models.classifier import BertClassifierConfig
from mlmjax.objectives.classification import Classification
from mlmjax.optim import AdamW, WarmupSchedule
from mlmjax.report.terminal import Terminal
from mlmjax.training.folder import load
from tests.commands import refused
from tests.conftest import CONFIG, WORDS

SIZES = {"layers": 1, "hidden": 32, "heads": 2, "mlp": 64}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str) -> str:
    """A config of the digits, small enough to be learned in seconds."""
    monkeypatch.chdir(tmp_path)
    shipped = load_experiment("finetune_image")
    encoder = shipped.model.encoder.updated(**SIZES)
    experiment = shipped.updated(
        model=shipped.model.updated(encoder=encoder),
        optimizer=AdamW(learning_rate=WarmupSchedule(peak=5e-3, warmup=5), layer_decay=0.9),
        data=shipped.data.updated(cache=cache, batch=32),
        run=RunConfig(steps=6, log_every=3, checkpoint_every=3, tensorboard=False),
    )
    (tmp_path / "digits.py").write_text(CONFIG.format(text=experiment.to_json()))
    return "digits.py"


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str) -> str:
    """A config of records whose class a word tells, in records.jsonl."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    with (tmp_path / "records.jsonl").open("w") as file:
        for number in range(120):
            words = [*draw.choice(WORDS, 6), "yes" if number % 3 else "no"]
            text = " ".join(draw.permutation(words))
            label = "good" if number % 3 else "bad"
            file.write(json.dumps({"text": f"{text} {number}", "label": label}) + "\n")
    experiment = Experiment(
        model=BertClassifierConfig(positions=16, dropout=0.0, attention_dropout=0.0, **SIZES),
        objective=Classification(),
        data=TextData(
            root="records.jsonl",
            layout="documents",
            label_field="label",
            length=16,
            batch=16,
            heldout=0.2,
            cache=cache,
            workers=1,
            tokenizer=TokenizerConfig(vocabulary=120),
        ),
        optimizer=AdamW(learning_rate=WarmupSchedule(peak=5e-3, warmup=5)),
        run=RunConfig(steps=60, log_every=30, checkpoint_every=60, tensorboard=False),
    )
    (tmp_path / "texts.py").write_text(CONFIG.format(text=experiment.to_json()))
    return "texts.py"


def last(folder: str) -> dict[str, float]:
    """The last record of a run."""
    return json.loads(Path(folder, "metrics.jsonl").read_text().splitlines()[-1])


@pytest.mark.slow
def test_digits_are_learned(digits: str, capsys: pytest.CaptureFixture) -> None:
    main(["train", digits, "--run.steps", "120"])
    said = capsys.readouterr().out
    assert "class accuracy" in said
    assert "most frequent class" in said
    found = last("runs/digits")
    assert found["heldout/class_accuracy"] > 2.5 * found["heldout/majority_accuracy"]
    assert found["heldout/class_loss"] < found["heldout/majority_loss"] - 0.15
    run = load("runs/digits", trust_code=True)
    assert run.model.config.classes == 10
    prepared = run.config.data.prepare()
    labels = prepared.labels("heldout")
    shown = np.concatenate([each["pixels"] for each in prepared.examples("heldout", batch=500)])
    right = np.asarray(run.model.logits(jnp.asarray(shown))).argmax(axis=1) == labels
    assert right.mean() == pytest.approx(found["heldout/class_accuracy"], abs=1e-6)
    manifest = json.loads(Path("runs/digits/manifest.json").read_text())
    assert manifest["data"]["classes"] == [str(digit) for digit in range(10)]


def test_a_word_is_learned(texts: str, capsys: pytest.CaptureFixture) -> None:
    main(["train", texts])
    found = last("runs/texts")
    assert found["heldout/class_accuracy"] > found["heldout/majority_accuracy"] + 0.1
    assert load("runs/texts", trust_code=True).model.config.classes == 2
    assert "No training example" not in capsys.readouterr().out
    said = refused(capsys, "fill-mask", "runs/texts", "The [MASK].", "--trust-code")
    assert "BertClassifier, which has no head that fills masks" in said
    main(["embed", "runs/texts", "yes", "no", "--out", "found.npz", "--trust-code"])
    assert np.load("found.npz")["features"].shape == (2, 32)


def test_seeds_go_on_where_they_were_ended(
    digits: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Terminal.report

    def told_to_stop(self: Terminal, stage: str, done: int, total: int) -> None:
        told(self, stage, done, total)
        if stage == "train" and done == 2 and Path("runs/digits/seed-4").exists():
            os.kill(os.getpid(), signal.SIGTERM)

    command = ["train", digits, "--run.seed", "3", "--seeds", "2"]
    monkeypatch.setattr(Terminal, "report", told_to_stop)
    main(command)
    said = capsys.readouterr().out
    assert "Stopped after step" in said
    assert "same command with --seeds 2 goes on with this run and the 0 after it" in said
    assert not Path("runs/digits/seeds.json").exists()
    monkeypatch.setattr(Terminal, "report", told)
    first = Path("runs/digits/seed-3/metrics.jsonl").stat().st_mtime_ns
    main(command)
    said = " ".join(capsys.readouterr().out.split())
    assert "seed-3 is finished" in said
    assert "Held-out results of 2 seeds" in said
    assert Path("runs/digits/seed-3/metrics.jsonl").stat().st_mtime_ns == first
    found = json.loads(Path("runs/digits/seeds.json").read_text())
    assert (found["seeds"], found["n"]) == ([3, 4], 2)
    values = [last(f"runs/digits/seed-{seed}")["heldout/class_loss"] for seed in (3, 4)]
    assert values[0] != values[1]
    loss = found["figures"]["class_loss"]
    assert loss["values"] == values
    assert loss["mean"] == pytest.approx(np.mean(values))
    assert loss["std"] == pytest.approx(np.std(values, ddof=1))
    assert f"{loss['mean']:.4f}" in said

    main(["train", digits, "--run.seed", "4", "--run.folder", "alone"])
    assert last("alone")["heldout/class_loss"] == values[1]
    capsys.readouterr()
    main([*command[:-1], "1"])
    found = json.loads(Path("runs/digits/seeds.json").read_text())
    assert found["figures"]["class_loss"] == {"values": values[:1], "mean": values[0], "std": None}
    assert "standard deviation" not in capsys.readouterr().out
    said = refused(capsys, "train", digits, "--seeds", "2", "--run.folder", "runs/digits/seed-3")
    assert "holds one run" in said
    said = refused(capsys, *command, "--run.steps", "7")
    assert "made with another config" in said
    assert "run.steps: 6 -> 7" in said
    Path("runs/digits/seed-3/metrics.jsonl").write_text("")
    assert "remove runs/digits/seed-3 to train that seed again" in refused(capsys, *command)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("0",), "--seeds 0: it must be at least 1"),
        (("-3",), "--seeds -3: it must be at least 1"),
        (("many",), "--seeds many: give the number of runs"),
        ((), "give the number of runs"),
        (("2", "--run.seed", "4294967295"), "seed"),
    ],
)
def test_numbers_of_seeds_that_are_none(
    digits: str, capsys: pytest.CaptureFixture, given: tuple[str, ...], sentence: str
) -> None:
    assert sentence in refused(capsys, "train", digits, "--seeds", *given)
    assert not Path("runs").exists()


def records(path: str, labels: list[str]) -> None:
    """Records of different texts with such labels."""
    lines = [
        json.dumps({"text": f"The text number {i} says {i * i}.", "label": label})
        for i, label in enumerate(labels)
    ]
    Path(path).write_text("\n".join(lines) + "\n")


def test_classes_from_which_nothing_is_learned_are_refused(
    texts: str, capsys: pytest.CaptureFixture
) -> None:
    records("one.jsonl", ["same"] * 40)
    said = refused(capsys, "train", texts, "--data.root", "one.jsonl")
    assert "training examples are of one class (same)" in said
    records("all.jsonl", [str(number) for number in range(40)])
    said = refused(capsys, "train", texts, "--data.root", "all.jsonl")
    assert "held-out examples is of a class that training examples have" in said
    for options, sentence in (
        (("--data.label-field", "none"), "no field 'none' (--data.label-field)"),
        (("--data.label-field", "None"), "set --data.layout documents and --data.label-field"),
        (("--model.classes", "3"), "--model.classes 2, or leave it out"),
        (("--data.layout", "full"), "set layout documents"),
        (("--optimizer.layer-decay", "1.5"), "--optimizer.layer-decay"),
    ):
        assert sentence in refused(capsys, "train", texts, *options)
    assert not Path("runs").exists()


def test_classes_that_are_held_out_alone_are_told(
    texts: str, capsys: pytest.CaptureFixture
) -> None:
    records("rare.jsonl", [*["good", "bad"] * 20, *[f"rare {number}" for number in range(20)]])
    main(["train", texts, "--data.root", "rare.jsonl", "--run.steps", "5"])
    assert "No training example is of the class of" in " ".join(capsys.readouterr().out.split())


def test_majority_by_hand() -> None:
    found = majority(np.array([3, 6, 0]), np.array([2, 1, 1]))
    assert found.accuracy == 0.25
    assert found.unknown == 0.25
    expected = -(2 * np.log(4 / 12) + np.log(7 / 12) + np.log(1 / 12)) / 4
    assert found.loss == pytest.approx(expected)


def test_labels_of_pretraining_data_stay_out(digits: str, capsys: pytest.CaptureFixture) -> None:
    assert ImageData().labels is False
    assert "set --data.labels" in refused(capsys, "train", digits, "--data.no-labels")
