"""Probes: what can be told from features is told, what cannot is not, and choosing looks at training rows alone."""

import numpy as np
import pytest

from mlmjax.core.errors import UserError
from mlmjax.evaluation.probe import COSTS, NEIGHBOURS, Labelled, knn, linear_probe

PROBES = [linear_probe, knn]


def clusters(rows: int, seed: int, *, apart: float = 4.0, classes: int = 3) -> Labelled:
    """Rows around a point for each class, in eight dimensions, of which one is a constant."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(classes, size=rows)
    centres = np.random.default_rng(99).normal(size=(classes, 8)) * apart
    table = centres[labels] + draw.normal(size=(rows, 8))
    table[:, 3] = 7
    return Labelled(table.astype(np.float32), labels)


@pytest.mark.parametrize("probe", PROBES)
def test_classes_that_lie_apart_are_told(probe) -> None:
    found = probe(clusters(120, 0), clusters(60, 1), seed=0)
    assert found.accuracy > 0.97
    assert found.converged
    assert found == probe(clusters(120, 0), clusters(60, 1), seed=0)


@pytest.mark.parametrize("probe", PROBES)
def test_labels_without_a_relation_are_guessed(probe) -> None:
    train, test = clusters(150, 0), clusters(200, 1)
    shuffled = Labelled(train.features, np.random.default_rng(5).permutation(train.labels))
    assert 0.2 < probe(shuffled, test, seed=0).accuracy < 0.5  # chance: a third


@pytest.mark.parametrize(("probe", "values"), [(linear_probe, COSTS), (knn, NEIGHBOURS)])
def test_the_best_in_validation_is_chosen_whatever_the_test_rows_are(probe, values) -> None:
    train = clusters(100, 0, apart=0.5)
    found = probe(train, clusters(40, 1, apart=0.5), seed=3)
    assert tuple(found.validation) == values
    best = max(found.validation.values())
    assert found.chosen == next(v for v, accuracy in found.validation.items() if accuracy == best)
    reverse = clusters(40, 1, apart=0.5)
    other = probe(train, Labelled(-reverse.features, reverse.labels), seed=3)
    assert (other.chosen, other.validation) == (found.chosen, found.validation)
    assert other.accuracy != found.accuracy


def test_a_scale_of_one_feature_does_not_matter_to_the_linear_probe() -> None:
    train, test = clusters(90, 0), clusters(50, 1)
    scale = np.array([1, 1e4, 1, 1, 1e-3, 1, 1, 1], np.float32)
    first = linear_probe(train, test, seed=0)
    second = linear_probe(
        Labelled(train.features * scale, train.labels),
        Labelled(test.features * scale, test.labels),
        seed=0,
    )
    assert second.accuracy == pytest.approx(first.accuracy, abs=0.021)  # a row at most
    assert second.chosen == first.chosen


def test_what_all_rows_share_does_not_matter_to_neighbours() -> None:
    train, test = clusters(90, 0), clusters(50, 1)
    shared = np.float32(1000) * np.ones(8, np.float32)
    moved = [Labelled(rows.features + shared, rows.labels) for rows in (train, test)]
    assert knn(*moved, seed=0) == knn(train, test, seed=0)
    assert knn(*moved, seed=0).accuracy > 0.97


def test_of_few_rows_no_more_neighbours_are_asked_for() -> None:
    found = knn(clusters(9, 4), clusters(5, 1), seed=0)
    assert tuple(found.validation) == (1, 5)


def test_a_class_of_one_row_can_be_fitted() -> None:
    rows = clusters(40, 0, classes=2)
    labels = rows.labels.copy()
    labels[7] = 2
    assert linear_probe(Labelled(rows.features, labels), rows, seed=0).accuracy > 0.9


@pytest.mark.parametrize("probe", PROBES)
def test_what_cannot_be_probed_is_refused(probe) -> None:
    rows = clusters(20, 0)
    with pytest.raises(UserError, match=r"two classes, and the 20 training .* of 1: .*--data.root"):
        probe(Labelled(rows.features, np.full(20, 4)), rows, seed=0)
    with pytest.raises(UserError, match=r"--data.heldout"):
        probe(rows, Labelled(rows.features[:0], rows.labels[:0]), seed=0)
    two = Labelled(rows.features[:2], np.array([0, 1]))
    with pytest.raises(UserError, match="2 are too few"):
        probe(two, rows, seed=0)
    with pytest.raises(UserError, match="None of the 20 held-out examples"):
        probe(rows, Labelled(rows.features, rows.labels + 3), seed=0)


@pytest.mark.parametrize("probe", PROBES)
def test_rows_of_unknown_classes_are_counted_and_many_classes_are_fitted_in_silence(probe) -> None:
    rows, other = clusters(60, 0), clusters(60, 1)
    some = np.where(np.arange(60) < 15, 9, other.labels)
    assert probe(rows, other, seed=0).unknown == 0
    assert probe(rows, Labelled(other.features, some), seed=0).unknown == 0.25
    each = Labelled(rows.features, np.arange(60))
    assert probe(each, each, seed=0).unknown == 0  # warnings are errors here
