"""What an audit of masks of patches finds."""

from dataclasses import dataclass

from mlmjax.evaluation.audit.figures import Findings


@dataclass(frozen=True)
class Masked:
    """How much is masked.

    Attributes:
        patches: of all examples.
        masked: those that are.
        ratio: the quotient.
        count: masked patches that each example should have.
        least: masked patches of one example.
        most: masked patches of one example.
        asked: the ratio in force at the step.
        lowest: the lowest ratio of all steps.
        highest: the highest, for which the capacity is made.
    """

    patches: int
    masked: int
    ratio: float
    count: int
    least: int
    most: int
    asked: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class HeatMap:
    """Where in the grid masked patches lie.

    Attributes:
        masked: share of the examples in which each patch is masked, row by row.
        sigmas: how far that is from the share of all patches, in standard deviations of chance.
        examples: that were counted; those that repeat an earlier epoch's masks by choice are not.
        largest: the largest deviation, in sigmas, and its sign.
        row: of the patch with the largest deviation, from 0.
        column: of that patch.
        p: how probable a deviation as large is anywhere, if all patches are alike. Blocks lie in the middle
            more often than at the edge, so for them it is small.
    """

    masked: tuple[tuple[float, ...], ...]
    sigmas: tuple[tuple[float, ...], ...]
    examples: int
    largest: float
    row: int
    column: int
    p: float


@dataclass(frozen=True)
class Parts:
    """Connected parts of the masked patches: neighbours lie above, below, left or right.

    Attributes:
        what: ``selection``, or ``random`` for as many patches of each example at random.
        of_an_example: parts that one has, in the mean.
        mean: patches in a part.
        around: patches in the part that a masked patch lies in, in the mean.
        largest: patches in the largest part of an example, in the mean.
        counts: parts of 1, 2, ... patches.
    """

    what: str
    of_an_example: float
    mean: float
    around: float
    largest: float
    counts: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PatchFigures(Findings):
    """The findings of an audit of masks of patches."""

    grid: tuple[int, int]
    masked: Masked
    heat_map: HeatMap
    parts: tuple[Parts, ...]
