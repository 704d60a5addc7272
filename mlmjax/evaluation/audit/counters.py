"""Counting what masks select, batch by batch, on the host."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import stats

from mlmjax.corruption import Kind
from mlmjax.evaluation.audit.figures import Positions, Targets

BINS = 16
"""Parts of a row that are compared with each other."""


@dataclass(frozen=True)
class Drawn:
    """Some examples and their masks.

    Attributes:
        tokens: as they are in the text.
        valid: whether there is a token.
        eligible: whether it is not special either.
        word_starts: whether it starts a word.
        times: how often the mask holds it.
        outside: places of the masks that hold no position of the row.
        seen: what the encoder sees.
        kind: the :class:`Kind` of a target; -1 where there is none.
        document: of each token in a packed row, counted from 0, and 0 in other rows; -1 for padding.
        packed: whether rows are.
        capacity: places in a mask.
        spans: lengths of the spans behind the masks; None where the selection draws none.
        whole_spans: lengths of those that no budget could have cut.
    """

    tokens: Int[np.ndarray, "batch length"]
    valid: Bool[np.ndarray, "batch length"]
    eligible: Bool[np.ndarray, "batch length"]
    word_starts: Bool[np.ndarray, "batch length"]
    times: Int[np.ndarray, "batch length"]
    outside: int
    seen: Int[np.ndarray, "batch length"]
    kind: Int[np.ndarray, "batch length"]
    document: Int[np.ndarray, "batch length"]

    packed: bool
    capacity: int
    spans: Int[np.ndarray, " spans"] | None = None
    whole_spans: Int[np.ndarray, " whole"] | None = None

    @cached_property
    def selected(self) -> Bool[np.ndarray, "batch length"]:
        """The mask."""
        return self.times > 0

    def by_document(self) -> tuple[Int[np.ndarray, " documents"], Int[np.ndarray, " documents"]]:
        """Targets and eligible tokens of each document."""
        inside = self.document >= 0
        number = np.nonzero(inside)[0] * self.document.shape[1] + self.document[inside]
        _, number = np.unique(number, return_inverse=True)
        targets = np.bincount(number, weights=self.selected[inside])
        eligible = np.bincount(number, weights=self.eligible[inside])
        return targets.astype(np.int64), eligible.astype(np.int64)


class Units(NamedTuple):
    """The words of some rows, one after the other.

    Attributes:
        word: of each eligible token, in the order of rows and positions.
        size: tokens in each word.
        taken: those that are selected.
        row: in which it lies.
    """

    word: Int[np.ndarray, " tokens"]
    size: Int[np.ndarray, " words"]
    taken: Int[np.ndarray, " words"]
    row: Int[np.ndarray, " words"]

    @classmethod
    def of(cls, drawn: Drawn) -> "Units":
        """A word begins as :func:`mlmjax.masking.words.word_numbers` says."""
        begins = word_begins(drawn)
        word = np.cumsum(begins)[drawn.eligible.ravel()] - 1
        count = int(begins.sum())
        size = np.bincount(word, minlength=count)
        taken = np.bincount(word[drawn.selected[drawn.eligible]], minlength=count)
        return cls(word, size, taken, np.nonzero(begins)[0])


def word_begins(drawn: Drawn) -> Bool[np.ndarray, "batch length"]:
    """The eligible tokens that start a word, or that follow a token that is not eligible."""
    before = np.zeros_like(drawn.eligible)
    before[:, 1:] = drawn.eligible[:, :-1]
    return drawn.eligible & (drawn.word_starts | ~before)


class Histogram:
    """How often each whole number from 0 on is seen."""

    def __init__(self) -> None:
        self.counts = np.zeros(0, np.int64)

    def add(self, values: Int[np.ndarray, " values"]) -> None:
        """Count values."""
        found = np.bincount(values, minlength=self.counts.size)
        found[: self.counts.size] += self.counts
        self.counts = found

    @property
    def total(self) -> int:
        """The number of values."""
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        """Of the values; 0 where there is none."""
        return float(self.counts @ np.arange(self.counts.size) / max(self.total, 1))


class TargetTally:
    """Targets of an example, or of a document."""

    def __init__(self) -> None:
        self._counts = Histogram()
        self.without = 0
        """Units without a target, though they have eligible tokens."""

    @property
    def seen(self) -> bool:
        """Whether any was counted."""
        return self._counts.total > 0

    def add(self, targets: Int[np.ndarray, " units"], eligible: Int[np.ndarray, " units"]) -> None:
        """Count units, each with its targets and its eligible tokens."""
        self._counts.add(targets)
        self.without += int(((targets == 0) & (eligible > 0)).sum())

    def figures(self) -> Targets:
        """What was counted."""
        present = np.flatnonzero(self._counts.counts)
        return Targets(
            examples=self._counts.total,
            least=int(present[0]) if present.size else 0,
            mean=self._counts.mean,
            most=int(present[-1]) if present.size else 0,
            without=self.without,
            histogram=tuple(self._counts.counts.tolist()),
        )


class PositionTally:
    """Where targets lie, and whether chance spreads them so.

    Within a row, a selection that does not care for position gives every eligible token the row's own share. The
    difference from that, summed over parts of the row, is a vector of mean zero, one a row, and rows are
    independent; so Hotelling's T-squared tests it whatever the masks are like within a row.
    """

    def __init__(self) -> None:
        self._counts = np.zeros((2, 0), np.int64)
        self._rows = 0
        self._sum, self._square = np.zeros(0), np.zeros((0, 0))

    @property
    def length(self) -> int:
        """Positions in a row; 0 before any was counted."""
        return self._counts.shape[1]

    def add(self, drawn: Drawn, *, fresh: bool) -> None:
        """Count rows; those that are not ``fresh`` repeat masks by choice and are no evidence."""
        selected, length = drawn.selected & drawn.eligible, drawn.tokens.shape[1]
        bins = min(BINS, length)
        if not self.length:
            self._counts = np.zeros((2, length), np.int64)
            self._sum, self._square = np.zeros(bins), np.zeros((bins, bins))
        self._counts += np.stack([selected.sum(axis=0), drawn.eligible.sum(axis=0)])
        if not fresh:
            return
        share = selected.sum(axis=1) / np.maximum(drawn.eligible.sum(axis=1), 1)
        excess = selected - drawn.eligible * share[:, None]
        binned = np.add.reduceat(excess, np.arange(bins) * length // bins, axis=1)
        self._rows += len(binned)
        self._sum += binned.sum(axis=0)
        self._square += binned.T @ binned

    def figures(self) -> Positions:
        """What was counted."""
        selected, eligible = self._counts.tolist()
        return Positions(
            selected=tuple(s / e if e else None for s, e in zip(selected, eligible, strict=True)),
            eligible=tuple(eligible),
            p=self._p(),
            bins=self._sum.size,
        )

    def _p(self) -> float | None:
        rows, mean = self._rows, self._sum / max(self._rows, 1)
        if rows < 4 * self._sum.size:
            return None
        covariance = (self._square - rows * np.outer(mean, mean)) / (rows - 1)
        values, vectors = np.linalg.eigh(covariance)
        # The excesses of a row sum to zero, so one direction has no variance.
        free = values > 1e-9 * max(values[-1], 1e-12)
        rank = int(free.sum())
        if not rank:
            return None
        squared = rows * ((vectors[:, free].T @ mean) ** 2 / values[free]).sum()
        return float(stats.f.sf(squared * (rows - rank) / (rank * (rows - 1)), rank, rows - rank))


class TokenTally:
    """How often each token of the vocabulary is eligible and selected, as a word or a piece of one.

    Attributes:
        eligible: [whole word or piece, token].
        targets: the same of those selected.
    """

    def __init__(self, vocabulary: int):
        self.eligible = np.zeros((2, vocabulary), np.int64)
        self.targets = np.zeros((2, vocabulary), np.int64)

    def add(self, drawn: Drawn, units: Units) -> None:
        """Count tokens."""
        piece = (units.size[units.word] > 1).astype(np.int64)
        tokens, chosen = drawn.tokens[drawn.eligible], drawn.selected[drawn.eligible]
        size = self.eligible.size
        index = piece * self.eligible.shape[1] + tokens
        self.eligible += np.bincount(index, minlength=size).reshape(self.eligible.shape)
        self.targets += np.bincount(index[chosen], minlength=size).reshape(self.eligible.shape)


class FateTally:
    """What the encoder sees: at targets, and where it should see the text itself.

    Attributes:
        counts: targets of each :class:`Kind`.
        random_right: random tokens that are the right ones.
        random_special: random tokens that are special.
        changed: tokens that are not targets, and are not shown as they are.
    """

    def __init__(self, special: Sequence[int]):
        self._special = np.asarray(special)
        self.counts = np.zeros(len(Kind), np.int64)
        self.random_right = self.random_special = self.changed = 0

    def add(self, drawn: Drawn) -> None:
        """Count tokens."""
        self.counts += np.bincount(drawn.kind[drawn.selected], minlength=len(Kind))
        differs = drawn.seen != drawn.tokens
        kept = ~drawn.selected | (drawn.kind == Kind.KEEP)
        self.changed += int((differs & kept).sum())
        random = drawn.selected & (drawn.kind == Kind.RANDOM)
        self.random_right += int((random & ~differs).sum())
        self.random_special += int(np.isin(drawn.seen[random], self._special).sum())


class RunTally:
    """Lengths of runs of neighbouring targets, in tokens and in words."""

    def __init__(self) -> None:
        self.tokens, self.words = Histogram(), Histogram()

    def add(self, drawn: Drawn) -> None:
        """Count the runs; what is not eligible ends one."""
        # A column that is never selected keeps the runs of two rows apart.
        chosen = np.pad(drawn.selected & drawn.eligible, [(0, 0), (0, 1)]).ravel()
        change = np.diff(chosen.astype(np.int8), prepend=0)
        begins, ends = np.flatnonzero(change == 1), np.flatnonzero(change == -1)
        word = np.cumsum(np.pad(word_begins(drawn), [(0, 0), (0, 1)]))
        self.tokens.add(ends - begins)
        self.words.add(word[ends - 1] - word[begins] + 1)


def asked_p(
    counts: Int[np.ndarray, " values"], asked: Float[np.ndarray, " values"]
) -> float | None:
    """The p-value of a chi-square test of counts against shares; None where too few are expected.

    Neighbouring values are put together until five are expected in each.
    """
    total = counts.sum()
    found, expected = [0.0], [0.0]
    for one, share in zip(counts.tolist(), asked.tolist(), strict=True):
        if expected[-1] >= 5:
            found.append(0.0)
            expected.append(0.0)
        found[-1] += one
        expected[-1] += share * total
    if len(found) > 1 and expected[-1] < 5:
        last = found.pop(), expected.pop()
        found[-1], expected[-1] = found[-1] + last[0], expected[-1] + last[1]
    if len(found) < 2:
        return None
    difference = np.array(found) - np.array(expected)
    return float(stats.chi2.sf((difference**2 / np.array(expected)).sum(), len(found) - 1))
