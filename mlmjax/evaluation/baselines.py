"""What a model must beat: guesses that read no context."""

from collections.abc import Iterable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from mlmjax.core.types import Context
from mlmjax.objectives.mlm import MaskedLanguageModel


class Majority(NamedTuple):
    """The figures of guessing a class by frequency.

    Attributes:
        loss: cross-entropy of the training frequencies (nats an example; one is added to each count).
        accuracy: share of the held-out examples that are of the most frequent training class.
        unknown: share of those that are of a class of which there is no training example.
    """

    loss: float
    accuracy: float
    unknown: float


def majority(train: Int[np.ndarray, " classes"], heldout: Int[np.ndarray, " classes"]) -> Majority:
    """Guess each held-out example by the frequency of the classes in training.

    Args:
        train: training examples of each class.
        heldout: held-out examples of each class; at least one in all.
    """
    smoothed = train + 1.0
    shares = heldout / heldout.sum()
    loss = -(shares * np.log(smoothed / smoothed.sum())).sum()
    return Majority(float(loss), float(shares[train.argmax()]), float(shares[train == 0].sum()))


class Unigram(NamedTuple):
    """The figures of guessing by frequency.

    Attributes:
        loss: cross-entropy of the training frequencies (nats a target; one is added to each count).
        accuracy: share of targets that are the most frequent training token.
    """

    loss: float
    accuracy: float


def unigram(
    objective: MaskedLanguageModel,
    batches: Iterable[dict[str, np.ndarray]],
    *,
    counts: np.ndarray,
    context: Context,
) -> Unigram:
    """The unigram baseline on exactly the targets that the model is judged on.

    Args:
        objective: fitted; it draws the masks.
        batches: held-out rows.
        counts: of each token in the training rows, specials 0 [vocabulary].
        context: of the held-out masks.
    """
    smoothed = counts + 1.0
    if objective.vocabulary is not None:
        smoothed[list(objective.vocabulary.special)] = 0
    with np.errstate(divide="ignore"):
        log_probability = np.log(smoothed / smoothed.sum())
    mask = jax.jit(objective.mask)
    loss = correct = targets = 0.0
    for batch in batches:
        masked = mask(batch, context)
        chosen = np.asarray(masked.targets)[np.asarray(masked.mask.weight) > 0]
        loss -= log_probability[chosen].sum()
        correct += (chosen == counts.argmax()).sum()
        targets += chosen.size
    return Unigram(float(loss / max(targets, 1)), float(correct / max(targets, 1)))
