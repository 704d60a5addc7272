"""From an experiment to a trained run folder: data, training, held-out figures, and what is printed."""

from contextlib import ExitStack
from pathlib import Path

from mlmjax.core.errors import UserError
from mlmjax.data.base import Prepared
from mlmjax.data.prepared import PreparedText
from mlmjax.data.text import TextData
from mlmjax.evaluation.baselines import unigram
from mlmjax.evaluation.fill_mask import fill_mask
from mlmjax.evaluation.heldout import HeldOut, heldout_context
from mlmjax.experiment import Experiment
from mlmjax.objectives.mlm import MaskedLanguageModel
from mlmjax.report.terminal import Terminal
from mlmjax.sharding import check_batch
from mlmjax.training.folder import RunFolder, load
from mlmjax.training.loop import Outcome, train
from mlmjax.training.metrics import Record, read_records
from mlmjax.training.state import Parameters
from mlmjax.training.step import Program


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
    if run.folder is None:
        raise UserError("The run has no folder: set run.folder.")
    files = RunFolder(run.folder)
    files.check(experiment, trust_code=trust_code)
    if files.latest_step() == run.steps:
        terminal.say(f"The run in {files.path} is finished ({run.steps} steps); nothing to do.")
        return None
    check_batch(experiment.mesh.make(), experiment.data.batch, accumulate=run.accumulate)
    experiment.objective.check(experiment.model, experiment.data.spec())
    with terminal.live():
        prepared = experiment.data.prepare(terminal.report)
        fitted = experiment.fitted(prepared.vocabulary)
        program = Program.of(fitted)
        with files.locked():
            files.check(experiment, trust_code=trust_code)
            files.claim(experiment, prepared, source=source)
            outcome = _train(program, prepared, files, terminal)
    if outcome.ended == "interrupted":
        terminal.say(
            f"Stopped after step {outcome.step} of {run.steps}; go on with: mlmjax train {files.path}"
        )
        return outcome
    _show(fitted, files, terminal)
    return outcome


def _train(program: Program, prepared: Prepared, files: RunFolder, terminal: Terminal) -> Outcome:
    data, run = program.experiment.data, program.experiment.run
    settings: dict[str, int] = {"seed": run.seed, "batch": data.batch, "threads": data.threads}
    evaluator = HeldOut(program)

    def evaluate(step: int, parameters: Parameters) -> Record:
        figures = evaluator(parameters, prepared.heldout_batches(**settings))
        if step == run.steps:
            figures |= _baseline(program, prepared, settings)
        return {f"heldout/{name}": value for name, value in figures.items()}

    with files.open_checkpoints(run) as checkpoints, ExitStack() as stack:
        sinks = [*files.sinks(program.experiment, resumed_at=checkpoints.latest or 0), terminal]
        for sink in sinks:
            stack.callback(sink.close)
        return train(
            program,
            lambda start: prepared.batches(**settings, start=start, stop=run.steps),
            checkpoints=checkpoints,
            sinks=sinks,
            evaluate=evaluate,
            on_step=lambda step: terminal.report("train", step, run.steps),
        )


def _baseline(program: Program, prepared: Prepared, settings: dict[str, int]) -> dict[str, float]:
    """Figures of a guess that reads no context, where there is one."""
    objective = program.experiment.objective
    if not isinstance(objective, MaskedLanguageModel) or not isinstance(prepared, PreparedText):
        return {}
    guess = unigram(
        objective,
        prepared.heldout_batches(**settings),
        counts=prepared.token_counts,
        context=heldout_context(program),
    )
    return {"unigram_loss": guess.loss, "unigram_accuracy": guess.accuracy}


def _show(experiment: Experiment, files: RunFolder, terminal: Terminal) -> None:
    """The held-out table, and filled sentences for models of text."""
    record = read_records(Path(files.metrics))[-1]
    figures = {
        name.removeprefix("heldout/"): value for name, value in record.items() if "heldout/" in name
    }
    shown = [name for name in HELD_OUT if name in figures] or sorted(figures)
    rows = []
    for name in shown:
        guess = figures.get(f"unigram_{HELD_OUT.get(name)}")
        rows.append(
            (
                name.replace("_", " "),
                f"{figures[name]:.4f}",
                "" if guess is None else f"{guess:.4f}",
            )
        )
    terminal.table("Held-out results", ("", "model", "unigram"), rows)
    if not isinstance(experiment.data, TextData):
        return
    run = load(files.path)
    for text in experiment.data.examples:
        try:
            terminal.say(f"{text}\n  -> {fill_mask(run, text, top=3).best}")
        except UserError as error:  # the examples are a config's, the tokenizer may be the user's
            terminal.say(f"Not filled: {error}")


HELD_OUT = {
    "mask_accuracy": "accuracy",
    "mask_loss": "loss",
    "visible_loss": None,
    "next_sentence_accuracy": None,
}
"""What the table shows where it is there, and the unigram figure that stands beside it."""
