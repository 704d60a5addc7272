"""From an experiment to the audit of its masks: data, examples in training order, and figures."""

from collections.abc import Iterator
from contextlib import closing
from itertools import islice

import numpy as np

from mlmjax.core.errors import UserError
from mlmjax.data.pipeline import assemble
from mlmjax.data.preparation.progress import Report
from mlmjax.data.prepared import PreparedText
from mlmjax.evaluation.audit.figures import Figures
from mlmjax.evaluation.audit.lexicon import Lexicon
from mlmjax.evaluation.audit.masks import Examples, audit_masks
from mlmjax.experiment import Experiment
from mlmjax.objectives.base import Objective
from mlmjax.objectives.mlm import MaskedLanguageModel
from mlmjax.report.terminal import Terminal


def audit(
    experiment: Experiment,
    *,
    examples: int = 2048,
    epochs: int = 2,
    step: int = 0,
    terminal: Terminal | None = None,
) -> Figures:
    """What the masks of the first training examples are like; no model is made and nothing is trained.

    Args:
        experiment: whose data is prepared as for training.
        examples: how many; all where there are fewer.
        epochs: in which each is masked.
        step: at which the ratio of a schedule is taken.
        terminal: where progress and remarks go.

    Raises:
        UserError: a number is out of range, the objective masks no tokens, or the data cannot be read.
    """
    for name, number, least in (
        ("examples", examples, 1),
        ("epochs", epochs, 1),
        ("step", step, 0),
    ):
        if not least <= number < 2**31:
            raise UserError(f"--{name} {number}: it must be at least {least}, and below 2^31.")
    terminal = terminal or Terminal()
    masking(experiment.objective)
    experiment.objective.check(experiment.model, experiment.data.spec())
    with terminal.live():
        prepared = experiment.data.prepare(terminal.report)
        if not isinstance(prepared, PreparedText):
            raise UserError(
                f"An audit looks at masks of text, and {type(experiment.data).__name__} is none: "
                "give TextData (data)."
            )
        objective = masking(experiment.fitted(prepared.vocabulary).objective)
        wanted = min(examples, len(prepared.train))
        figures = audit_masks(
            objective,
            training_examples(
                experiment, prepared, wanted=wanted, epochs=epochs, report=terminal.report
            ),
            lexicon=lexicon(prepared),
            seed=experiment.run.seed,
            step=step,
        )
    if figures.examples < examples:
        terminal.say(
            f"{examples} examples were asked for; the training part gave {figures.examples}."
        )
    return figures


def masking(objective: Objective) -> MaskedLanguageModel:
    """The part of an objective that masks tokens: itself, or the one that it holds.

    Raises:
        UserError: there is none.
    """
    held = [getattr(objective, name) for name in type(objective).model_fields]
    for one in (objective, *held):
        if isinstance(one, MaskedLanguageModel):
            return one
    raise UserError(
        f"The objective {type(objective).__name__} draws no masks of tokens, so there is nothing to audit; "
        "choose a config with a MaskedLanguageModel (objective)."
    )


def lexicon(prepared: PreparedText) -> Lexicon:
    """The tokens of prepared text."""
    tokenizer = prepared.tokenizer
    names = [tokenizer.token(id) for id in range(prepared.vocabulary.size)]
    # WordPiece marks what goes on with a word.
    texts = [tokenizer.spelled(name).removeprefix("##") for name in names]
    return Lexicon(prepared.vocabulary, names, texts, prepared.token_counts)


def training_examples(
    experiment: Experiment,
    prepared: PreparedText,
    *,
    wanted: int,
    epochs: int,
    report: Report | None = None,
) -> Iterator[Examples]:
    """The first different examples of training, each as in its first epoch and in those that follow.

    Args:
        experiment: of which training would be.
        prepared: its data.
        wanted: how many; fewer, where one source comes again and again before another is read.
        epochs: in how many.
        report: called with what is done.
    """
    data, seed = experiment.data, experiment.run.seed
    seen: set[int] = set()
    # A source that is much smaller than its weight comes again before another has been read once.
    stop = 2 * -(-wanted // data.batch) + 1
    stream = prepared.batches(seed=seed, batch=data.batch, start=0, stop=stop, threads=data.threads)
    with closing(stream):
        for batch in stream:
            index = batch["id"].astype(np.int64) @ np.array([2**32, 1])
            first = np.unique(index, return_index=True)[1]
            new = [place for place in sorted(first) if int(index[place]) not in seen]
            new = list(islice(new, wanted - len(seen)))
            seen |= set(index[new].tolist())
            order = new + sorted(set(range(len(index))) - set(new))
            rows = {name: value[order] for name, value in batch.items()}
            if new:
                later = [_later(prepared, rows, epoch, seed) for epoch in range(epochs)]
                yield Examples(later, len(new))
            if report:
                report("drawing masks", len(seen), wanted)
            if len(seen) == wanted:
                return


def _later(
    prepared: PreparedText, rows: dict[str, np.ndarray], epochs: int, seed: int
) -> dict[str, np.ndarray]:
    """The same examples some epochs later; of pairs, the second text is another then."""
    epoch = rows["epoch"] + np.int32(epochs)
    if not epochs or not prepared.train.pairs:
        return {**rows, "epoch": epoch}
    index = rows["id"].astype(np.int64) @ np.array([2**32, 1])
    return assemble(prepared.train, index, epoch.astype(np.int64), seed=seed)
