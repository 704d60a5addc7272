"""What an audit of masks finds: shares and counts as they came out, beside what was asked."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from mlmjax.evaluation.audit.repeats import Repeats


@dataclass(frozen=True)
class Selected:
    """How much is selected.

    Attributes:
        valid: tokens that are not padding.
        eligible: those that are not special either.
        targets: selected ones.
        of_eligible: targets among the eligible.
        of_valid: targets among the valid.
        asked: the ratio in force at the step.
        highest: the highest ratio of all steps, for which the capacity is made.
    """

    valid: int
    eligible: int
    targets: int
    of_eligible: float
    of_valid: float
    asked: float
    highest: float


@dataclass(frozen=True)
class Fate:
    """What the encoder sees at targets.

    Attributes:
        name: ``masked``, ``random`` or ``kept``.
        count: targets of this fate.
        of_targets: among all targets.
        of_valid: among all tokens that are not padding.
        asked: share of the targets.
    """

    name: str
    count: int
    of_targets: float
    of_valid: float
    asked: float


@dataclass(frozen=True)
class Corruption:
    """What the encoder sees at all targets.

    Attributes:
        fates: of [MASK], a random token, and the token itself.
        random_right: random tokens that happen to be the right ones.
        p: of a chi-square test of the fates against the asked shares; None where they do not fall token by
            token.
    """

    fates: tuple[Fate, ...]
    random_right: int
    p: float | None


@dataclass(frozen=True)
class Targets:
    """Targets of an example, or of a document.

    Attributes:
        examples: that were counted, each in every epoch.
        least: targets of one.
        mean: of all.
        most: targets of one.
        without: examples without a target, though they have eligible tokens.
        histogram: examples with 0, 1, ... targets.
    """

    examples: int
    least: int
    mean: float
    most: int
    without: int
    histogram: tuple[int, ...]


@dataclass(frozen=True)
class Positions:
    """Where in a row targets lie.

    Attributes:
        selected: share of the eligible tokens at each position; None where there is none.
        eligible: eligible tokens at each position.
        p: of Hotelling's test that within each row all positions are alike, over :attr:`bins` of positions;
            None with too few rows. Masks of spans are tested as soundly as those of single tokens.
        bins: parts of the row that the test compares.
    """

    selected: tuple[float | None, ...]
    eligible: tuple[int, ...]
    p: float | None
    bins: int


@dataclass(frozen=True)
class Lengths:
    """How long spans or runs are.

    Attributes:
        what: ``spans``; ``whole spans``, those that no budget could have cut; or ``runs`` of neighbouring
            targets.
        unit: ``tokens`` or ``words``.
        mean: of all.
        counts: of length 1, 2, ...
        asked: the law's share of each length; None where none is asked.
        p: of a chi-square test of the counts against the law; None where lengths are no independent draws
            from it, or too few.
    """

    what: str
    unit: str
    mean: float
    counts: tuple[int, ...]
    asked: tuple[float, ...] | None = None
    p: float | None = None


@dataclass(frozen=True)
class Group:
    """Tokens of one kind, or of like frequency.

    Attributes:
        name: of the group.
        types: different tokens in it.
        of_eligible: its share of the eligible tokens.
        of_targets: its share of the targets.
        selected: share of its eligible tokens that is selected; None where there is none.
        examples: its most frequent tokens.
    """

    name: str
    types: int
    of_eligible: float
    of_targets: float
    selected: float | None
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Token:
    """One token of the vocabulary.

    Attributes:
        token: as the vocabulary spells it.
        eligible: how often it might have been selected.
        targets: how often it is.
        selected: the quotient.
        z: standard deviations above the share of all tokens.
    """

    token: str
    eligible: int
    targets: int
    selected: float
    z: float


@dataclass(frozen=True)
class Words:
    """Words of which something is selected.

    Attributes:
        count: of them.
        longer: those of several tokens.
        split: those of which something is not selected.
    """

    count: int
    longer: int
    split: int


@dataclass(frozen=True)
class Must:
    """Something that has to hold.

    Attributes:
        name: what may not be, or not more often than by chance.
        found: how often it is.
        kept: whether the must holds.
        compared: pairs of masks among which it was found; None where nothing may be found.
        chance: how often chance gives it; None where it is only known to be rare.
        p: how probable so many are by chance.
    """

    name: str
    found: int
    kept: bool
    compared: int | None = None
    chance: float | None = None
    p: float | None = None

    def __str__(self) -> str:
        """The finding, as a sentence."""
        if self.compared is None:
            return f"{self.name}: {self.found}, and it must be 0."
        chance = "" if self.chance is None else f" where chance gives {self.chance:.0f}"
        return f"{self.name}: {self.found} of {self.compared} pairs{chance} (p = {self.p:.2g})."


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What an audit finds of any kind of masks; all is counted over every example in every epoch.

    Attributes:
        examples: that were drawn.
        epochs: in which each was.
        seed: the run's.
        step: at which the ratio is taken.
        capacity: places in a mask.
        static_masks: of an example, before they repeat; None where they never do.
        between_examples: masks of different examples.
        between_epochs: masks of one example in different epochs.
        between_keys: masks of one example in one epoch, under the run's key and under another.
        by_choice: masks that repeat an earlier epoch's because static masks were asked for.
        musts: what has to hold.
    """

    examples: int
    epochs: int
    seed: int
    step: int
    capacity: int
    static_masks: int | None
    between_examples: Repeats
    between_epochs: Repeats
    between_keys: Repeats
    by_choice: Repeats | None
    musts: tuple[Must, ...]

    @property
    def broken(self) -> tuple[Must, ...]:
        """The musts that do not hold."""
        return tuple(must for must in self.musts if not must.kept)

    def as_json(self) -> dict[str, Any]:
        """The findings as lists, numbers and texts; None where a number is not finite."""
        return _plain(dataclasses.asdict(self)) | {"kept": not self.broken}


@dataclass(frozen=True, kw_only=True)
class Figures(Findings):
    """The findings of an audit of masks of tokens."""

    length: int
    full: int
    """Examples whose mask has no place left; with a random count, something may have fallen out."""
    selected: Selected
    corruption: Corruption
    targets: Targets
    documents: Targets | None
    positions: Positions
    lengths: tuple[Lengths, ...]
    words: Words
    frequency: tuple[Group, ...]
    """Bands of tokens that each make up a tenth of the training text, the most frequent first."""
    kinds: tuple[Group, ...]
    most_selected: tuple[Token, ...]
    over_selected: tuple[Token, ...]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
