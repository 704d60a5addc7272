"""Checkpoints by Orbax (its v1 API); the only place that knows it.

A checkpoint holds two flat dictionaries of arrays, ``parameters`` and ``rest``, by slash-separated
path, so that the one can be read without the other and without any class of the package.
"""

import gc
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import jax
from etils import epath
from orbax.checkpoint import v1 as ocp

from mlmjax.core.errors import UserError
from mlmjax.training.state import Parameters, TrainState

policies = ocp.training.preservation_policies


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
        )

    @property
    def latest(self) -> int | None:
        """The step of the newest complete checkpoint; None where there is none."""
        return None if self._orbax.latest is None else self._orbax.latest.step

    def latest_before(self, step: int) -> int | None:
        """The newest complete checkpoint of an earlier step."""
        steps = [each.step for each in self._orbax.checkpoints if each.step < step]
        return max(steps, default=None)

    def save(self, step: int, state: TrainState) -> None:
        """Copy the state off the devices and write it in the background; waits for the write before."""
        self._orbax.wait()
        self._orbax.save_checkpointables_async(step, _flat_parts(state), force=True)

    def restore(self, abstract: TrainState, step: int) -> TrainState:
        """The whole state, laid out as ``abstract`` says.

        Raises:
            UserError: there is no such checkpoint, or it does not fit the model.
        """
        loaded = self._load(step, _flat_parts(abstract))
        leaves = [
            loaded["parameters" if name.startswith("parameters/") else "rest"][name]
            for name in _names(abstract)
        ]
        return jax.tree.unflatten(jax.tree.structure(abstract), leaves)

    def restore_parameters(self, abstract: Parameters, step: int) -> Parameters:
        """The parameters alone."""
        flat = _flat({"parameters": abstract})
        loaded = self._load(step, {"parameters": flat})["parameters"]
        return jax.tree.unflatten(jax.tree.structure(abstract), [loaded[name] for name in flat])

    def _load(self, step: int, wanted: dict[str, dict[str, Any]]) -> dict[str, Any]:
        try:
            with _quietly():
                return self._orbax.load_checkpointables(step, wanted)
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

    def wait(self) -> None:
        """Wait until everything is written."""
        self._orbax.wait()

    def close(self) -> None:
        """Wait, and release threads."""
        self._orbax.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


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
    flat = _flat(state)
    parameters = {name: leaf for name, leaf in flat.items() if name.startswith("parameters/")}
    return {
        "parameters": parameters,
        "rest": {name: leaf for name, leaf in flat.items() if name not in parameters},
    }


def _flat(tree: Any) -> dict[str, Any]:
    return dict(zip(_names(tree), jax.tree.leaves(tree), strict=True))


def _names(tree: Any) -> list[str]:
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]
