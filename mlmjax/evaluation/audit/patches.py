"""An audit of masks of patches: what a selection does to the examples of a run, without a model or a pixel."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from mlmjax.core.types import Context, Mask
from mlmjax.data.draws import words
from mlmjax.evaluation.audit.counters import Histogram
from mlmjax.evaluation.audit.figures import Must
from mlmjax.evaluation.audit.masks import Examples, apart, places
from mlmjax.evaluation.audit.patch_counters import PartTally, heat_map
from mlmjax.evaluation.audit.patch_figures import Masked, PatchFigures
from mlmjax.evaluation.audit.repeats import Fingerprints, Repeats, few_alike
from mlmjax.masking import Grid
from mlmjax.objectives.mae import MaskedAutoencoder

ALIKE = 0.5
"""At most the probability that two masks of one example are alike: that of a grid of two patches."""


def audit_patches(
    objective: MaskedAutoencoder,
    batches: Iterable[Examples],
    *,
    grid: Grid,
    seed: int,
    step: int = 0,
) -> PatchFigures:
    """The figures of the masks that training draws for some examples.

    Args:
        objective: it draws the masks.
        batches: the examples; of them, ``id`` and ``epoch`` are read.
        grid: rows and columns of patches.
        seed: the run's.
        step: at which the ratio is taken.
    """
    draw, tally = _Draw(objective, grid, seed, step), _Tally(_Asked.of(objective, grid, seed, step))
    for examples in batches:
        number = tally.examples + np.arange(len(examples.epochs[0]["id"]))
        epochs = range(len(examples.epochs))
        tally.add(
            [draw.run(examples, epoch) for epoch in epochs],
            [draw.reference(examples, epoch, number) for epoch in epochs],
        )
    return tally.figures()


class _Drawn(NamedTuple):
    """The masks of some examples.

    Attributes:
        times: how often the mask holds each patch.
        outside: places of the masks that hold no patch.
        capacity: places in a mask.
    """

    times: Int[np.ndarray, "examples patches"]
    outside: int
    capacity: int

    @property
    def masked(self) -> Bool[np.ndarray, "examples patches"]:
        """Whether each patch is masked."""
        return self.times > 0


class _Draw:
    """Masks examples: as the run does, and under keys of the audit's own."""

    def __init__(self, objective: MaskedAutoencoder, grid: Grid, seed: int, step: int):
        self._patches = grid[0] * grid[1]
        self._context = Context.of(seed, step=step)
        select = partial(objective.select, grid)
        self._mask = jax.jit(select)
        self._apart = jax.jit(partial(apart, select))

    def run(self, examples: Examples, epoch: int) -> _Drawn:
        """The masks that the run draws."""
        return self._drawn(self._mask(_keyed(examples, epoch), self._context), examples.count)

    def reference(
        self, examples: Examples, epoch: int, number: Int[np.ndarray, " batch"]
    ) -> Bool[np.ndarray, "examples patches"]:
        """The masks of examples with these numbers under keys that owe nothing to ids and epochs."""
        batch, every = _keyed(examples, epoch), np.full(len(number), epoch)
        mask = self._apart(batch, self._context, words(number), every)
        return self._drawn(mask, examples.count).masked

    def _drawn(self, mask: Mask, count: int) -> _Drawn:
        row, _, position = places(mask, length=self._patches, count=count)
        times = np.zeros((count, self._patches), np.int64)
        np.add.at(times, (row, position), 1)
        used = int((np.asarray(mask.weight)[:count] > 0).sum())
        return _Drawn(times, used - row.size, mask.positions.shape[1])


def _keyed(examples: Examples, epoch: int) -> dict[str, np.ndarray]:
    """What of a batch decides about its masks."""
    return {name: examples.epochs[epoch][name] for name in ("id", "epoch")}


@dataclass(frozen=True)
class _Asked:
    """What the masks should be like.

    Attributes:
        grid: rows and columns of patches.
        seed: the run's.
        step: at which the ratio is taken.
        ratio: in force at the step.
        lowest: of all steps.
        highest: of all steps.
        count: of masked patches.
        static_masks: of an example, before they repeat; None where they never do.
    """

    grid: Grid
    seed: int
    step: int
    ratio: float
    lowest: float
    highest: float
    count: int
    static_masks: int | None

    @classmethod
    def of(cls, objective: MaskedAutoencoder, grid: Grid, seed: int, step: int) -> Self:
        """What an objective asks for."""
        own, schedule = objective.selection.ratio, objective.ratio_schedule
        ratio = float(objective.ratio(jnp.int32(step)))
        return cls(
            grid=grid,
            seed=seed,
            step=step,
            ratio=ratio,
            lowest=schedule.lowest(own) if schedule else own,
            highest=schedule.highest(own) if schedule else own,
            count=objective.selection.count(grid[0] * grid[1], ratio),
            static_masks=objective.static_masks,
        )


class _Tally:
    """Adds up what the masks of examples are like."""

    def __init__(self, asked: _Asked):
        """Nothing is counted yet."""
        self.examples = 0
        """Examples that were added."""
        self._asked, patches = asked, asked.grid[0] * asked.grid[1]
        self._epochs = self._capacity = self._twice = self._outside = self._fresh = 0
        self._counts, self._at = Histogram(), np.zeros((2, patches), np.int64)
        self._alike, self._chosen = np.zeros(2, np.int64), np.zeros(2, np.int64)
        self._prints, self._random = Fingerprints(), np.random.default_rng(0)
        self._parts = {name: PartTally(asked.grid) for name in ("selection", "random")}

    def add(
        self, run: Sequence[_Drawn], reference: Sequence[Bool[np.ndarray, "examples patches"]]
    ) -> None:
        """Count some examples.

        Args:
            run: their masks in each epoch.
            reference: their masks with independent keys.
        """
        number = self.examples + np.arange(len(run[0].times))
        fresh = self._asked.static_masks or len(run)
        for epoch, drawn in enumerate(run):
            self._count(drawn)
            if epoch >= fresh:
                same = (drawn.masked == run[epoch % fresh].masked).all(axis=1)
                self._chosen += (same.size, same.sum())
                continue
            self._fresh += number.size
            self._at[1] += drawn.masked.sum(axis=0)
            alike = (drawn.masked == reference[epoch]).all(axis=1)
            self._alike += (alike.size, alike.sum())
            for masks, is_run in ((drawn.masked, True), (reference[epoch], False)):
                whole = np.zeros(masks.shape, np.int64)
                self._prints.add(masks, whole, example=number, epoch=epoch, drawn=is_run)
        self.examples += number.size
        self._epochs, self._capacity = len(run), run[0].capacity

    def figures(self) -> PatchFigures:
        """What was counted."""
        asked = self._asked
        repeats = {
            "same mask under another key": few_alike(*self._alike.tolist(), at_most=ALIKE),
            "same mask in another epoch": self._prints.between_epochs(),
            "same mask as another example": self._prints.between_examples(),
        }
        keys, epochs, examples = repeats.values()
        return PatchFigures(
            examples=self.examples,
            epochs=self._epochs,
            seed=asked.seed,
            step=asked.step,
            capacity=self._capacity,
            static_masks=asked.static_masks,
            between_examples=examples,
            between_epochs=epochs,
            between_keys=keys,
            by_choice=self._by_choice() if asked.static_masks else None,
            musts=self._musts(repeats),
            grid=asked.grid,
            masked=self._masked(),
            heat_map=heat_map(self._at[1].reshape(asked.grid), self._fresh),
            parts=tuple(parts.figures(name) for name, parts in self._parts.items()),
        )

    def _count(self, drawn: _Drawn) -> None:
        masked = drawn.masked
        self._counts.add(masked.sum(axis=1))
        self._at[0] += masked.sum(axis=0)
        self._twice += int((drawn.times > 1).sum())
        self._outside += drawn.outside
        # As many patches of each example, but any.
        order = self._random.random(masked.shape).argsort(axis=1).argsort(axis=1)
        self._parts["selection"].add(masked)
        self._parts["random"].add(order < masked.sum(axis=1, keepdims=True))

    def _by_choice(self) -> Repeats:
        compared, same = self._chosen.tolist()
        return Repeats(compared, same, chance=None, p=1.0)

    def _masked(self) -> Masked:
        patches, masked = self._at.shape[1] * self._counts.total, int(self._at[0].sum())
        present = np.flatnonzero(self._counts.counts)
        return Masked(
            patches=patches,
            masked=masked,
            ratio=masked / max(patches, 1),
            count=self._asked.count,
            least=int(present.min(initial=self._at.shape[1])),
            most=int(present.max(initial=0)),
            asked=self._asked.ratio,
            lowest=self._asked.lowest,
            highest=self._asked.highest,
        )

    def _musts(self, repeats: dict[str, Repeats]) -> tuple[Must, ...]:
        counts = np.zeros(self._at.shape[1] + 1, np.int64)
        counts[: self._counts.counts.size] = self._counts.counts
        never = {
            "examples without a masked patch": int(counts[0]),
            "examples without a visible patch": int(counts[-1]),
            "examples with another count than asked": int(counts.sum() - counts[self._asked.count]),
            "patches masked twice": self._twice,
            "positions outside the grid": self._outside,
        }
        return (
            *(Must(name, found, not found) for name, found in never.items()),
            *(
                Must(name, one.identical, not one.suspicious, one.compared, one.chance, one.p)
                for name, one in repeats.items()
            ),
        )
