"""From an experiment to the data and the program that every use of its train step begins with."""

from importlib.metadata import version
from typing import Any

import numpy as np

from mlmjax import distributed
from mlmjax.core.config import leaves
from mlmjax.core.errors import UserError
from mlmjax.data.base import Prepared
from mlmjax.data.preparation.progress import Report
from mlmjax.data.prepared import PreparedText
from mlmjax.data.prepared_images import PreparedImages
from mlmjax.experiment import Experiment
from mlmjax.models.classifier import VitClassifierConfig
from mlmjax.models.mae import MaeConfig
from mlmjax.sharding import check_batch
from mlmjax.training.folder import PACKAGES
from mlmjax.training.step import Program

OWN = ("data.cache", "data.threads", "data.workers")
"""Options that each process of a run may have for itself."""


def agree(experiment: Experiment, **also: Any) -> None:
    """See that all processes were given the same options and have the same packages.

    Args:
        experiment: what this one was given.
        also: further values, by name.

    Raises:
        UserError: see :func:`mlmjax.distributed.agree`.
    """
    options = {name: value for name, value in leaves(experiment).items() if name not in OWN}
    versions = {f"version of {name}": version(name) for name in PACKAGES}
    distributed.agree("The config", {**options, **versions, **also})


def prepare(experiment: Experiment, report: Report | None = None) -> Prepared:
    """An experiment's data, made ready.

    Args:
        experiment: whose data it is.
        report: told how far it is.

    Raises:
        UserError: the data cannot be read or does not fit the model, or the cache cannot be written.
    """
    prepared = experiment.data.prepare(report)
    if isinstance(prepared, PreparedImages) and isinstance(
        experiment.model, MaeConfig | VitClassifierConfig
    ):
        prepared.check_patch(experiment.model.encoder.patch)
    known = isinstance(prepared, PreparedImages | PreparedText)
    if known and "labels" in experiment.data.spec():
        _check_classes(prepared)
    return prepared


def _check_classes(prepared: Prepared) -> None:
    """Refuse labels from which nothing can be learned.

    Raises:
        UserError: the training part is of one class, or no held-out example of a class that it has.
    """
    train, heldout = (
        np.array(prepared.manifest["splits"][side]["classes"]) for side in ("train", "heldout")
    )
    if (train > 0).sum() < 2:
        only = prepared.classes[int(train.argmax())]
        raise UserError(
            f"All {train.sum()} labelled training examples are of one class ({only}): give examples of at least "
            "two (--data.root, --data.label-field)."
        )
    if not heldout[train > 0].any():
        raise UserError(
            f"None of the {heldout.sum()} held-out examples is of a class that training examples have: give more "
            "examples of each class, or hold out more of them (--data.heldout)."
        )


def set_up(experiment: Experiment, report: Report | None = None) -> tuple[Prepared, Program]:
    """An experiment's data, and its train step on the devices that are here.

    Args:
        experiment: on which all processes agree.
        report: told how far the data is.

    Raises:
        UserError: the batch does not fit the devices, the model not the objective or the data; or the processes
            have different data.
    """
    data = experiment.data
    check_batch(experiment.mesh.make(), data.batch, accumulate=experiment.run.accumulate)
    experiment.objective.check(experiment.model, data.spec())
    prepared = prepare(experiment, report)
    distributed.agree("The data", {"fingerprint": prepared.manifest["fingerprint"]})
    classes = len(prepared.classes) if "labels" in data.spec() else None
    return prepared, Program.of(experiment.fitted(prepared.vocabulary, classes=classes))
