"""Checkpoints by Orbax (its v1 API); the only place that knows it.

A checkpoint holds two flat dictionaries of arrays, ``parameters`` and ``rest``, by slash-separated
path, so that the one can be read without the other and without any class of the package.
"""

import gc
import logging
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import jax
from etils import epath
from orbax.checkpoint import v1 as ocp

from mlmjax.core.errors import UserError
from mlmjax.training.state import Parameters, TrainState, flat

policies = ocp.training.preservation_policies

_CONTEXT = ocp.Context()
# Of what several devices hold alike each writes a part; cutting small arrays costs more than it saves.
_CONTEXT.array.saving.min_slice_bytes_for_replica_parallel = 2**20
_LOGGER = "absl"
_ROOT = "parameters/"
_POLL = 0.02


class Checkpoints:
    """The checkpoints of a run, written in the background; a write cut off midway does not count.

    A run has one writer, which also removes what an earlier one left half written; readers change nothing,
    and may look at a run that is being trained.
    """

    def __init__(
        self,
        folder: epath.PathLike,
        *,
        keep: int = 2,
        keep_every: int | None = None,
        writes: bool = False,
    ):
        """Args:
        folder: where they lie; made on the first save.
        keep: the newest so many are kept.
        keep_every: those whose step is a multiple of this are kept as well.
        writes: is this the run's one writer?
        """
        kept = [policies.LatestN(keep)]
        if keep_every:
            kept.append(policies.EveryNSteps(keep_every))
        self.folder = epath.Path(folder)
        self._orbax = ocp.training.Checkpointer(
            self.folder.resolve(),
            preservation_policy=policies.AnyPreservationPolicy(kept),
            cleanup_tmp_directories=writes,
            context=_CONTEXT,
        )
        self._newest: int | None = None
        self._failures = _Failures()

    @property
    def latest(self) -> int | None:
        """The step of the newest complete checkpoint; None where there is none."""
        return None if self._orbax.latest is None else self._orbax.latest.step

    def latest_before(self, step: int) -> int | None:
        """The newest complete checkpoint of an earlier step."""
        steps = [each.step for each in self._orbax.checkpoints if each.step < step]
        return max(steps, default=None)

    def save(self, step: int, state: TrainState) -> None:
        """Copy the state off the devices and write it in the background; waits for the write before.

        Raises:
            UserError: that one failed.
        """
        self.wait()
        self._newest = step
        logging.getLogger(_LOGGER).addFilter(self._failures)
        with self._told():
            self._orbax.save_checkpointables_async(step, _flat_parts(state), force=True)

    def save_parameters(self, step: int, parameters: Parameters) -> None:
        """Write the parameters alone, as of weights that were imported, and wait for it.

        Raises:
            UserError: they cannot be written.
        """
        self._newest = step
        with self._told():
            self._orbax.save_checkpointables(step, {"parameters": flat({"parameters": parameters})})

    def restore(self, abstract: TrainState, step: int) -> TrainState:
        """The whole state, laid out as ``abstract`` says.

        Raises:
            UserError: there is no such checkpoint, or it does not fit the model.
        """
        loaded = self._load(step, _flat_parts(abstract))
        leaves = [
            loaded["parameters" if name.startswith(_ROOT) else "rest"][name]
            for name in flat(abstract)
        ]
        return jax.tree.unflatten(jax.tree.structure(abstract), leaves)

    def restore_parameters(self, abstract: Parameters, step: int) -> Parameters:
        """The parameters alone."""
        wanted = flat({"parameters": abstract})
        loaded = self._load(step, {"parameters": wanted})["parameters"]
        return jax.tree.unflatten(jax.tree.structure(abstract), [loaded[name] for name in wanted])

    def parameter_shapes(self, step: int) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter that is there, by slash-separated path.

        Raises:
            UserError: there is no such checkpoint, or it is damaged.
        """
        with self._readable(step):
            found = self._orbax.checkpointables_metadata(step).metadata["parameters"]
        return {name.removeprefix(_ROOT): tuple(each.shape) for name, each in found.items()}

    def restore_some(
        self, wanted: Mapping[str, jax.ShapeDtypeStruct], step: int
    ) -> dict[str, jax.Array]:
        """Some parameters by path, laid out as is said; no others are read."""
        whole = dict.fromkeys(self.parameter_shapes(step), ocp.PLACEHOLDER)
        asked = {f"{_ROOT}{name}": each for name, each in {**whole, **wanted}.items()}
        loaded = self._load(step, {"parameters": asked})["parameters"]
        return {name: loaded[f"{_ROOT}{name}"] for name in wanted}

    def _load(self, step: int, wanted: dict[str, dict[str, Any]]) -> dict[str, Any]:
        with self._readable(step):
            return self._orbax.load_checkpointables(step, wanted)

    @contextmanager
    def _readable(self, step: int) -> Iterator[None]:
        """Say in a sentence that a checkpoint cannot be read."""
        try:
            with _quietly():
                yield
        except (KeyError, ValueError, OSError) as error:
            before = self.latest_before(step)
            advice = (
                "there is none before it"
                if before is None
                else f"remove that folder to go on from step {before}"
            )
            raise UserError(
                f"The checkpoint {self.folder / str(step)} is damaged, or another model's; {advice}. "
                f"({str(error).splitlines()[0][:200] if str(error) else type(error).__name__})"
            ) from error

    def check(self) -> None:
        """See whether a write in the background has failed here.

        Raises:
            UserError: it has; names the folder and the reason.
        """
        if self._failures.first is not None:
            with self._told():
                raise self._failures.first

    def wait(self) -> None:
        """Wait until everything is written.

        Raises:
            UserError: it cannot be.
        """
        while self._orbax.is_saving_in_progress():
            self.check()
            time.sleep(_POLL)
        with self._told():
            self._orbax.wait()
        self.check()

    def close(self) -> None:
        """Wait, and release threads; not after a failed write, of which the other processes do not know."""
        try:
            if self._failures.first is None:
                with self._told():
                    self._orbax.close()
        finally:
            logging.getLogger(_LOGGER).removeFilter(self._failures)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Say in a sentence that a checkpoint cannot be written."""
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:
            for each in (error, error.__cause__):
                if isinstance(each, jax.errors.JaxRuntimeError):  # another process is gone
                    raise each from None
            self._failures.first = self._failures.first or error
            raise UserError(
                f"The checkpoint of step {self._newest} could not be written to {self.folder}. See that there is "
                "room and that it may be written to; the same command goes on from the newest checkpoint that is "
                f"whole. ({str(error).splitlines()[0][:300] if str(error) else type(error).__name__})"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Failures(logging.Filter):
    """The first error of a write in the background, heard of at once, and without the tracebacks of all of them.

    Orbax raises it only after a barrier of all processes, and the others wait there for the one that failed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first: BaseException | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if record.levelno < logging.ERROR or error is None:
            return True
        self.first = self.first or error
        return False


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the log lines and warnings of what is raised anyway, and said in one sentence."""
    before, hook = logging.root.manager.disable, sys.unraisablehook
    logging.disable(logging.CRITICAL)
    sys.unraisablehook = lambda unraisable: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                yield
            except BaseException:
                gc.collect()  # tasks that nobody awaited complain when they are collected
                raise
    finally:
        logging.disable(before)
        sys.unraisablehook = hook


def _flat_parts(state: TrainState) -> dict[str, dict[str, Any]]:
    leaves = flat(state)
    parameters = {name: leaf for name, leaf in leaves.items() if name.startswith(_ROOT)}
    return {
        "parameters": parameters,
        "rest": {name: leaf for name, leaf in leaves.items() if name not in parameters},
    }
