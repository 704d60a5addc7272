"""A run folder: config, manifest, tokenizer, metrics and checkpoints; complete, so that it can be loaded alone."""

import fcntl
import importlib.util
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
from etils import epath
from flax import nnx
from jax.sharding import SingleDeviceSharding
from pydantic import ValidationError

from mlmjax.core.config import differences
from mlmjax.core.errors import UserError
from mlmjax.data.base import Prepared
from mlmjax.data.tokenizer import Tokenizer
from mlmjax.experiment import Experiment, RunConfig, file_resolver, validation_message
from mlmjax.training.checkpoint import Checkpoints
from mlmjax.training.metrics import JsonLines, Sink, TensorBoard, WeightsAndBiases
from mlmjax.training.state import Parameters, module_graph, shapes

FREE = (
    "mesh.",
    "run.folder",
    "run.keep",
    "run.checkpoint_every",
    "data.cache",
    "data.threads",
    "data.workers",
    "data.examples",
)
"""Options that may change from one start of a run to the next: they do not change what is computed."""

PARTIAL = ".partial"
"""Suffix of a file that is being written."""

PACKAGES = (
    "mlmjax",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "grain",
    "tokenizers",
    "numpy",
)


@dataclass(frozen=True)
class Run:
    """A trained model with what belongs to it.

    Attributes:
        model: the module.
        config: the experiment, fitted to its data.
        step: of the checkpoint.
        folder: from which it was read.
        tokenizer: where examples are texts.
        untrained: parts of the model that were drawn, because the weights that were imported did not have them.
        classes: names of those that a classifier tells apart, by number.
    """

    model: Any
    config: Experiment
    step: int
    folder: str
    tokenizer: Tokenizer | None = None
    untrained: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()


class RunFolder:
    """The files of a run and their names."""

    def __init__(self, path: epath.PathLike):
        self.path = epath.Path(path)
        self.config = self.path / "config.json"
        self.source = self.path / "config.py"
        self.manifest = self.path / "manifest.json"
        self.tokenizer = self.path / "tokenizer.json"
        self.metrics = self.path / "metrics.jsonl"
        self.tensorboard = self.path / "tensorboard"
        self.checkpoints = self.path / "checkpoints"
        self.lock = self.path / ".lock"

    def exists(self) -> bool:
        """Is there a run? The config is written last."""
        return self.config.exists()

    def read_config(self, *, trust_code: bool = False) -> Experiment:
        """The experiment as it was asked for.

        Raises:
            UserError: there is no run, its config cannot be read, or it needs code that is not trusted.
        """
        if not self.exists():
            raise UserError(f"{self.path} is not a run folder: it has no config.json.")
        try:
            return Experiment.from_json(
                self.config.read_text(), file_resolver(Path(self.source), trust=trust_code)
            )
        except ValidationError as error:
            raise UserError(f"{self.config}: {validation_message(error)}") from error
        except (ValueError, OSError) as error:
            raise UserError(f"{self.config} cannot be read: {error}") from error

    def check(self, experiment: Experiment, *, trust_code: bool = False) -> None:
        """See that the folder is free, or is this experiment's; nothing is changed.

        Raises:
            UserError: the folder holds another run, or something else; it says what differs. Or the
                run wants a package that is not installed.
        """
        if experiment.run.wandb and importlib.util.find_spec("wandb") is None:
            raise UserError("--run.wandb needs the package wandb: pip install 'mlmjax[wandb]'.")
        if not self.exists():
            if self.path.exists() and not self.path.is_dir():
                raise UserError(f"{self.path} is a file: choose another --run.folder.")
            if self._has_files() and not self.manifest.exists():
                raise UserError(
                    f"The folder {self.path} is not empty and holds no run: choose another --run.folder."
                )
            return
        stored = self.read_config(trust_code=trust_code)
        lines = [line for line in differences(stored, experiment) if not line.startswith(FREE)]
        if self._only_imported():
            lines = [line for line in lines if line.startswith(("model.", "run.init"))]
        if lines:
            shown = "".join(f"\n  {line}" for line in lines)
            raise UserError(
                f"The run in {self.path} was made with another config; nothing was changed.{shown}\n"
                "Choose another --run.folder, or leave these options as they were."
            )

    def _has_files(self) -> bool:
        """Is there something that a run which was killed at its start does not leave?"""
        return self.path.is_dir() and any(
            each != self.lock and each.suffix != PARTIAL for each in self.path.iterdir()
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The folder, made where it is missing, for this process alone.

        Raises:
            UserError: another process trains in it, or it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = self.lock.open("w")
        except OSError as error:
            why = error.strerror or error
            raise UserError(
                f"The run folder {self.path} cannot be written: {why}. Choose another --run.folder."
            ) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(
                    f"Another process is training in {self.path}: wait for it, or choose another --run.folder."
                ) from error
            yield

    def claim(
        self,
        experiment: Experiment,
        prepared: Prepared,
        *,
        source: Path | None = None,
        initial: Mapping[str, Any] | None = None,
    ) -> None:
        """Make the folder this experiment's; where it is already, only options of no effect are updated.

        Args:
            experiment: as asked for, not fitted; it has passed :meth:`check`.
            prepared: the data.
            source: the config file, where it is from outside the package; a copy is kept.
            initial: for the manifest: from which parameters the run starts, where these are another run's.

        Raises:
            UserError: the data is not that with which the run was begun.
        """
        if self.exists() and not self._only_imported():
            self._check_data(prepared.manifest["fingerprint"])
            self._check_initial(initial)
        else:
            self.path.mkdir(parents=True, exist_ok=True)
            record = manifest(experiment, prepared)
            if imported := self.imported():
                record["imported"] = imported
            if initial is not None:
                record["initial"] = dict(initial)
            _write(self.manifest, json.dumps(record, indent=2) + "\n")
            prepared.save(Path(self.path))
            if source is not None:
                _write(self.source, source.read_text(encoding="utf-8"))
        _write(self.config, experiment.to_json())

    def _only_imported(self) -> bool:
        """Has the folder weights that were imported, and no step after them? Then it may be trained in any way."""
        return self.imported() is not None and self.latest_step() == 0

    def _check_data(self, fingerprint: str) -> None:
        try:
            before = json.loads(self.manifest.read_text())["data"]["fingerprint"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{self.manifest} is missing or damaged, so the data cannot be compared: {error}. "
                "Choose another --run.folder."
            ) from error
        if before != fingerprint:
            raise UserError(
                f"The data of the run in {self.path} has changed since it was begun (fingerprint {before}, "
                f"now {fingerprint}): texts, installed packages or preparation differ. "
                "Choose another --run.folder."
            )

    def _check_initial(self, initial: Mapping[str, Any] | None) -> None:
        """See that a run that was ended before its first checkpoint starts from the same parameters again."""
        before = self._record().get("initial")
        if initial is not None and initial != before:
            raise UserError(
                f"The run in {self.path} was begun with other parameters than {initial['run']} has now (--init). "
                "Choose another --run.folder."
            )

    def imported(self) -> dict[str, Any] | None:
        """What the manifest says of weights that were imported; None of a run that was begun here."""
        return self._record().get("imported")

    def _record(self) -> dict[str, Any]:
        """The manifest; nothing where it is missing or damaged."""
        try:
            return dict(json.loads(self.manifest.read_text()))
        except (OSError, ValueError, TypeError):
            return {}

    def untrained(self) -> tuple[str, ...]:
        """Parts of the model that imported weights did not have."""
        return tuple((self.imported() or {}).get("untrained", ()))

    def classes(self, experiment: Experiment) -> tuple[str, ...]:
        """Names of the classes that a classifier was trained on; none of other runs.

        Raises:
            UserError: the manifest, which tells them, is missing or damaged.
        """
        if "labels" not in experiment.data.spec():
            return ()
        try:
            return tuple(json.loads(self.manifest.read_text())["data"].get("classes", ()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{self.manifest}, which tells the classes, is missing or damaged: {error}."
            ) from error

    def latest_step(self) -> int | None:
        """The step of the newest checkpoint; None where there is none."""
        if not self.checkpoints.exists():
            return None
        with Checkpoints(self.checkpoints) as checkpoints:
            return checkpoints.latest

    def open_checkpoints(self, run: RunConfig) -> Checkpoints:
        """The checkpoints, to be written as the run says."""
        return Checkpoints(self.checkpoints, keep=run.keep, keep_every=run.keep_every, writes=True)

    def sinks(self, experiment: Experiment, *, resumed_at: int) -> list[Sink]:
        """Where the records of the run go."""
        run = experiment.run
        sinks: list[Sink] = [JsonLines(Path(self.metrics), resumed_at=resumed_at)]
        if run.tensorboard:
            sinks.append(TensorBoard(Path(self.tensorboard), resumed_at=resumed_at))
        if run.wandb:
            config = experiment.model_dump(mode="json", serialize_as_any=True)
            sinks.append(WeightsAndBiases(run.wandb, folder=Path(self.path), config=config))
        return sinks


def load(
    folder: epath.PathLike,
    *,
    step: int | None = None,
    size: tuple[int, int] | None = None,
    trust_code: bool = False,
) -> Run:
    """The model of a run folder, with its config and, of text, its tokenizer.

    Args:
        folder: a local path, or any that ``etils.epath`` reads.
        step: of the checkpoint; by default the newest.
        size: height and width of the images that the model is to read, if not those that it was trained on: its
            positions are then interpolated.
        trust_code: run the config file that is kept in the folder, if the run was made with one.

    Raises:
        UserError: the folder holds no run or no checkpoint; or the size is not one that the model can read.
    """
    files = RunFolder(folder)
    config = files.read_config(trust_code=trust_code)
    if size is not None:
        try:
            config = config.resized(size)
        except UserError as error:
            raise UserError("--size {} {}: {}".format(*size, error)) from error
    tokenizer = None
    if config.data.abstract_vocabulary() is not None:
        tokenizer = Tokenizer.load(files.tokenizer)
    vocabulary = None if tokenizer is None else tokenizer.vocabulary
    classes = files.classes(config)
    fitted = config.fitted(vocabulary, classes=len(classes) or None, check=False)
    graph, model = module_graph(fitted.model)
    step = files.latest_step() if step is None else step
    if step is None:
        raise UserError(
            f"There is no checkpoint in {files.path}: train it first, with "
            f"`mlmjax train {files.path}`."
        )
    with Checkpoints(files.checkpoints) as checkpoints:
        parameters = checkpoints.restore_parameters(_here(shapes(model)), step)
    untrained = files.untrained() if step == 0 else ()
    return Run(
        nnx.merge(graph, parameters), fitted, step, str(files.path), tokenizer, untrained, classes
    )


def manifest(experiment: Experiment, prepared: Prepared) -> dict[str, Any]:
    """The record of a run: what one must know to repeat it."""
    run = experiment.run
    return {
        "versions": {name: version(name) for name in PACKAGES},
        "data": dict(prepared.manifest),
        "tokenizer": prepared.manifest.get("vocabulary"),
        **experiment.objective.describe(),
        "model": experiment.model.model_dump(mode="json"),
        "optimizer": experiment.optimizer.model_dump(mode="json", serialize_as_any=True),
        "precision": {
            "parameters": "float32",
            "compute": getattr(experiment.model, "dtype", "float32"),
        },
        "seed": {
            "root": run.seed,
            "rule": "a mask's key is (seed, 'mask', epoch, example id); dropout's (seed, 'dropout', step)",
            "same_mask_on_all_processes": True,
            "unbroken_by_resume": True,
        },
        "stopping": {"steps": run.steps, "after_skipped_in_a_row": run.stop_after_skipped},
    }


def _here(parameters: Parameters) -> Parameters:
    """The same shapes, to be laid out on one device whatever the mesh that they were trained on."""
    sharding = SingleDeviceSharding(jax.local_devices()[0])
    return jax.tree.map(
        lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=sharding), parameters
    )


def _write(path: epath.Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    partial = path.with_name(path.name + PARTIAL)
    partial.write_text(text)
    partial.replace(path)
