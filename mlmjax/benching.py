"""From an experiment to figures of its speed on the devices that are here."""

from mlmjax.data.base import Batches
from mlmjax.data.prepared_images import PreparedImages
from mlmjax.experiment import Experiment
from mlmjax.models.mae import MaeConfig
from mlmjax.report.terminal import Terminal
from mlmjax.sharding import check_batch
from mlmjax.training.speed import Speed, measure
from mlmjax.training.step import Program

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
    check_batch(experiment.mesh.make(), data.batch, accumulate=run.accumulate)
    experiment.objective.check(experiment.model, data.spec())
    with terminal.live():
        prepared = data.prepare(terminal.report)
        if isinstance(prepared, PreparedImages) and isinstance(experiment.model, MaeConfig):
            prepared.check_patch(experiment.model.encoder.patch)
        program = Program.of(experiment.fitted(prepared.vocabulary))

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
