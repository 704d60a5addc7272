"""An audit of masks: what a selection and a corruption do to real examples, without a model.

The masks are those that training would draw: the same seed, epochs and ids. Beside them, each example is masked
once more in each epoch under a key of its own that owes nothing to the run's: the reference of what chance repeats.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Int, Key, UInt32

from mlmjax.core import prng
from mlmjax.core.types import Batch, Context, Mask
from mlmjax.data.draws import words
from mlmjax.evaluation.audit.counters import Drawn
from mlmjax.evaluation.audit.figures import Figures
from mlmjax.evaluation.audit.lexicon import Lexicon
from mlmjax.evaluation.audit.spans import drawn_spans
from mlmjax.evaluation.audit.tally import Asked, Tally
from mlmjax.masking import SpanLaw
from mlmjax.objectives.mlm import MaskedLanguageModel


@dataclass(frozen=True)
class Examples:
    """The same examples in one epoch after the other.

    Attributes:
        epochs: a batch of each epoch, as the pipeline gives them.
        count: rows that are examples; those behind them only fill the batch.
    """

    epochs: Sequence[dict[str, np.ndarray]]
    count: int


def audit_masks(
    objective: MaskedLanguageModel,
    batches: Iterable[Examples],
    *,
    lexicon: Lexicon,
    seed: int,
    step: int = 0,
) -> Figures:
    """The figures of the masks that training draws for some examples.

    Args:
        objective: fitted; it draws the masks.
        batches: the examples, all of one length.
        lexicon: of the vocabulary.
        seed: the run's.
        step: at which the ratio is taken.
    """
    draw, tally = _Draw(objective, seed, step), Tally(lexicon, Asked.of(objective, seed, step))
    for examples in batches:
        number = tally.examples + np.arange(len(examples.epochs[0]["tokens"]))
        epochs = range(len(examples.epochs))
        tally.add(
            [draw.run(examples, epoch) for epoch in epochs],
            [draw.reference(examples, epoch, number) for epoch in epochs],
        )
    return tally.figures()


class _Draw:
    """Masks examples: as the run does, and under keys of the audit's own."""

    def __init__(self, objective: MaskedLanguageModel, seed: int, step: int):
        assert objective.vocabulary is not None
        self._special = np.asarray(objective.vocabulary.special)
        self._context = Context.of(seed, step=step)
        self._mask = jax.jit(objective.mask)
        self._apart = jax.jit(partial(apart, lambda *drawn: objective.mask(*drawn).mask))
        has_spans = isinstance(objective.selection, SpanLaw)
        self._spans = jax.jit(partial(drawn_spans, objective)) if has_spans else None

    def reference(
        self, examples: Examples, epoch: int, number: Int[np.ndarray, " batch"]
    ) -> Bool[np.ndarray, "examples length"]:
        """The masks of examples with these numbers under keys that owe nothing to ids and epochs."""
        batch = examples.epochs[epoch]
        mask = self._apart(batch, self._context, words(number), np.full(len(number), epoch))
        selected = np.zeros((examples.count, batch["tokens"].shape[1]), bool)
        row, _, position = places(mask, length=selected.shape[1], count=examples.count)
        selected[row, position] = True
        return selected

    def run(self, examples: Examples, epoch: int) -> Drawn:
        """The masks that the run draws."""
        batch, count = examples.epochs[epoch], examples.count
        masked = jax.tree.map(np.asarray, self._mask(batch, self._context))
        length, whole = None, None
        if self._spans:
            length, whole = (np.asarray(one)[:count] for one in self._spans(batch, self._context))
        rows: dict[str, np.ndarray] = {name: value[:count] for name, value in batch.items()}
        tokens, valid, mask = rows["tokens"], rows["valid"], masked.mask
        row, place, position = places(mask, length=tokens.shape[1], count=count)
        times, kind = np.zeros(tokens.shape, np.int32), np.full(tokens.shape, -1)
        np.add.at(times, (row, position), 1)
        kind[row, position] = masked.corrupted.kind[row, place]
        return Drawn(
            tokens=tokens,
            valid=valid,
            eligible=valid & ~np.isin(tokens, self._special),
            word_starts=rows["word_starts"],
            times=times,
            outside=int((mask.weight[:count] > 0).sum()) - row.size,
            seen=np.asarray(masked.corrupted.tokens)[:count],
            kind=kind,
            document=np.where(valid, rows.get("documents", 0), -1),
            packed="documents" in rows,
            capacity=mask.positions.shape[1],
            spans=None if length is None else length[length > 0],
            whole_spans=None if length is None else length[whole],
        )


class Places(NamedTuple):
    """The places of masks that hold a token of the row."""

    row: Int[np.ndarray, " targets"]
    place: Int[np.ndarray, " targets"]
    position: Int[np.ndarray, " targets"]


def places(mask: Mask, *, length: int, count: int) -> Places:
    """Those of the first ``count`` rows, of ``length`` tokens each."""
    positions, weight = np.asarray(mask.positions)[:count], np.asarray(mask.weight)[:count]
    row, place = np.nonzero((weight > 0) & (positions >= 0) & (positions < length))
    return Places(row, place, positions[row, place])


def apart(
    draw: Callable[[Batch, Context], Mask],
    batch: Batch,
    context: Context,
    number: UInt32[Array, "batch 2"],
    epoch: Int[Array, " batch"],
) -> Mask:
    """The masks that each row has under a root key of its own.

    Args:
        draw: gives the masks of a batch.
        batch: the rows.
        context: gives the seed that the keys derive from, and the step.
        number: of each example, as two words.
        epoch: of each.
    """
    keys = prng.per_example(prng.stream(context.seed, "audit"), epoch, number)

    def one(row: dict[str, Array], key: Key[Array, ""]) -> Mask:
        alone = {name: value[None] for name, value in row.items()}
        return jax.tree.map(lambda each: each[0], draw(alone, replace(context, seed=key)))

    return jax.vmap(one)(dict(batch), keys)
