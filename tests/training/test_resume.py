"""A run that is cut off anywhere goes on as if it had not been: bit for bit."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import chex
import jax
import numpy as np
import pytest
from rich.console import Console

from mlmjax.core.errors import UserError
from mlmjax.data.images import ImageData
from mlmjax.experiment import Experiment
from mlmjax.models.mae import DecoderConfig, MaeConfig
from mlmjax.models.vit import VitConfig
from mlmjax.objectives.mae import MaskedAutoencoder
from mlmjax.pretraining import pretrain
from mlmjax.report.terminal import Terminal
from mlmjax.training.checkpoint import Checkpoints
from mlmjax.training.folder import RunFolder, load
from mlmjax.training.metrics import read_records
from mlmjax.training.step import Program
from tests.data.made_images import noise, write_folder

CLOCKED = ("per_second", "seconds", "bytes")

KILLED = """
import os, signal, sys, threading
from mlmjax.experiment import Experiment
from mlmjax.pretraining import pretrain
from mlmjax.report.terminal import Terminal

config, how, step, later = sys.argv[1], getattr(signal, sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
struck = False

class Killed(Terminal):
    def report(self, stage, done, total):
        global struck
        if stage != "train" or done < step or struck:
            return
        struck = True
        if later:
            threading.Timer(later, os.kill, (os.getpid(), how)).start()
        else:
            os.kill(os.getpid(), how)

pretrain(Experiment.from_json(open(config).read()), terminal=Killed())
"""


def quiet() -> Terminal:
    return Terminal(Console(quiet=True))


@pytest.fixture
def of_images(experiment: Experiment, tmp_path: Path) -> Experiment:
    """A masked autoencoder of images that are cropped and mirrored at random; a batch ends amid an epoch."""
    root = tmp_path / "pictures"
    names = [f"{label}/{number}" for label in ("dark", "light") for number in range(9)]
    write_folder(root, {name: noise(seed=seed) for seed, name in enumerate(names)})
    sizes = {"layers": 1, "hidden": 16, "heads": 2, "mlp": 32}
    return experiment.updated(
        model=MaeConfig(
            encoder=VitConfig(image=(12, 8), patch=(3, 2), **sizes), decoder=DecoderConfig(**sizes)
        ),
        objective=MaskedAutoencoder(),
        data=ImageData(
            root=str(root),
            size=(12, 8),
            batch=8,
            heldout=0.3,
            crop=(0.2, 1.0),
            flip=True,
            cache=str(tmp_path / "cache"),
        ),
    )


def parameters(experiment: Experiment) -> dict[str, np.ndarray]:
    """Everything in the newest checkpoint."""
    files = RunFolder(experiment.run.folder)
    step = files.latest_step()
    assert step == experiment.run.steps
    program = Program.of(load(files.path).config)
    with Checkpoints(files.checkpoints) as checkpoints:
        return jax.device_get(checkpoints.restore(program.state, step))


def records(experiment: Experiment) -> list[dict[str, float]]:
    """What was logged, but for what a clock or the memory measured."""
    return [
        {name: value for name, value in record.items() if not name.endswith(CLOCKED)}
        for record in read_records(Path(experiment.run.folder) / "metrics.jsonl")
    ]


def elsewhere(experiment: Experiment, folder: Path) -> Experiment:
    return experiment.updated(run=experiment.run.updated(folder=str(folder)))


def cut_off(
    experiment: Experiment, tmp_path: Path, how: str, *, step: int = 7, later: float = 0.0
) -> subprocess.CompletedProcess:
    """Train in another process that gets a signal after a step, or some seconds later."""
    config = tmp_path / "asked.json"
    config.write_text(experiment.to_json())
    return subprocess.run(
        [sys.executable, "-c", KILLED, str(config), how, str(step), str(later)],
        env={**os.environ},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("kind", ["experiment", pytest.param("of_images", marks=pytest.mark.slow)])
def test_a_killed_run_ends_as_the_uninterrupted_one(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    whole: Experiment = request.getfixturevalue(kind)
    pretrain(whole, terminal=quiet())
    assert [record["step"] for record in records(whole)] == list(range(1, 13))
    for how in ("SIGKILL", "SIGTERM") if kind == "experiment" else ("SIGKILL",):
        cut = elsewhere(whole, tmp_path / how)
        ended = cut_off(cut, tmp_path, how)
        if how == "SIGKILL":
            assert ended.returncode == -signal.SIGKILL
            assert RunFolder(cut.run.folder).latest_step() in (None, 5)
        else:
            assert ended.returncode == 0, ended.stderr
            assert RunFolder(cut.run.folder).latest_step() in (7, 8)
            assert f"mlmjax train {cut.run.folder}" in ended.stdout.replace("\n", "")
        pretrain(cut, terminal=quiet())
        chex.assert_trees_all_equal(parameters(cut), parameters(whole))
        assert records(cut) == records(whole)


@pytest.mark.slow
def test_twenty_kills_leave_no_trace(experiment: Experiment, tmp_path: Path) -> None:
    """At random steps, softly and hard, also while a checkpoint is being written."""
    draw = random.Random(0)
    run = experiment.run.updated(steps=200, checkpoint_every=6, evaluate_every=50)
    whole = experiment.updated(run=run)
    pretrain(whole, terminal=quiet())
    cut = elsewhere(whole, tmp_path / "cut")
    steps = sorted(draw.sample(range(1, 195), 20))
    hard = 0
    for step in steps:
        how = draw.choice(("SIGKILL", "SIGTERM"))
        ended = cut_off(cut, tmp_path, how, step=step, later=draw.choice((0.0, draw.random() / 5)))
        assert ended.returncode == (-signal.SIGKILL if how == "SIGKILL" else 0), ended.stderr
        hard += how == "SIGKILL"
    assert 5 <= hard <= 15
    assert (RunFolder(cut.run.folder).latest_step() or 0) < 200
    pretrain(cut, terminal=quiet())
    chex.assert_trees_all_equal(parameters(cut), parameters(whole))
    assert records(cut) == records(whole)


def test_a_write_cut_off_midway_leaves_the_checkpoint_before(
    experiment: Experiment, tmp_path: Path
) -> None:
    pretrain(experiment, terminal=quiet())
    wanted = parameters(experiment)
    files = RunFolder(experiment.run.folder)
    newest = Path(files.checkpoints) / "12"
    newest.rename(newest.with_name("12.orbax-checkpoint-tmp"))
    for number, file in enumerate(sorted(newest.with_name("12.orbax-checkpoint-tmp").rglob("*"))):
        if file.is_file() and number % 2:
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert files.latest_step() == 10
    assert load(files.path).step == 10
    # A reader leaves a write alone that may still be going on; the next writer removes its remains.
    assert newest.with_name("12.orbax-checkpoint-tmp").exists()
    pretrain(experiment, terminal=quiet())
    chex.assert_trees_all_equal(parameters(experiment), wanted)


def test_one_process_at_a_time_trains_in_a_folder(experiment: Experiment) -> None:
    files = RunFolder(experiment.run.folder)
    with files.locked(), pytest.raises(UserError, match="Another process is training"):
        pretrain(experiment, terminal=quiet())
    assert not files.exists()
    pretrain(experiment, terminal=quiet())
    assert files.latest_step() == experiment.run.steps


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # of Orbax's own loop
def test_a_damaged_checkpoint_is_named_with_the_one_before(experiment: Experiment) -> None:
    pretrain(experiment, terminal=quiet())
    files = RunFolder(experiment.run.folder)
    for file in Path(files.checkpoints, "12").rglob("d/*"):
        file.write_bytes(b"")
    with pytest.raises(UserError, match=r"12 is damaged.*remove that folder to go on from step 10"):
        load(files.path)


def test_a_finished_run_is_left_alone(
    experiment: Experiment, capsys: pytest.CaptureFixture
) -> None:
    pretrain(experiment, terminal=quiet())
    before = {
        file: file.stat().st_mtime_ns
        for file in Path(experiment.run.folder).rglob("*")
        if file.is_file()
    }
    assert pretrain(experiment, terminal=Terminal()) is None
    assert "finished" in capsys.readouterr().out
    after = {file: file.stat().st_mtime_ns for file in before}
    assert after == before


def test_another_config_changes_nothing(experiment: Experiment) -> None:
    pretrain(experiment, terminal=quiet())
    stored = Path(experiment.run.folder, "config.json").read_text()
    other = experiment.updated(run=experiment.run.updated(seed=3, steps=20))
    with pytest.raises(UserError, match=r"run.steps: 12 -> 20(.|\n)*run.seed: 0 -> 3"):
        pretrain(other, terminal=quiet())
    assert Path(experiment.run.folder, "config.json").read_text() == stored


def test_only_the_newest_and_every_mth_checkpoint_stay(experiment: Experiment) -> None:
    run = experiment.run.updated(checkpoint_every=2, keep=1, keep_every=4)
    pretrain(experiment.updated(run=run), terminal=quiet())
    kept = {int(folder.name) for folder in Path(run.folder, "checkpoints").iterdir()}
    assert kept == {4, 8, 12}


@pytest.mark.slow
def test_logged_metrics_survive_an_interruption_between_two_records(
    experiment: Experiment, tmp_path: Path
) -> None:
    """The sums since the last record are part of the checkpoint."""
    run = experiment.run.updated(log_every=4)
    whole = experiment.updated(run=run)
    cut = elsewhere(whole, tmp_path / "cut")
    pretrain(whole, terminal=quiet())
    cut_off(cut, tmp_path, "SIGKILL")
    pretrain(cut, terminal=quiet())
    assert records(cut) == records(whole)


@pytest.mark.slow
def test_the_run_goes_on_on_another_mesh(experiment: Experiment, tmp_path: Path) -> None:
    on_eight = elsewhere(experiment, tmp_path / "eight")
    pretrain(on_eight, terminal=quiet())
    cut = elsewhere(experiment, tmp_path / "cut")
    cut_off(cut, tmp_path, "SIGTERM")
    mesh = cut.mesh.updated(data=2, fsdp=2, tensor=2)
    pretrain(cut.updated(mesh=mesh), terminal=quiet())
    final, wanted = records(cut)[-1], records(on_eight)[-1]
    assert final["heldout/mask_loss"] == pytest.approx(wanted["heldout/mask_loss"], rel=1e-3)


def test_what_a_kill_at_the_very_start_leaves_is_no_other_run(experiment: Experiment) -> None:
    folder = Path(experiment.run.folder)
    folder.mkdir(parents=True)
    (folder / "manifest.json.partial").write_text("{")
    (folder / ".lock").touch()
    RunFolder(folder).check(experiment)
    (folder / "notes.txt").touch()
    with pytest.raises(UserError, match="not empty and holds no run"):
        RunFolder(folder).check(experiment)


def test_metrics_are_json_and_flat(experiment: Experiment) -> None:
    pretrain(experiment, terminal=quiet())
    text = Path(experiment.run.folder, "metrics.jsonl").read_text()
    last = json.loads(text.splitlines()[-1])
    wanted = {
        "step",
        "train/mask_loss",
        "train/gradient_norm",
        "train/tokens_per_second",
        "train/data_wait_seconds",
        "train/model_flops_per_second",
        "train/peak_memory_bytes",
        "heldout/mask_loss",
        "heldout/mask_accuracy",
        "heldout/unigram_accuracy",
    }
    assert wanted <= set(last)
    assert all(isinstance(value, int | float) for value in last.values())
