"""What frozen features tell of labels: a linear probe, and the nearest neighbours.

What is tuned is tuned on a part of the training rows; the test rows are looked at once, at the end.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Integer

from mlmjax.core.errors import UserError

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

COSTS = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
"""Inverse strengths of the L2 penalty that a linear probe chooses from; a lower one is a stronger penalty."""
NEIGHBOURS = (1, 5, 10, 20)
"""Numbers of neighbours to choose from."""
VALIDATION = 0.2
"""Share of the training rows on which is chosen."""
ITERATIONS = 300
SMALL = 50_000_000
"""Numbers in the training rows below which a probe takes one thread."""


class Labelled(NamedTuple):
    """Rows of features and what each is of."""

    features: Float[np.ndarray, "rows width"]
    labels: Integer[np.ndarray, " rows"]


@dataclass(frozen=True)
class Probe:
    """What a probe found.

    Attributes:
        accuracy: share of the test rows whose label it gives.
        chosen: the value that was best in validation; of equals the first, which is the simplest.
        validation: the accuracy of every value that was tried.
        converged: whether the last fit came to its end within :data:`ITERATIONS`.
        unknown: share of the test rows that are of a class of which there is no training row, so that none of them
            can be told.
    """

    accuracy: float
    chosen: float
    validation: dict[float, float]
    converged: bool = True
    unknown: float = 0.0


def linear_probe(
    train: Labelled, test: Labelled, *, seed: int, costs: Sequence[float] = COSTS
) -> Probe:
    """Multinomial logistic regression on features that are standardised by the training rows.

    The penalty is chosen on a validation part of the training rows; then all of them are fitted once more.

    Args:
        train: rows to fit and to choose with.
        test: rows to judge on.
        seed: of the choice of the validation part.
        costs: inverse strengths of the penalty to try, the strongest penalty first.

    Raises:
        UserError: the training rows are of one class, or too few; or there is no test row, or none of a class that
            training rows have.
    """
    return _probe(train, test, partial(_linear, seed=seed), seed=seed, values=costs)


def knn(
    train: Labelled, test: Labelled, *, seed: int, neighbours: Sequence[int] = NEIGHBOURS
) -> Probe:
    """The label of most of the nearest training rows, by the cosine between features less their mean.

    The mean is that of the training rows; without it, what all rows share would decide of the angle. The number of
    neighbours is chosen on a validation part of the training rows.

    Args:
        train: rows to find neighbours among.
        test: rows to judge on.
        seed: of the choice of the validation part.
        neighbours: numbers to try, the smallest first; those above the number of rows are left out.

    Raises:
        UserError: as :func:`linear_probe`.
    """
    left = len(train.labels) - math.ceil(VALIDATION * len(train.labels))
    possible = [number for number in neighbours if number <= max(left, 1)]
    return _probe(train, test, _nearest, seed=seed, values=possible)


def _probe(
    train: Labelled,
    test: Labelled,
    fit: Callable[[Labelled, Any], "Pipeline"],
    *,
    seed: int,
    values: Sequence[float] | Sequence[int],
) -> Probe:
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # scikit-learn's

    _check(train, test)
    fitting, validation = _split(train, seed)
    # Products of small matrices are faster on one thread, many times so where other programs want the cores.
    with threadpool_limits(1 if train.features.size < SMALL else None), warnings.catch_warnings():
        # It guesses that so many classes were meant as numbers.
        warnings.filterwarnings("ignore", message="The number of unique classes")
        found = {value: _accuracy(fit(fitting, value), validation) for value in values}
        chosen = max(found, key=found.__getitem__)
        last = fit(train, chosen)
        accuracy = _accuracy(last, test)
    steps = getattr(last[-1], "n_iter_", None)
    converged = steps is None or bool(np.max(steps) < ITERATIONS)
    return Probe(accuracy, chosen, found, converged, _unknown(train, test))


def _linear(rows: Labelled, cost: float, *, seed: int) -> "Pipeline":
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = LogisticRegression(C=cost, max_iter=ITERATIONS, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it is told by `converged`
        return make_pipeline(StandardScaler(), model).fit(rows.features, rows.labels)


def _nearest(rows: Labelled, neighbours: int) -> "Pipeline":
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = KNeighborsClassifier(neighbours, metric="cosine")
    return make_pipeline(StandardScaler(with_std=False), model).fit(rows.features, rows.labels)


def _accuracy(model: "Pipeline", rows: Labelled) -> float:
    return float((model.predict(rows.features) == rows.labels).mean())


def _check(train: Labelled, test: Labelled) -> None:
    classes = np.unique(train.labels)
    if len(classes) < 2:
        raise UserError(
            f"A probe needs at least two classes, and the {len(train.labels)} training examples are of "
            f"{len(classes)}: give data with labels of several classes (--data.root, --data.label-field), such "
            "as a folder for each."
        )
    if not len(test.labels):
        raise UserError("A probe needs held-out examples: raise --data.heldout.")
    if _unknown(train, test) == 1:
        raise UserError(
            f"None of the {len(test.labels)} held-out examples is of a class that training examples have: give "
            "more examples of each class, or another part to hold out (--data.root)."
        )


def _unknown(train: Labelled, test: Labelled) -> float:
    """Share of the test rows that are of a class of which there is no training row."""
    return float((~np.isin(test.labels, train.labels)).mean())


def _split(rows: Labelled, seed: int) -> tuple[Labelled, Labelled]:
    """A part to fit and a part to choose on, with the same share of each class as far as there are enough."""
    from sklearn.model_selection import train_test_split

    _, counts = np.unique(rows.labels, return_counts=True)
    enough = counts.min() > 1 and VALIDATION * len(rows.labels) >= len(counts)
    fitting, validation = train_test_split(
        np.arange(len(rows.labels)),
        test_size=VALIDATION,
        random_state=seed,
        stratify=rows.labels if enough else None,
    )
    parts = [Labelled(rows.features[part], rows.labels[part]) for part in (fitting, validation)]
    if len(np.unique(parts[0].labels)) < 2:
        raise UserError(
            f"A probe chooses on a part of the training examples, and {len(rows.labels)} are too few for "
            "that: give more data, or lower --data.heldout."
        )
    return parts[0], parts[1]
