"""Targets by token: of like frequency, of one kind, and those selected most."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from mlmjax.core.vocabulary import Vocabulary
from mlmjax.evaluation.audit.counters import TokenTally
from mlmjax.evaluation.audit.figures import Group, Token

BANDS = 10
"""Bands of frequency."""
SHOWN = 10
"""Tokens that are named."""
EXAMPLES = 3
"""Tokens that are named of a group."""
ENOUGH = 5
"""Targets that a token must expect, before it is called over-selected."""


@dataclass(frozen=True)
class Lexicon:
    """What is known of the tokens of a vocabulary.

    Attributes:
        vocabulary: sizes and special ids.
        names: of each id, as the vocabulary spells it.
        texts: of each id, as it stands in a text.
        counts: of each id in the training rows, specials 0.
    """

    vocabulary: Vocabulary
    names: Sequence[str]
    texts: Sequence[str]
    counts: Int[np.ndarray, " vocabulary"]

    @cached_property
    def bands(self) -> Int[np.ndarray, " vocabulary"]:
        """The tenth of the training text that each token lies in, the most frequent tokens in 0."""
        order = np.argsort(-self.counts, kind="stable")
        counts = self.counts[order]
        middle = (np.cumsum(counts) - counts / 2) / max(counts.sum(), 1)
        bands = np.zeros(order.size, np.int64)
        bands[order] = np.minimum(middle * BANDS, BANDS - 1)
        return bands

    @cached_property
    def signs(self) -> Int[np.ndarray, " vocabulary"]:
        """0 for words and pieces of them, 1 for numbers, 2 for what has neither letter nor digit."""
        return np.array([_sign(text) for text in self.texts])


def _sign(text: str) -> int:
    # A token may hold a part of a character's bytes; no sign is left of that, but it is no punctuation.
    if not text or "\ufffd" in text or any(one.isalpha() for one in text):
        return 0
    return 1 if any(one.isnumeric() for one in text) else 2


class TokenFigures:
    """What a tally of tokens says."""

    def __init__(self, lexicon: Lexicon, tally: TokenTally):
        self._lexicon, self._tally = lexicon, tally
        self._eligible, self._targets = (one.sum(axis=0) for one in (tally.eligible, tally.targets))

    def bands(self) -> Iterator[Group]:
        """Tokens of like frequency, the most frequent first."""
        for band in range(BANDS):
            inside = self._lexicon.bands == band
            name = f"{100 * band // BANDS}-{100 * (band + 1) // BANDS} %"
            yield self._group(name, self._eligible * inside, self._targets * inside)

    def kinds(self) -> Iterator[Group]:
        """Whole words, pieces of words, numbers and punctuation."""
        signs = self._lexicon.signs
        for name, rows, sign in (
            ("whole word", [0], 0),
            ("word piece", [1], 0),
            ("number", [0, 1], 1),
            ("punctuation", [0, 1], 2),
        ):
            eligible, targets = (
                one[rows].sum(axis=0) * (signs == sign)
                for one in (self._tally.eligible, self._tally.targets)
            )
            yield self._group(name, eligible, targets)

    def most(self) -> tuple[Token, ...]:
        """The tokens that are selected most often."""
        return self._named(self._targets.astype(float))

    def over(self) -> tuple[Token, ...]:
        """The tokens that are selected above the share of all, most clearly first."""
        return self._named(self._z)

    def _group(
        self,
        name: str,
        eligible: Int[np.ndarray, " vocabulary"],
        targets: Int[np.ndarray, " vocabulary"],
    ) -> Group:
        total, chosen = int(eligible.sum()), int(targets.sum())
        frequent = np.argsort(-eligible, kind="stable")[:EXAMPLES]
        return Group(
            name=name,
            types=int((eligible > 0).sum()),
            of_eligible=total / max(int(self._eligible.sum()), 1),
            of_targets=chosen / max(int(self._targets.sum()), 1),
            selected=chosen / total if total else None,
            examples=tuple(self._lexicon.names[i] for i in frequent if eligible[i]),
        )

    @cached_property
    def _z(self) -> Float[np.ndarray, " vocabulary"]:
        """Standard deviations by which targets exceed the share of all; 0 for tokens too rare to say."""
        share = self._targets.sum() / max(self._eligible.sum(), 1)
        expected = self._eligible * share
        spread = np.sqrt(expected * max(1 - share, 1e-12))
        enough = expected >= ENOUGH
        return np.divide(self._targets - expected, spread, out=np.zeros(spread.size), where=enough)

    def _named(self, score: Float[np.ndarray, " vocabulary"]) -> tuple[Token, ...]:
        """The tokens with the highest scores above 0."""
        return tuple(
            Token(
                token=self._lexicon.names[i],
                eligible=int(self._eligible[i]),
                targets=int(self._targets[i]),
                selected=float(self._targets[i] / self._eligible[i]),
                z=float(self._z[i]),
            )
            for i in np.argsort(-score, kind="stable")[:SHOWN]
            if score[i] > 0
        )
