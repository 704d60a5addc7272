"""From an experiment to its prepared data, and what is said of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlmjax.core.errors import UserError
from mlmjax.data.beam import prepare as beam
from mlmjax.data.prepared import PreparedText
from mlmjax.data.prepared_images import PreparedImages
from mlmjax.data.text import TextData
from mlmjax.experiment import Experiment
from mlmjax.report.prepared import show_prepared
from mlmjax.report.prepared_images import show_prepared_images
from mlmjax.report.terminal import Terminal
from mlmjax.training import setup


@dataclass(frozen=True)
class Outcome:
    """What was prepared.

    Attributes:
        folder: where it lies; none where the data knows no folder.
        manifest: what was read and made.
    """

    folder: str | None
    manifest: Mapping[str, Any]


def prepare(experiment: Experiment, *, terminal: Terminal, show: bool = True) -> Outcome:
    """Prepare an experiment's data, as training would.

    Args:
        experiment: whose data it is.
        terminal: where progress goes, and the tables.
        show: whether tables are printed.

    Raises:
        UserError: the data cannot be read or does not fit the model, or the cache cannot be written.
    """
    with terminal.live():
        made = setup.prepare(experiment, terminal.report)
    if isinstance(made, PreparedImages):
        if show:
            show_prepared_images(made.manifest, str(made.folder), terminal)
        return Outcome(str(made.folder), made.manifest)
    if not isinstance(made, PreparedText):
        return Outcome(None, made.manifest)
    return _shown(str(made.folder), made.manifest, terminal, show=show)


def prepare_with_beam(
    experiment: Experiment,
    *,
    runner: str,
    options: Sequence[str] = (),
    terminal: Terminal,
    show: bool = True,
) -> Outcome:
    """Prepare an experiment's text on Apache Beam; see :func:`mlmjax.data.beam.prepare`.

    Args:
        experiment: whose data it is.
        runner: which of Beam's runners does it.
        options: Beam's options, as on its command line.
        terminal: where progress goes, and the tables.
        show: whether tables are printed.

    Raises:
        UserError: as :func:`mlmjax.data.beam.prepare` does, or the data is no text.
    """
    data = experiment.data
    if not isinstance(data, TextData):
        raise UserError(
            f"--runner prepares text, and {type(data).__name__} is none: leave it away."
        )
    with terminal.live():
        made = beam.prepare(
            data.sources(),
            data.recipe(),
            runner=runner,
            options=options,
            folder=data.cache,
            report=terminal.report,
        )
    return _shown(made.folder, made.manifest, terminal, show=show)


def _shown(folder: str, manifest: Mapping[str, Any], terminal: Terminal, *, show: bool) -> Outcome:
    if show:
        show_prepared(manifest, folder, terminal)
    return Outcome(folder, manifest)
