"""From an experiment to figures of its speed on the devices that are here."""

from mlmjax.data.base import Batches
from mlmjax.experiment import Experiment
from mlmjax.report.terminal import Terminal
from mlmjax.training import setup
from mlmjax.training.speed import Speed, measure

WARMUP = 3
"""Steps before those that are measured."""


def bench(experiment: Experiment, *, steps: int = 20, terminal: Terminal | None = None) -> Speed:
    """How fast an experiment trains: its own data, step and mesh; no run folder is needed or written.

    Args:
        experiment: whose data is prepared as for training.
        steps: how many are measured.
        terminal: where progress goes.

    Raises:
        UserError: something that was given cannot be used.
    """
    terminal = terminal or Terminal()
    data, run = experiment.data, experiment.run
    setup.agree(experiment, **{"--steps": steps})
    with terminal.live():
        prepared, program = setup.set_up(experiment, terminal.report)

        def part(start: int, stop: int) -> Batches:
            return prepared.batches(
                seed=run.seed,
                batch=data.batch,
                start=start,
                stop=stop,
                threads=data.threads,
                places=program.places,
            )

        return measure(
            program,
            part,
            steps=steps,
            warmup=WARMUP,
            on_step=lambda step: terminal.report("bench", step, WARMUP + steps),
        )
