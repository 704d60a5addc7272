"""From an experiment to the data and the program that every use of its train step begins with."""

from importlib.metadata import version
from typing import Any

from mlmjax import distributed
from mlmjax.core.config import leaves
from mlmjax.data.base import Prepared
from mlmjax.data.preparation.progress import Report
from mlmjax.data.prepared_images import PreparedImages
from mlmjax.experiment import Experiment
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
    if isinstance(prepared, PreparedImages) and isinstance(experiment.model, MaeConfig):
        prepared.check_patch(experiment.model.encoder.patch)
    return prepared


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
    return prepared, Program.of(experiment.fitted(prepared.vocabulary))
