"""From an experiment to the audit of its masks: data, examples in training order, and figures."""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from itertools import islice

import numpy as np
from jaxtyping import Int

from mlmjax.core.errors import UserError
from mlmjax.data.base import Data, Prepared
from mlmjax.data.draws import words
from mlmjax.data.pipeline import Arrays, Rows, batches
from mlmjax.data.preparation.progress import Report
from mlmjax.data.prepared import PreparedText
from mlmjax.data.prepared_images import PreparedImages
from mlmjax.evaluation.audit.figures import Findings
from mlmjax.evaluation.audit.lexicon import Lexicon
from mlmjax.evaluation.audit.masks import Examples, audit_masks
from mlmjax.evaluation.audit.patches import audit_patches
from mlmjax.experiment import Experiment
from mlmjax.masking import Grid
from mlmjax.models.mae import MaeConfig
from mlmjax.objectives.base import Objective
from mlmjax.objectives.mae import MaskedAutoencoder
from mlmjax.objectives.mlm import MaskedLanguageModel
from mlmjax.report.terminal import Terminal


def audit(
    experiment: Experiment,
    *,
    examples: int = 2048,
    epochs: int = 2,
    step: int = 0,
    terminal: Terminal | None = None,
) -> Findings:
    """What the masks of the first training examples are like; no model is made and nothing is trained.

    Args:
        experiment: whose data is prepared as for training.
        examples: how many; all where there are fewer.
        epochs: in which each is masked.
        step: at which the ratio of a schedule is taken.
        terminal: where progress and remarks go.

    Raises:
        UserError: a number is out of range, the objective masks neither tokens nor patches, or the data cannot
            be read.
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
        objective = masking(experiment.fitted(prepared.vocabulary).objective)
        settings = {"seed": experiment.run.seed, "step": step}
        if isinstance(objective, MaskedAutoencoder):
            images, grid = _images(experiment, prepared)
            wanted = min(examples, len(images.train))
            found: Findings = audit_patches(
                objective,
                image_examples(
                    experiment, images, wanted=wanted, epochs=epochs, report=terminal.report
                ),
                grid=grid,
                **settings,
            )
        else:
            text = _text(experiment, prepared)
            wanted = min(examples, len(text.train))
            found = audit_masks(
                objective,
                training_examples(
                    experiment, text, wanted=wanted, epochs=epochs, report=terminal.report
                ),
                lexicon=lexicon(text),
                **settings,
            )
    if found.examples < examples:
        terminal.say(
            f"{examples} examples were asked for; the training part gave {found.examples}."
        )
    return found


def masking(objective: Objective) -> MaskedLanguageModel | MaskedAutoencoder:
    """The part of an objective that masks tokens or patches: itself, or the one that it holds.

    Raises:
        UserError: there is none.
    """
    held = [getattr(objective, name) for name in type(objective).model_fields]
    for one in (objective, *held):
        if isinstance(one, MaskedLanguageModel | MaskedAutoencoder):
            return one
    raise UserError(
        f"The objective {type(objective).__name__} draws no masks of tokens or patches, so there is nothing to "
        "audit; choose a config with a MaskedLanguageModel or a MaskedAutoencoder (objective)."
    )


def _text(experiment: Experiment, prepared: Prepared) -> PreparedText:
    if not isinstance(prepared, PreparedText):
        raise UserError(
            f"An audit looks at masks of text, and {type(experiment.data).__name__} is none: "
            "give TextData (data)."
        )
    return prepared


def _images(experiment: Experiment, prepared: Prepared) -> tuple[PreparedImages, Grid]:
    """The images, and the grid of patches that the model cuts them into."""
    if not isinstance(prepared, PreparedImages):
        raise UserError(
            f"An audit looks at masks of images, and {type(experiment.data).__name__} has none: "
            "give ImageData (data)."
        )
    if not isinstance(experiment.model, MaeConfig):
        raise UserError(
            f"A {type(experiment.model).__name__} cuts no images into patches: give a MaeConfig (model)."
        )
    return prepared, experiment.model.encoder.grid


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
    stream = prepared.batches(
        seed=seed, batch=data.batch, start=0, stop=_stop(data, wanted), threads=data.threads
    )
    later = partial(_later, prepared, seed=seed)
    yield from _different(stream, later, wanted=wanted, epochs=epochs, report=report)


def image_examples(
    experiment: Experiment,
    prepared: PreparedImages,
    *,
    wanted: int,
    epochs: int,
    report: Report | None = None,
) -> Iterator[Examples]:
    """As :func:`training_examples`, of images; only ``id``, ``epoch`` and ``valid``, and no image is decoded."""
    data, seed = experiment.data, experiment.run.seed
    stop = _stop(data, wanted)
    stream = batches(_Numbers(prepared.train), seed=seed, batch=data.batch, stop=stop, threads=1)

    def later(rows: Arrays, epochs: int) -> Arrays:
        return {**rows, "epoch": rows["epoch"] + np.int32(epochs)}

    yield from _different(stream, later, wanted=wanted, epochs=epochs, report=report)


class _Numbers:
    """Rows without what is in them: in training order with those of the same count."""

    def __init__(self, rows: Rows) -> None:
        self.streams, self.empty = rows.streams, dict[str, int]()
        self._count = len(rows)

    def __len__(self) -> int:
        return self._count

    def assemble(
        self, index: Int[np.ndarray, " batch"], epoch: Int[np.ndarray, " batch"], *, seed: int
    ) -> Arrays:
        """Who the examples are."""
        every = np.ones(len(index), bool)
        return {"id": words(index), "epoch": epoch.astype(np.int32), "valid": every}


def _stop(data: Data, wanted: int) -> int:
    """The step before which as many examples are seen."""
    # A source that is much smaller than its weight comes again before another has been read once.
    return 2 * -(-wanted // data.batch) + 1


def _different(
    stream: Generator[Arrays, None, None],
    later: Callable[[Arrays, int], Arrays],
    *,
    wanted: int,
    epochs: int,
    report: Report | None,
) -> Iterator[Examples]:
    """The first different examples of a stream of batches, in several epochs.

    Args:
        stream: of training.
        later: gives the same examples some epochs later.
        wanted: how many.
        epochs: in how many.
        report: called with what is done.
    """
    seen: set[int] = set()
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
                yield Examples([later(rows, epoch) for epoch in range(epochs)], len(new))
            if report:
                report("drawing masks", len(seen), wanted)
            if len(seen) == wanted:
                return


def _later(prepared: PreparedText, rows: Arrays, epochs: int, *, seed: int) -> Arrays:
    """The same examples some epochs later; of pairs, the second text is another then."""
    epoch = rows["epoch"] + np.int32(epochs)
    if not epochs or not prepared.train.pairs:
        return {**rows, "epoch": epoch}
    index = rows["id"].astype(np.int64) @ np.array([2**32, 1])
    return prepared.train.assemble(index, epoch.astype(np.int64), seed=seed)
