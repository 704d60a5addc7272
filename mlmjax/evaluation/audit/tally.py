"""The figures of an audit, added up batch by batch; with numpy, and in little memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from mlmjax.evaluation.audit.counters import (
    Drawn,
    FateTally,
    Histogram,
    PositionTally,
    RunTally,
    TargetTally,
    TokenTally,
    Units,
    asked_p,
)
from mlmjax.evaluation.audit.figures import (
    Corruption,
    Fate,
    Figures,
    Lengths,
    Must,
    Selected,
    Words,
)
from mlmjax.evaluation.audit.lexicon import Lexicon, TokenFigures
from mlmjax.evaluation.audit.repeats import Fingerprints, Repeats, few_alike
from mlmjax.masking import SpanLaw
from mlmjax.objectives.mlm import KINDS, MaskedLanguageModel

FREE_WORDS = 16
"""Words from which on two masks of a row are rarely alike, where each takes two words and leaves two."""
ALIKE = 0.25
"""Far above the probability that they are alike; one span at a random place has 1/16."""


@dataclass(frozen=True)
class Asked:
    """What the masks should be like.

    Attributes:
        seed: the run's.
        step: at which the ratio is taken.
        ratio: in force at the step.
        highest: of all steps.
        shares: of the :class:`Kind` of each number.
        fates: whether each target has a fate of its own.
        static_masks: of an example, before they repeat; None where they never do.
        whole_words: whether the selection says that it splits no word.
        at_least_one: whether it says that every example, or document, has a target.
        lengths: the law of span lengths, from 1 on; None where there are no spans.
        unit: of those lengths, ``tokens`` or ``words``.
    """

    seed: int
    step: int
    ratio: float
    highest: float
    shares: tuple[float, ...]
    fates: bool
    static_masks: int | None
    whole_words: bool
    at_least_one: bool
    lengths: tuple[float, ...] | None = None
    unit: str = "words"

    @classmethod
    def of(cls, objective: MaskedLanguageModel, seed: int, step: int) -> Self:
        """What an objective asks for."""
        selection, schedule, corruption = (
            objective.selection,
            objective.ratio_schedule,
            objective.corruption,
        )
        return cls(
            seed=seed,
            step=step,
            ratio=float(objective.ratio(jnp.int32(step))),
            highest=schedule.highest(selection.ratio) if schedule else selection.ratio,
            shares=(corruption.mask, corruption.random, corruption.keep),
            fates=corruption.unit == "token",
            static_masks=objective.static_masks,
            whole_words=bool(getattr(selection, "whole_words", False)),
            at_least_one=bool(getattr(selection, "at_least_one", False)),
            lengths=tuple(selection.law().tolist()) if isinstance(selection, SpanLaw) else None,
            unit=getattr(selection, "unit", "words"),
        )


class Tally:
    """Adds up what the masks of examples are like."""

    def __init__(self, lexicon: Lexicon, asked: Asked):
        """Nothing is counted yet."""
        self.examples = 0
        """Examples that were added."""
        self._lexicon, self._asked = lexicon, asked
        self._epochs = self._full = self._capacity = 0
        self._valid = self._padding = self._special = self._twice = self._outside = 0
        self._words = np.zeros(3, np.int64)
        self._alike, self._chosen = np.zeros(2, np.int64), np.zeros(2, np.int64)
        self._fates = FateTally(lexicon.vocabulary.special)
        self._tokens = TokenTally(lexicon.vocabulary.size)
        self._positions, self._prints = PositionTally(), Fingerprints()
        self._targets, self._documents, self._runs = TargetTally(), TargetTally(), RunTally()
        self._spans, self._whole = Histogram(), Histogram()

    def add(
        self, run: Sequence[Drawn], reference: Sequence[Bool[np.ndarray, "examples length"]]
    ) -> None:
        """Count some examples.

        Args:
            run: their masks in each epoch.
            reference: their masks with independent keys.
        """
        number = self.examples + np.arange(len(run[0].tokens))
        fresh = self._asked.static_masks or len(run)
        for epoch, drawn in enumerate(run):
            units = Units.of(drawn)
            self._count(drawn, units)
            self._positions.add(drawn, fresh=epoch < fresh)
            if epoch >= fresh:
                same = (drawn.selected == run[epoch % fresh].selected).all(axis=1)
                self._chosen += (same.size, same.sum())
                continue
            self._compare(drawn, reference[epoch], units)
            part, selected = drawn.document, reference[epoch]
            self._prints.add(drawn.selected, part, example=number, epoch=epoch, drawn=True)
            self._prints.add(selected, part, example=number, epoch=epoch, drawn=False)
        self.examples += number.size
        self._epochs, self._capacity = len(run), run[0].capacity

    def figures(self) -> Figures:
        """What was counted."""
        asked, tokens = self._asked, TokenFigures(self._lexicon, self._tokens)
        between_examples, between_epochs, between_keys = (
            self._prints.between_examples(),
            self._prints.between_epochs(),
            few_alike(*self._alike.tolist(), at_most=ALIKE),
        )
        static = asked.static_masks
        return Figures(
            examples=self.examples,
            epochs=self._epochs,
            length=self._positions.length,
            seed=asked.seed,
            step=asked.step,
            capacity=self._capacity,
            full=self._full,
            static_masks=static,
            selected=self._selected(),
            corruption=self._corruption(),
            targets=self._targets.figures(),
            documents=self._documents.figures() if self._documents.seen else None,
            positions=self._positions.figures(),
            lengths=self._lengths(),
            words=Words(*self._words.tolist()),
            frequency=tuple(tokens.bands()),
            kinds=tuple(tokens.kinds()),
            most_selected=tokens.most(),
            over_selected=tokens.over(),
            between_examples=between_examples,
            between_epochs=between_epochs,
            between_keys=between_keys,
            by_choice=self._by_choice() if static else None,
            musts=self._musts(between_examples, between_epochs, between_keys),
        )

    def _count(self, drawn: Drawn, units: Units) -> None:
        selected, eligible = drawn.selected, drawn.eligible
        self._valid += int(drawn.valid.sum())
        self._padding += int((selected & ~drawn.valid).sum())
        self._special += int((selected & drawn.valid & ~eligible).sum())
        self._twice += int((drawn.times > 1).sum())
        self._outside += drawn.outside
        self._full += int((drawn.times.sum(axis=1) >= drawn.capacity).sum())
        begun = units.taken > 0
        self._words += (
            begun.sum(),
            (begun & (units.size > 1)).sum(),
            (begun & (units.taken < units.size)).sum(),
        )
        self._fates.add(drawn)
        self._tokens.add(drawn, units)
        self._runs.add(drawn)
        self._targets.add(selected.sum(axis=1), eligible.sum(axis=1))
        if drawn.spans is not None and drawn.whole_spans is not None:
            self._spans.add(drawn.spans)
            self._whole.add(drawn.whole_spans)
        if drawn.packed:
            self._documents.add(*drawn.by_document())

    def _compare(
        self, drawn: Drawn, reference: Bool[np.ndarray, "examples length"], units: Units
    ) -> None:
        """Count the rows that have the same mask under two keys, of those that might have many."""
        rows = len(drawn.tokens)
        words = np.bincount(units.row, minlength=rows)
        taken = np.bincount(units.row[units.taken > 0], minlength=rows)
        left = np.bincount(units.row[units.taken < units.size], minlength=rows)
        free = (words >= FREE_WORDS) & (taken > 1) & (left > 1)
        same = (drawn.selected == reference).all(axis=1)
        self._alike += (free.sum(), (free & same).sum())

    def _by_choice(self) -> Repeats:
        compared, same = self._chosen.tolist()
        return Repeats(compared, same, chance=None, p=1.0)

    def _selected(self) -> Selected:
        eligible, targets = self._tokens.eligible.sum(), self._fates.counts.sum()
        return Selected(
            valid=self._valid,
            eligible=int(eligible),
            targets=int(targets),
            of_eligible=float(targets / max(eligible, 1)),
            of_valid=float(targets / max(self._valid, 1)),
            asked=self._asked.ratio,
            highest=self._asked.highest,
        )

    def _corruption(self) -> Corruption:
        counts = self._fates.counts
        fates = tuple(
            Fate(
                name=name,
                count=int(counts[kind]),
                of_targets=float(counts[kind] / max(counts.sum(), 1)),
                of_valid=float(counts[kind] / max(self._valid, 1)),
                asked=self._asked.shares[kind],
            )
            for name, kind in KINDS.items()
        )
        p = asked_p(counts, np.array(self._asked.shares)) if self._asked.fates else None
        return Corruption(fates, self._fates.random_right, p)

    def _lengths(self) -> tuple[Lengths, ...]:
        def lengths(what: str, unit: str, histogram: Histogram) -> Lengths:
            return Lengths(what, unit, histogram.mean, tuple(histogram.counts[1:].tolist()))

        runs = (
            lengths("runs", "tokens", self._runs.tokens),
            lengths("runs", "words", self._runs.words),
        )
        law = self._asked.lengths
        if law is None:
            return runs
        whole = lengths("whole spans", self._asked.unit, self._whole)
        counts = np.zeros(max(len(law), len(whole.counts)), np.int64)
        counts[: len(whole.counts)] = whole.counts
        asked = np.zeros(counts.size)
        asked[: len(law)] = law
        spans = lengths("spans", self._asked.unit, self._spans)
        p = asked_p(counts, asked)
        return replace(spans, asked=law), replace(whole, asked=law, p=p), *runs

    def _musts(self, examples: Repeats, epochs: Repeats, keys: Repeats) -> tuple[Must, ...]:
        never = {
            "padding selected": self._padding,
            "special tokens selected": self._special,
            "tokens selected twice": self._twice,
            "positions outside the row": self._outside,
            "unselected tokens changed": self._fates.changed,
            "special tokens drawn": self._fates.random_special,
        }
        if self._asked.whole_words:
            never["words split"] = int(self._words[2])
        if self._asked.at_least_one:
            packed = self._documents.seen
            name = "documents without a target" if packed else "examples without a target"
            never[name] = (self._documents if packed else self._targets).without
        rarely = {
            "same mask under another key": keys,
            "same mask in another epoch": epochs,
            "same mask as another example": examples,
        }
        return (
            *(Must(name, found, not found) for name, found in never.items()),
            *(
                Must(name, one.identical, not one.suspicious, one.compared, one.chance, one.p)
                for name, one in rarely.items()
            ),
        )
