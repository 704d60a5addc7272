"""What the loop does when the numbers go wrong."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from mlmjax.core.errors import UserError
from mlmjax.experiment import Experiment
from mlmjax.optim import AdamW, WarmupSchedule
from mlmjax.pretraining import pretrain
from mlmjax.report.terminal import Terminal
from mlmjax.training.checkpoint import Checkpoints
from mlmjax.training.loop import IN_FLIGHT, DivergedError, stop_if_diverged
from mlmjax.training.metrics import read_records
from mlmjax.training.state import TrainState


def quiet() -> Terminal:
    return Terminal(Console(quiet=True))


def wild(experiment: Experiment, **run: int) -> Experiment:
    """A learning rate that overflows the parameters at the first step."""
    schedule = WarmupSchedule(peak=1e37, warmup=0, decay="constant")
    return experiment.updated(
        optimizer=AdamW(learning_rate=schedule, weight_decay=0.0), run=experiment.run.updated(**run)
    )


def test_a_run_that_diverges_stops(experiment: Experiment) -> None:
    """The checkpoint after the first step holds the parameters that overflowed, and is not called good."""
    asked = wild(experiment, steps=12, checkpoint_every=1, stop_after_skipped=3)
    with pytest.raises(DivergedError, match=r"3 steps in a row was not finite\. There is no good"):
        pretrain(asked, terminal=quiet())
    path = Path(asked.run.folder, "metrics.jsonl")
    records = read_records(path)
    assert max(record["train/skipped_in_a_row"] for record in records) <= 3 + IN_FLIGHT
    # A window without a finite step has no loss, rather than one of 0; and JSON has no NaN.
    assert all("train/loss" not in record for record in records[1:])
    assert "NaN" not in path.read_text()


def test_a_diverged_run_does_not_end_well_because_it_is_short(experiment: Experiment) -> None:
    asked = wild(experiment, steps=4, stop_after_skipped=10)
    with pytest.raises(DivergedError, match="held-out figure of step 4"):
        pretrain(asked, terminal=quiet())


def test_the_checkpoint_named_is_older_than_the_first_bad_gradient(tmp_path: Path) -> None:
    """If 13, 14 and 15 were skipped, the parameters after step 12 gave the first bad gradient."""
    zero = jnp.int32(0)
    with Checkpoints(tmp_path / "checkpoints", keep=3, writes=True) as checkpoints:
        for step in (5, 10, 12):
            state = TrainState(jnp.int32(step), {"kernel": jnp.ones(3)}, (), {}, zero, zero)
            checkpoints.save(step, state)
        checkpoints.wait()
        report = {"skipped_in_a_row": jnp.int32(3)}
        stop_if_diverged(14, report, limit=4, checkpoints=checkpoints)
        with pytest.raises(DivergedError, match="checkpoints/10;"):
            stop_if_diverged(15, report, limit=3, checkpoints=checkpoints)
        with pytest.raises(DivergedError, match="checkpoints/12;"):
            stop_if_diverged(16, report, limit=3, checkpoints=checkpoints)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """In here no file can grow larger, which looks as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_checkpoint_that_finds_no_room_is_named(tmp_path: Path, capfd) -> None:
    """In one sentence and at once; the one before it stays, and is the newest."""
    noise = np.random.default_rng(0).standard_normal(2**16)
    state = TrainState(jnp.int32(1), {"kernel": jnp.asarray(noise)}, (), {}, *[jnp.int32(0)] * 2)

    def write() -> None:
        with Checkpoints(tmp_path / "checkpoints", writes=True) as checkpoints:
            checkpoints.save(1, state)
            checkpoints.wait()
            with largest_file(2**16):
                checkpoints.save(2, state)
                checkpoints.wait()

    with pytest.raises(UserError, match="checkpoint of step 2 could not be written") as refused:
        write()
    assert str(tmp_path / "checkpoints") in str(refused.value)
    assert "Traceback" not in capfd.readouterr().err
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        assert checkpoints.latest == 1
