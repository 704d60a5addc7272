"""Several processes are one run: they agree, stop at the same step, and none is left behind."""

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import chex
import jax
import numpy as np
import pytest
from flax import nnx
from rich.console import Console

from mlmjax import distributed
from mlmjax.experiment import Experiment
from mlmjax.pretraining import pretrain
from mlmjax.report.terminal import Terminal
from mlmjax.sharding import MeshConfig
from mlmjax.training.checkpoint import Checkpoints
from mlmjax.training.folder import RunFolder, load
from mlmjax.training.step import Program
from tests.commands import refused
from tests.processes import ended, start, together

ONE = MeshConfig(data=1)
MIXED = MeshConfig(data=2, fsdp=2, tensor=2)


def on(experiment: Experiment, mesh: MeshConfig) -> Experiment:
    return experiment.updated(mesh=mesh)


@pytest.fixture
def long(experiment: Experiment, tmp_path: Path) -> Experiment:
    """A run that nobody waits for, with a checkpoint every four steps."""
    run = experiment.run.updated(steps=4000, checkpoint_every=4, log_every=4)
    return experiment.updated(run=run, mesh=MeshConfig(data=1, fsdp=4))


def checkpoint(experiment: Experiment) -> int:
    """The step of the newest checkpoint, which loads."""
    files = RunFolder(experiment.run.folder)
    step = files.latest_step()
    assert step is not None
    program = Program.of(
        experiment.updated(mesh=ONE).fitted(experiment.data.prepare().vocabulary),
        ONE.make(jax.devices()[:1]),
    )
    with Checkpoints(files.checkpoints) as checkpoints:
        assert int(checkpoints.restore(program.state, step).step) == step
    return step


@pytest.mark.parametrize(
    ("process", "how", "cause"),
    [
        pytest.param(
            *(1, "raise", "process 1 ended: RuntimeError: the disk of this host is gone"),
            id="an exception",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            1, "SIGKILL", "1\nThe tasks have crashed", id="a kill", marks=pytest.mark.slow
        ),
        pytest.param(
            *(1, "full", "process 1 ended: The checkpoint of step"),
            id="a full disk",
        ),
        pytest.param(
            *(0, "SIGKILL", "coordination service"), id="the first", marks=pytest.mark.slow
        ),
    ],
)
def test_a_failure_of_one_ends_all(
    long: Experiment, tmp_path: Path, process: int, how: str, cause: str
) -> None:
    fault = {"process": process, "step": 30, "how": how}
    started = start(tmp_path / "files", 2, devices=4, experiment=long.to_json(), fault=fault)
    started[process].wait(timeout=200)
    done = ended(tmp_path / "files", started)
    assert done.seconds < 60
    assert all(status != 0 for status in done.status)
    assert cause in done.said[1 - process]
    assert 0 < checkpoint(long) < 40


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([(2, MeshConfig(data=2, fsdp=4), 1)], id="two processes, then one"),
        pytest.param(
            [(4, MIXED, 2), (2, MeshConfig(data=2, fsdp=4), 0)],
            id="four, then two, then one",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_sigterm_on_one_saves_all_and_other_meshes_go_on(
    long: Experiment, tmp_path: Path, parts: list[tuple[int, MeshConfig, int]]
) -> None:
    """Of several processes one is told to stop; fewer go on, and begin with the very next batch."""
    asked = long.updated(run=long.run.updated(steps=30))
    step, rows = 0, {}
    for count, mesh, told in parts:
        folder = tmp_path / str(count)
        fault = {"process": told, "step": 7, "how": "SIGTERM"}
        done = together(folder, count, experiment=on(asked, mesh).to_json(), fault=fault)
        assert done.status == [0] * count, done.said
        begun, step = step, checkpoint(asked)
        assert begun + 7 <= step < min(begun + 18, 30)
        rows |= read(folder, begun, step)

    prepared = asked.data.prepare()
    settings = {"seed": asked.run.seed, "batch": asked.data.batch, "threads": 1}
    for number, batch in enumerate(prepared.batches(**settings, start=0, stop=step)):
        expected = {
            place: (int(row[1]), int(epoch))
            for place, (row, epoch) in enumerate(zip(batch["id"], batch["epoch"], strict=True))
        }
        assert rows[number] == expected
    spread = on(asked, MeshConfig())
    whole = spread.updated(run=asked.run.updated(folder=str(tmp_path / "whole")))
    for each in (spread, whole):
        pretrain(each, terminal=Terminal(Console(quiet=True)))
    ended_as, uninterrupted = (final(each) for each in (asked, whole))
    chex.assert_trees_all_close(ended_as, uninterrupted, rtol=2e-3, atol=2e-5)


def read(folder: Path, begin: int, end: int) -> dict[int, dict[int, tuple[int, int]]]:
    """Example and epoch at each place of the global batches of some steps, from what all processes wrote."""
    rows: dict[int, dict[int, tuple[int, int]]] = {}
    for out in folder.glob("*.out"):
        lines = out.read_text().splitlines()
        for step, line in zip(range(begin, end), map(json.loads, lines), strict=False):
            held = zip(line["places"], line["ids"], line["epochs"], strict=True)
            rows.setdefault(step, {}).update({place: (id, epoch) for place, id, epoch in held})
    return rows


def final(experiment: Experiment) -> dict[str, np.ndarray]:
    """The parameters of the last checkpoint."""
    return jax.device_get(nnx.state(load(experiment.run.folder).model, nnx.Param))


def test_processes_that_disagree_are_refused(experiment: Experiment, tmp_path: Path) -> None:
    """In an option, where SLURM started them; and in the data, of which each has a copy."""
    other = experiment.updated(data=experiment.data.updated(batch=16))
    own = [{"experiment": each.to_json()} for each in (experiment, other)]
    done = together(tmp_path / "config", 2, own=own, slurm=True)
    assert done.status == [2, 2]
    for said in done.said:
        assert "data.batch: 8 on process 0, 16 on process 1" in said
        assert "Traceback" not in said
    assert not Path(experiment.run.folder).exists()

    copies = [tmp_path / str(number) for number in range(2)]
    for copy in copies:
        (copy / "texts").mkdir(parents=True)
    for path in Path(experiment.data.root).iterdir():
        for copy in copies:
            (copy / "texts" / path.name).write_text(path.read_text())
    (copies[1] / "texts" / "more.txt").write_text("One file that the other host has not. " * 20)
    same_words = experiment.updated(data=experiment.data.updated(root="texts", cache=None))
    done = together(
        tmp_path / "data",
        2,
        experiment=same_words.to_json(),
        own=[{"folder": str(copy)} for copy in copies],
    )
    assert done.status == [2, 2]
    for said in done.said:
        assert "The data must be the same on all processes" in said
        assert "fingerprint" in said


@pytest.mark.slow
def test_processes_that_disagree_are_refused_by_bench(
    experiment: Experiment, tmp_path: Path
) -> None:
    own = [{"bench": steps} for steps in (2, 3)]
    done = together(tmp_path, 2, experiment=experiment.to_json(), own=own)
    assert done.status == [2, 2]
    assert all("--steps: 2 on process 0, 3 on process 1" in said for said in done.said)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--distributed.processes", "2"],
            "give --distributed.coordinator, --distributed.process-id",
        ),
        (["coordinator=here", "processes=2", "process-id=0"], "host and a free port"),
        (["coordinator=here:1", "processes=0", "process-id=0"], "--distributed.processes 0"),
        (["coordinator=here:1", "processes=2", "process-id=2"], "numbered from 0 to 1"),
    ],
)
def test_peers_that_cannot_be_found_are_refused(
    capsys: pytest.CaptureFixture, options: list[str], said: str
) -> None:
    given = [
        part
        for option in options
        for part in (f"--distributed.{option}".split("=") if "=" in option else [option])
    ]
    assert said in refused(capsys, "train", "bert_tiny", *given)


def test_a_port_that_another_program_has_is_refused(capsys: pytest.CaptureFixture) -> None:
    with socket.create_server(("localhost", 0)) as other:
        where = f"localhost:{other.getsockname()[1]}"
        peers = {"coordinator": where, "processes": "2", "process-id": "0"}
        given = [part for name, value in peers.items() for part in (f"--distributed.{name}", value)]
        assert f"{where}: process 0 cannot have this port" in refused(
            capsys, "train", "bert_tiny", *given
        )


def test_a_failure_of_the_runtime_is_told_by_whoever_knows_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a traceback of this process, which has no fault."""
    said = {"process": 1, "status": 2, "cause": "There is no text."}
    gone: list[Mapping[str, Any]] = []

    def go(said: Mapping[str, Any]) -> None:
        gone.append(said)
        raise SystemExit

    monkeypatch.setattr(distributed, "_said", lambda: said)
    monkeypatch.setattr(distributed, "_go", go)
    with pytest.raises(SystemExit):
        distributed._leave(jax.errors.JaxRuntimeError("Connection reset by peer"), pytest.fail)
    assert gone == [said]


@pytest.mark.parametrize("number", [0, 1])
def test_processes_that_do_not_come_are_named(tmp_path: Path, number: int) -> None:
    """One of two is started; the other is not."""
    done = together(tmp_path, 2, only=number, experiments=[], seconds=4)
    assert done.status == [2]
    assert "did not meet at localhost:" in done.said[0]
    assert "within 4 s" in done.said[0]
