"""What the loop does when the numbers go wrong."""

from pathlib import Path

import pytest
from rich.console import Console

from mlmjax.experiment import Experiment
from mlmjax.optim import AdamW, WarmupSchedule
from mlmjax.pretraining import pretrain
from mlmjax.report.terminal import Terminal
from mlmjax.training.loop import IN_FLIGHT, DivergedError
from mlmjax.training.metrics import read_records


def test_a_run_that_diverges_names_the_last_good_checkpoint(experiment: Experiment) -> None:
    """A learning rate that overflows the parameters once, at the start, leaves nothing to skip back to."""
    wild = AdamW(
        learning_rate=WarmupSchedule(peak=1e37, warmup=0, decay="constant"), weight_decay=0.0
    )
    run = experiment.run.updated(steps=12, checkpoint_every=1, stop_after_skipped=3)
    with pytest.raises(DivergedError, match=r"3 steps in a row(.|\n)*checkpoint") as caught:
        pretrain(
            experiment.updated(optimizer=wild, run=run), terminal=Terminal(Console(quiet=True))
        )
    saved = [int(folder.name) for folder in Path(run.folder, "checkpoints").iterdir()]
    assert str(max(saved)) in str(caught.value)
    records = read_records(Path(run.folder) / "metrics.jsonl")
    assert max(record["train/skipped_in_a_row"] for record in records) <= 3 + IN_FLIGHT
