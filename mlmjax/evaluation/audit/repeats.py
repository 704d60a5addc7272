"""Whether masks repeat more often than independent keys make them: counts of pairs, and exact tests."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Shaped, UInt64
from scipy import stats

FALSE_ALARM = 1e-6
"""The probability with which a test alarms although every mask has an independent key."""

_BOTH_DRAWN = 1 / 4


@dataclass(frozen=True)
class Repeats:
    """Pairs of masks that select the same positions.

    Attributes:
        compared: pairs that were compared.
        identical: those that select the same positions.
        chance: how many chance gives; None where it is only known to be few.
        p: how probable so many are by chance.
    """

    compared: int
    identical: int
    chance: float | None
    p: float

    @property
    def suspicious(self) -> bool:
        """Whether they are more than chance gives."""
        return self.p < FALSE_ALARM


class _Masks(NamedTuple):
    """Masks that select something: a hash of each, whose it is, and whether the run has drawn it."""

    mask: UInt64[np.ndarray, " masks"]
    example: Int[np.ndarray, " masks"]
    part: Int[np.ndarray, " masks"]
    epoch: Int[np.ndarray, " masks"]
    drawn: Bool[np.ndarray, " masks"]

    def of(self, drawn: bool) -> "_Masks":
        return _Masks(*(each[self.drawn == drawn] for each in self))


class Fingerprints:
    """Remembers 64 bits of each mask: of an example, or of each document in a packed row.

    The run's masks are held against a reference: masks of the same examples whose keys are known to be
    independent. If the run's keys are too, then the two masks of an example in an epoch might as well be
    exchanged. So choose pairs of identical masks from all of them, without a look at which are the run's,
    and no example twice: both masks of such a pair are the run's with probability 1/4, each pair by
    itself. The number of those is binomial, whatever the selection is and however often it repeats.
    """

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self._words: UInt64[np.ndarray, " length"] = np.zeros(0, np.uint64)
        self._kept: list[_Masks] = []

    def add(
        self,
        selected: Bool[np.ndarray, "batch length"],
        part: Int[np.ndarray, "batch length"],
        *,
        example: Int[np.ndarray, " batch"],
        epoch: int,
        drawn: bool,
    ) -> None:
        """Remember the masks of some examples in an epoch.

        Args:
            selected: the masks.
            part: the document of each token, 0, 1, ... from left to right; -1 where it lies in none.
            example: the number of each example.
            epoch: of all of them.
            drawn: whether the run has drawn them; the others are the reference.
        """
        if not self._words.size:
            self._words = self._random.integers(2**64, size=(part.shape[1],), dtype=np.uint64)
        hashes = self._hashes(selected, part)
        rows, parts = np.nonzero(hashes)
        every = np.ones(rows.size, np.int32)
        self._kept.append(
            _Masks(
                hashes[rows, parts],
                example[rows].astype(np.int32),
                parts.astype(np.int32),
                every * np.int32(epoch),
                every.astype(bool) & drawn,
            )
        )

    def between_examples(self) -> Repeats:
        """Identical masks of different examples, of the same epoch or not."""
        masks = self._all()
        run, reference = masks.of(drawn=True), masks.of(drawn=False)
        compared = _pairs(np.zeros_like(run.example)) - _pairs(run.example)
        identical, chance = (
            _pairs(each.mask) - _pairs(each.mask, each.example) for each in (run, reference)
        )
        p = self._p(masks, (masks.mask,), differ=masks.example)
        return Repeats(compared, identical, float(chance), p)

    def between_epochs(self) -> Repeats:
        """Identical masks of one example, or of one document, in different epochs."""
        masks = self._all()
        run, reference = masks.of(drawn=True), masks.of(drawn=False)
        compared = _pairs(run.example, run.part)
        identical, chance = (
            _pairs(each.example, each.part, each.mask) for each in (run, reference)
        )
        p = self._p(masks, (masks.example, masks.part, masks.mask), differ=masks.epoch)
        return Repeats(compared, identical, float(chance), p)

    def _hashes(
        self, selected: Bool[np.ndarray, "batch length"], part: Int[np.ndarray, "batch length"]
    ) -> UInt64[np.ndarray, "batch parts"]:
        """Of the positions selected in each part, counted from its start; 0 where none is."""
        numbers = np.arange(max(part.max() + 1, 1))
        first = np.argmax(part[:, None, :] == numbers[:, None], axis=-1)
        rows, places = np.nonzero(selected & (part >= 0))
        parts = part[rows, places]
        found = np.zeros(first.shape, np.uint64)
        np.add.at(found, (rows, parts), self._words[places - first[rows, parts]])
        return found

    def _all(self) -> _Masks:
        return _Masks(*(np.concatenate(each) for each in zip(*self._kept, strict=True)))

    def _p(self, masks: _Masks, keys: tuple[np.ndarray, ...], *, differ: np.ndarray) -> float:
        """How probable so many pairs of the run are; see the class.

        Args:
            masks: the run's and the reference's.
            keys: masks that are equal in all of them may be a pair,
            differ: if they differ in this.
        """
        pairs = drawn = 0
        used: set[int] = set()
        for group in _groups(*keys, self._random.permutation(masks.mask.size)):
            waiting = None
            for one in group:
                if int(masks.example[one]) in used:
                    continue
                if waiting is None or differ[one] == differ[waiting]:
                    waiting = one
                    continue
                pairs += 1
                drawn += bool(masks.drawn[one] and masks.drawn[waiting])
                used |= {int(masks.example[one]), int(masks.example[waiting])}
                waiting = None
        return float(stats.binom.sf(drawn - 1, pairs, _BOTH_DRAWN)) if pairs else 1.0


def _sizes(*keys: Shaped[np.ndarray, " items"]) -> tuple[np.ndarray, np.ndarray]:
    """An order in which items that are equal in all keys lie together, and the sizes of the groups."""
    order = np.lexsort(keys)
    changes = np.zeros(max(order.size - 1, 0), bool)
    for key in keys:
        changes |= key[order][1:] != key[order][:-1]
    edges = np.concatenate([[0], np.flatnonzero(changes) + 1, [order.size]])
    return order, np.diff(edges)


def _pairs(*keys: Shaped[np.ndarray, " items"]) -> int:
    """Pairs of items that are equal in all keys."""
    _, sizes = _sizes(*keys)
    return int((sizes * (sizes - 1) // 2).sum())


def _groups(*keys: Shaped[np.ndarray, " items"]) -> Iterator[np.ndarray]:
    """Groups of two items or more that are equal in all keys but the last, ordered by that."""
    *same, by = keys
    shuffled = np.argsort(by)
    order, sizes = _sizes(*(key[shuffled] for key in same))
    ends = np.cumsum(sizes)
    for end, size in zip(ends[sizes > 1], sizes[sizes > 1], strict=True):
        yield shuffled[order[end - size : end]]


def few_alike(compared: int, identical: int, *, at_most: float) -> Repeats:
    """Pairs of which each is identical with a small probability, by itself.

    Args:
        compared: pairs.
        identical: those that select the same positions.
        at_most: above the probability that a pair does.
    """
    p = float(stats.binom.sf(identical - 1, compared, at_most)) if compared else 1.0
    return Repeats(compared, identical, None, p)
