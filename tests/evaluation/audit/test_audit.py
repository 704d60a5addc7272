"""The audit of masks: its figures against the masks themselves, and every must, broken on purpose."""

import json
from functools import cache, partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlmjax.core.types import Context, Mask
from mlmjax.core.vocabulary import Vocabulary
from mlmjax.corruption import Corrupted, Kind, TokenCorruption
from mlmjax.evaluation.audit.lexicon import Lexicon
from mlmjax.evaluation.audit.masks import Examples, audit_masks
from mlmjax.evaluation.audit.spans import drawn_spans
from mlmjax.masking import LinearRatio, SpanSelection, select_tokens
from mlmjax.objectives.mlm import MaskedLanguageModel

LENGTH, ROWS, SIZE, DOCUMENTS = 48, 32, 40, 6
VOCABULARY = Vocabulary(
    size=SIZE, padding=0, unknown=1, start=2, separator=3, mask=4, special=(0, 1, 2, 3, 4)
)
TEXTS = ["", "", "", "", "", ".", ",", "7", "19", *(f"word{i}" for i in range(9, SIZE))]


def rows_of(number, *, packed=False):
    """A batch of rows whose padding differs, with ids of their own."""
    draw = np.random.default_rng(number)
    shape = ROWS, LENGTH
    tokens = (5 + (SIZE - 5) * draw.random(shape) ** 2).astype(np.int32)
    used = draw.integers(LENGTH // 2, LENGTH + 1, (ROWS, 1))
    place = np.arange(LENGTH)
    documents = place // 8 if packed else np.zeros(LENGTH, int)
    tokens[:, np.diff(documents, prepend=-1) != 0] = VOCABULARY.start
    tokens[place == used - 1] = VOCABULARY.separator
    valid = place < used
    batch = {
        "tokens": np.where(valid, tokens, VOCABULARY.padding).astype(np.int32),
        "valid": valid,
        "word_starts": draw.random(shape) < 0.7,
        "sentence_starts": draw.random(shape) < 0.1,
        "segments": np.zeros(shape, np.int32),
        "frequency": np.full(shape, 0.01, np.float32),
        "id": np.stack([np.zeros(ROWS), number * ROWS + np.arange(ROWS)], axis=-1).astype(
            np.uint32
        ),
        "epoch": np.zeros(ROWS, np.int32),
    }
    if packed:
        batch["documents"] = np.where(valid, documents, DOCUMENTS).astype(np.int32)
        batch["document_ids"] = draw.integers(2**32, size=(ROWS, DOCUMENTS, 2), dtype=np.uint32)
    return batch


def examples(batches=4, *, epochs=2, last=ROWS, packed=False):
    for number in range(batches):
        batch = rows_of(number, packed=packed)
        later = [{**batch, "epoch": batch["epoch"] + np.int32(epoch)} for epoch in range(epochs)]
        yield Examples(later, last if number == batches - 1 else ROWS)


def lexicon():
    counts = np.zeros(SIZE, np.int64)
    counts[5:] = np.arange(SIZE - 5, 0, -1)
    return Lexicon(VOCABULARY, [f"<{text}>" for text in TEXTS], TEXTS, counts)


def audited(objective, data=None, **settings):
    data = examples() if data is None else data
    objective = objective.fitted(VOCABULARY)
    return audit_masks(objective, data, lexicon=lexicon(), seed=5, **settings)


PLAIN = MaskedLanguageModel(selection=SpanSelection(ratio=0.3, longest=2))


@cache
def plain():
    """The figures of an ordinary objective; of the last batch, seven rows count."""
    return audited(PLAIN, examples(last=7))


def masks(objective, *, last=7, epochs=2):
    """What training would draw, row by row: batch, mask as places, and what is seen."""
    draw = jax.jit(objective.fitted(VOCABULARY).mask)
    for one in examples(last=last, epochs=epochs):
        for batch in one.epochs:
            masked = draw(batch, Context.of(5))
            for row in range(one.count):
                chosen = np.asarray(masked.mask.positions[row])[masked.mask.weight[row] > 0]
                yield {n: v[row] for n, v in batch.items()}, chosen, masked.corrupted.tokens[row]


def test_figures_are_those_of_the_masks_that_training_draws():
    found, drawn = plain(), list(masks(PLAIN))
    assert (found.examples, found.epochs, found.length) == (3 * ROWS + 7, 2, LENGTH)
    targets = [len(chosen) for _, chosen, _ in drawn]
    valid = sum(row["valid"].sum() for row, _, _ in drawn)
    eligible = sum((row["tokens"] > 4).sum() for row, _, _ in drawn)
    assert (found.selected.targets, found.selected.valid) == (sum(targets), valid)
    assert found.selected.of_eligible == pytest.approx(sum(targets) / eligible)
    assert found.selected.of_valid == pytest.approx(sum(targets) / valid)
    assert (found.targets.least, found.targets.most) == (min(targets), max(targets))
    assert found.full == sum(one == found.capacity for one in targets)
    at = np.bincount(np.concatenate([chosen for _, chosen, _ in drawn]), minlength=LENGTH)
    shares = np.array([one or 0 for one in found.positions.selected])
    assert shares * found.positions.eligible == pytest.approx(at)
    masked = sum((np.asarray(seen)[chosen] == VOCABULARY.mask).sum() for _, chosen, seen in drawn)
    assert found.corruption.fates[0].count == masked
    assert sum(fate.of_targets for fate in found.corruption.fates) == pytest.approx(1)
    assert sum(fate.of_valid for fate in found.corruption.fates) == pytest.approx(
        found.selected.of_valid
    )
    assert found.corruption.p > 1e-4
    spans, whole, tokens, words = found.lengths
    assert spans.mean * sum(spans.counts) == pytest.approx(words.mean * sum(words.counts))
    assert tokens.mean * sum(tokens.counts) == pytest.approx(sum(targets))
    assert words.mean * sum(words.counts) == pytest.approx(found.words.count)
    assert 0 < sum(whole.counts) < sum(spans.counts)
    assert found.words.split == 0
    assert not found.broken


def test_tokens_by_kind_and_frequency():
    found, drawn = plain(), list(masks(PLAIN))
    chosen = np.concatenate([row["tokens"][places] for row, places, _ in drawn])
    kinds = {group.name: group for group in found.kinds}
    assert kinds["punctuation"].of_targets == pytest.approx(np.isin(chosen, (5, 6)).mean())
    assert kinds["number"].of_targets == pytest.approx(np.isin(chosen, (7, 8)).mean())
    assert kinds["number"].examples == ("<7>", "<19>")
    for groups in (found.kinds, found.frequency):
        assert sum(group.of_targets for group in groups) == pytest.approx(1)
        assert sum(group.of_eligible for group in groups) == pytest.approx(1)
    assert np.unique(lexicon().bands[5:]).tolist() == list(range(10))
    assert (np.diff(lexicon().bands[5:]) >= 0).all()
    counts = np.bincount(chosen, minlength=SIZE)
    assert found.most_selected[0].token == f"<{TEXTS[counts.argmax()]}>"
    assert found.most_selected[0].targets == counts.max()


def spans_and_units(objective, batch, *, step):
    """Lengths of the spans of each row, and the number of tokens in its mask."""
    context = Context.of(5, step=step)
    spans = jax.jit(partial(drawn_spans, objective))(batch, context)
    mask = jax.jit(objective.mask)(batch, context).mask
    return zip(np.asarray(spans.length), np.asarray(mask.weight).sum(axis=1), strict=True)


def test_spans_in_packed_rows_with_a_schedule_and_static_masks():
    objective = MaskedLanguageModel(
        selection=SpanSelection(ratio=0.4, unit="tokens", longest=2),
        ratio_schedule=LinearRatio(start=0.5, steps=100, end=0.3),
        static_masks=2,
    ).fitted(VOCABULARY)
    for length, units in spans_and_units(objective, rows_of(0, packed=True), step=50):
        assert length.sum() == units
    found = audited(objective, examples(packed=True, epochs=3), step=50)
    assert (found.selected.asked, found.selected.highest) == pytest.approx((0.4, 0.5))
    assert found.selected.of_eligible == pytest.approx(0.4, abs=0.05)
    assert found.documents.examples > 4.5 * found.examples * found.epochs
    assert found.documents.without == 0
    assert found.documents.most == 3
    spans, whole = found.lengths[:2]
    assert (spans.what, whole.what) == ("spans", "whole spans")
    assert len(spans.counts) == len(spans.asked) == 2
    assert 0 < sum(whole.counts) < sum(spans.counts)
    assert whole.p > 1e-4
    # The third epoch has the masks of the first.
    assert (found.by_choice.identical, found.by_choice.compared) == (4 * ROWS, 4 * ROWS)
    # Documents of seven tokens have few masks: they repeat as often as chance has it.
    assert found.between_examples.identical > 1000
    assert found.between_epochs.identical > 10
    assert not found.broken


class Wrong(SpanSelection):
    """Selects special tokens and padding, one token twice, parts of words, and nothing in some rows."""

    at_least_one: bool = True
    whole_words: ClassVar[bool] = True

    def __call__(self, key, row, *, ratio=None, capacity=None, step=0):
        mask = select_tokens(key, jnp.ones_like(row.eligible), ratio=0.2, capacity=capacity)
        positions = mask.positions.at[1].set(mask.positions[0]).at[2].set(LENGTH)
        return Mask(positions, mask.weight * row.word_starts[5])


class Leaky(TokenCorruption):
    """Also changes a token that nobody predicts, and draws special tokens."""

    def __call__(self, key, tokens, mask, vocabulary):
        seen = super().__call__(key, tokens, mask, vocabulary)
        random = jnp.where(seen.kind == Kind.RANDOM, mask.positions, tokens.size)
        shown = seen.tokens.at[random].set(vocabulary.separator, mode="drop")
        return Corrupted(shown.at[0].set(vocabulary.mask), seen.kind)


class OneKey(MaskedLanguageModel):
    """Leaves the example's id and the epoch out of its keys."""

    def mask(self, batch, context):
        same = {name: jnp.zeros_like(batch[name]) for name in ("id", "epoch")}
        return super().mask({**batch, **same}, context)


def test_every_must_can_break():
    found = audited(OneKey(selection=Wrong(), corruption=Leaky(mask=0.4, random=0.4, keep=0.2)))
    names = {must.name for must in found.broken}
    assert names == {must.name for must in found.musts} - {"same mask under another key"}
    assert len(names) == 10
    assert all(str(must).startswith(f"{must.name}: {must.found}") for must in found.broken)


def test_figures_are_json():
    text = json.dumps(plain().as_json(), allow_nan=False)
    found = json.loads(text)
    assert found["kept"] is True
    assert found["selected"]["targets"] == plain().selected.targets
    assert found["positions"]["selected"][0] is None
    assert [must["name"] for must in found["musts"]] == [must.name for must in plain().musts]
