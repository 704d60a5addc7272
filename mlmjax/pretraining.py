"""From an experiment to a trained run folder: data, training, held-out figures, and what is printed."""

import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from rich.console import Console

from mlmjax import distributed
from mlmjax.core.errors import UserError
from mlmjax.data.base import Prepared
from mlmjax.data.prepared import PreparedText
from mlmjax.data.prepared_images import PreparedImages
from mlmjax.evaluation.heldout import HeldOut
from mlmjax.experiment import Experiment
from mlmjax.objectives.classification import Classification
from mlmjax.report.classification_run import ClassificationRun
from mlmjax.report.image_run import ImageRun
from mlmjax.report.run import RunReport
from mlmjax.report.terminal import Terminal
from mlmjax.report.text_run import TextRun
from mlmjax.training import setup
from mlmjax.training.folder import RunFolder
from mlmjax.training.initial import Initial
from mlmjax.training.loop import Outcome, train
from mlmjax.training.metrics import Record
from mlmjax.training.state import Parameters
from mlmjax.training.step import Program

_NAMED = 8
"""Modules that are named whose parameters are drawn."""


def pretrain(
    experiment: Experiment,
    *,
    source: Path | None = None,
    trust_code: bool = False,
    terminal: Terminal | None = None,
) -> Outcome | None:
    """Prepare the data, train from the newest checkpoint or the start, and report.

    Args:
        experiment: with a ``run.folder``, which is created or gone on with.
        source: the config file, where it comes from outside the package.
        trust_code: that file's classes may be run when the folder is read.
        terminal: where progress and results go.

    Returns:
        How training ended; None where the run was finished already.

    Raises:
        UserError: something that was given cannot be used; nothing is changed then.
        DivergedError: the gradient stayed not finite.
    """
    terminal, run = terminal or Terminal(), experiment.run
    if not distributed.first():
        terminal = Terminal(Console(quiet=True))
    if run.folder is None:
        raise UserError("The run has no folder: set run.folder.")
    setup.agree(experiment)
    files = RunFolder(run.folder)
    files.check(experiment, trust_code=trust_code)
    finished = files.latest_step() == run.steps
    seen = {"a run": files.exists(), "all its steps": finished}
    distributed.agree(f"What is seen in {files.path}", seen)
    if finished:
        terminal.say(f"The run in {files.path} is finished ({run.steps} steps); nothing to do.")
        return None
    with terminal.live():
        prepared, program = setup.set_up(experiment, terminal.report)
        initial = Initial.of(program) if files.latest_step() is None else None
        if initial is not None:
            distributed.agree(f"What is seen in {initial.folder}", initial.describe())
            terminal.say(_started(initial))
        report = _report_of(prepared, program)(program, prepared, files=files, terminal=terminal)
        with ExitStack() as stack:
            if distributed.first():
                stack.enter_context(files.locked())
                files.check(experiment, trust_code=trust_code)
                described = None if initial is None else initial.describe()
                files.claim(experiment, prepared, source=source, initial=described)
            distributed.everyone("the run folder is this run's")
            distributed.agree(f"What is seen in {files.path}", {"a run": _appears(files)})
            outcome = _train(program, report, initial)
    if outcome.ended == "interrupted":
        terminal.say(
            f"Stopped after step {outcome.step} of {run.steps}; go on with: mlmjax train {files.path}"
        )
        return outcome
    parameters = distributed.everywhere(outcome.state.parameters)
    if distributed.first():
        report.ended(parameters)
    return outcome


def _train(program: Program, report: RunReport, initial: Initial | None) -> Outcome:
    run, prepared, files, terminal = (
        program.experiment.run,
        report.prepared,
        report.files,
        report.terminal,
    )
    settings = report.settings()
    evaluator = HeldOut(program)

    def evaluate(step: int, parameters: Parameters) -> Record:
        figures = evaluator(parameters, prepared.heldout_batches(**settings, places=program.places))
        figures |= report.evaluated(step, distributed.everywhere(parameters))
        return {f"heldout/{name}": value for name, value in figures.items()}

    with files.open_checkpoints(run) as checkpoints, ExitStack() as stack:
        latest = checkpoints.latest or 0
        distributed.agree(f"What is seen in {files.path}", {"newest checkpoint": latest})
        written = files.sinks(program.experiment, resumed_at=latest) if distributed.first() else []
        sinks = [*written, terminal]
        for sink in sinks:
            stack.callback(sink.close)
        stack.callback(report.close)
        return train(
            program,
            lambda start: prepared.batches(
                **settings, start=start, stop=run.steps, places=program.places
            ),
            checkpoints=checkpoints,
            sinks=sinks,
            initial=None if initial is None else partial(initial.state, program),
            evaluate=evaluate,
            on_step=lambda step: terminal.report("train", step, run.steps),
        )


def _started(initial: Initial) -> str:
    """What of another run is taken."""
    said = f"{len(initial.taken)} parameters are those of {initial.folder}, step {initial.step}"
    names = list(dict.fromkeys(name.rpartition("/")[0] or name for name in initial.drawn))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (
        f"{said}; drawn: {', '.join(names[:_NAMED])}{more}." if names else f"{said}; all of them."
    )


def _appears(files: RunFolder, *, seconds: float = 60) -> bool:
    """Whether the run that the first process has begun is seen here; a network's file system may take a while."""
    until = time.monotonic() + seconds
    while not files.exists() and time.monotonic() < until:
        time.sleep(1)
    return files.exists()


def _report_of(prepared: Prepared, program: Program) -> type[RunReport]:
    """What shows a run of such data and objective; on all processes but the first, nothing does."""
    if not distributed.first():
        return RunReport
    if isinstance(program.experiment.objective, Classification):
        return ClassificationRun
    kinds = {PreparedText: TextRun, PreparedImages: ImageRun}
    return next((shown for kind, shown in kinds.items() if isinstance(prepared, kind)), RunReport)
