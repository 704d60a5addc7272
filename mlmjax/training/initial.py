"""Starting from the parameters of another run, as fine-tuning does."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mlmjax.core.errors import UserError
from mlmjax.experiment import Experiment, validation_message
from mlmjax.training.checkpoint import Checkpoints
from mlmjax.training.folder import RunFolder
from mlmjax.training.state import TrainState, flat, nested
from mlmjax.training.step import Program


def starting_from(
    experiment: Experiment, folder: str | Path, *, trust_code: bool = False
) -> Experiment:
    """The experiment that starts from the parameters of another run.

    It takes that run's encoder sizes and, of text, its tokenizer, of images, their size and channels; all else
    stays, such as heads of its own, dropout and learning rate. Its ``run.init`` names the run.

    Args:
        experiment: of the same kind of data.
        folder: of the other run, which has a checkpoint.
        trust_code: run the config file that is kept in that folder, if the run was made with one.

    Raises:
        UserError: there is no run with a checkpoint, or its encoder or data are of another kind.
    """
    files = RunFolder(folder)
    theirs = files.read_config(trust_code=trust_code)
    _newest(files)
    try:
        return experiment.updated(
            model=experiment.model.like(theirs.model),
            data=experiment.data.like(theirs.data, Path(folder)),
            run=experiment.run.updated(init=str(folder)),
        )
    except (UserError, ValidationError) as error:
        said = validation_message(error) if isinstance(error, ValidationError) else str(error)
        raise UserError(f"--init {folder}: {said}") from error


@dataclass(frozen=True)
class Initial:
    """What a model takes of another run's newest checkpoint.

    Attributes:
        folder: of the run.
        step: of the checkpoint.
        fingerprint: of the run's config and manifest, and of the step; what determines the parameters.
        taken: slash-separated paths of the parameters whose names and shapes are those of the model.
        drawn: paths of the model's others.
    """

    folder: str
    step: int
    fingerprint: str
    taken: tuple[str, ...]
    drawn: tuple[str, ...]

    @classmethod
    def of(cls, program: Program) -> "Initial | None":
        """That of ``run.init``; None where it names no run.

        Raises:
            UserError: there is no such run, or nothing of it fits the model.
        """
        folder = program.experiment.run.init
        if folder is None:
            return None
        files = RunFolder(folder)
        step = _newest(files)
        with Checkpoints(files.checkpoints) as checkpoints:
            there = checkpoints.parameter_shapes(step)
        untrained = files.untrained() if step == 0 else ()
        wanted = flat(program.state.parameters)
        taken = tuple(
            name
            for name, each in wanted.items()
            if there.get(name) == each.shape and name.split("/")[0] not in untrained
        )
        if not taken:
            raise UserError(
                f"--init {folder}: none of its parameters has the name and shape of one of the model. With --init "
                "on the command line, or mlmjax.starting_from, the model takes that run's sizes."
            )
        record = files.config.read_bytes() + files.manifest.read_bytes() + str(step).encode()
        return cls(
            folder=folder,
            step=step,
            fingerprint=hashlib.sha256(record).hexdigest()[:16],
            taken=taken,
            drawn=tuple(name for name in wanted if name not in taken),
        )

    def state(self, program: Program) -> TrainState:
        """The program's initial state with the parameters that are taken, each read where it lies."""
        state = program.initial_state()
        drawn, wanted = (flat(each.parameters) for each in (state, program.state))
        with Checkpoints(RunFolder(self.folder).checkpoints) as checkpoints:
            found = checkpoints.restore_some({name: wanted[name] for name in self.taken}, self.step)
        return replace(state, parameters=nested(drawn | found))

    def describe(self) -> dict[str, Any]:
        """For the manifest of the run that starts so."""
        return {
            "run": self.folder,
            "step": self.step,
            "fingerprint": self.fingerprint,
            "taken": len(self.taken),
            "drawn": list(self.drawn),
        }


def _newest(files: RunFolder) -> int:
    step = files.latest_step()
    if step is None:
        raise UserError(f"--init {files.path}: it has no checkpoint; train it first.")
    return step
