"""The objective: what is counted, what leaks, and what a row without targets gives."""

from functools import cache

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from mlmjax.core import prng
from mlmjax.core.errors import UserError
from mlmjax.core.types import Batch, Context, Loss
from mlmjax.core.vocabulary import Vocabulary
from mlmjax.corruption import TokenCorruption
from mlmjax.data.text import TextData
from mlmjax.losses import full_cross_entropy
from mlmjax.masking import LinearRatio, SpanSelection, TokenSelection, WordSelection
from mlmjax.models.bert import Bert, BertConfig
from mlmjax.nn.attention import Visibility
from mlmjax.objectives.mlm import MaskedLanguageModel

VOCABULARY = Vocabulary(
    size=90, padding=0, unknown=1, start=2, separator=3, mask=4, special=(0, 1, 2, 3, 4)
)
MODEL = BertConfig(vocabulary=90, layers=1, hidden=16, heads=2, mlp=32, positions=24)
LENGTH = 24


@cache
def model() -> Bert:
    return nnx.jit(lambda: MODEL.build(nnx.Rngs(params=0)))()


def objective(**choices: object) -> MaskedLanguageModel:
    return MaskedLanguageModel(**{"chunk": 32, **choices}).fitted(VOCABULARY)


def batch(rows: int = 6, *, first: int = 0, used: int = LENGTH, epoch: int = 0) -> Batch:
    """Rows whose content depends on their id alone, each with ``used`` tokens."""
    ids = np.arange(first, first + rows)
    tokens = np.stack([np.random.default_rng(i).integers(5, 90, LENGTH) for i in ids])
    tokens[:, 0], tokens[:, used - 1 :] = 2, 3
    tokens[:, used:] = 0
    valid = np.broadcast_to(np.arange(LENGTH) < used, tokens.shape)
    return {
        "tokens": jnp.asarray(tokens, jnp.int32),
        "valid": jnp.asarray(valid),
        "word_starts": jnp.asarray(tokens % 3 != 0),
        "segments": jnp.zeros(tokens.shape, jnp.int32),
        "id": jnp.stack([jnp.zeros(rows), ids], 1).astype(jnp.uint32),
        "epoch": jnp.full(rows, epoch, jnp.int32),
        "is_next": jnp.asarray(ids % 2, jnp.int32),
    }


def loss(objective: MaskedLanguageModel, batch: Batch, **context: object) -> Loss:
    return nnx.jit(lambda model: objective(model, batch, Context.of(0, **context)))(model())


def figures(found: Loss) -> dict[str, float]:
    return {name: float(metric.value()) for name, metric in found.metrics.items()}


def test_the_loss_is_cross_entropy_over_the_targets_alone() -> None:
    rows, chosen = batch(), objective(corruption=TokenCorruption(mask=1.0, random=0.0, keep=0.0))
    masked = chosen.mask(rows, Context.of(0))
    corrupted = jnp.where(masked.mask.dense(LENGTH) > 0, 4, rows["tokens"])
    np.testing.assert_array_equal(masked.corrupted.tokens, corrupted)
    hidden = model().encode(corrupted, rows["segments"], Visibility(rows["valid"])).hidden
    every = full_cross_entropy(
        model().mlm(hidden).reshape(-1, 16),
        model().token.embedding[...],
        model().mlm.bias[...],
        rows["tokens"].reshape(-1),
        vocabulary=90,
    ).loss.reshape(rows["tokens"].shape)
    weight = masked.mask.dense(LENGTH)
    by_row = (every * weight).sum(1) / weight.sum(1)
    wanted = {"token_mean": (every * weight).sum() / weight.sum(), "sequence_mean": by_row.mean()}
    for denominator, value in wanted.items():
        found = loss(chosen.updated(denominator=denominator), rows)
        assert float(found.value()) == pytest.approx(float(value), rel=1e-5)


def test_metrics_add_up() -> None:
    found = figures(loss(objective(), batch(64)))
    parts = ("masked", "random", "kept")
    assert sum(found[f"{part}_share"] for part in parts) == pytest.approx(1)
    by_kind = sum(found[f"{part}_share"] * found[f"{part}_loss"] for part in parts)
    assert by_kind == pytest.approx(found["mask_loss"], rel=1e-5)
    assert found["masked_share"] == pytest.approx(0.8, abs=0.08)
    assert found["selected_share"] == pytest.approx(3 / 22)
    assert found["mask_ratio"] == pytest.approx(0.15)
    assert found["position_variance"] > 0


def test_masked_tokens_cannot_be_read() -> None:
    """Where [MASK] or a random token stands, the true token moves nothing but its own loss."""
    corruption = TokenCorruption(mask=0.9, random=0.1, keep=0.0)
    chosen, rows = objective(corruption=corruption), batch(4)
    hide = chosen.mask(rows, Context.of(0)).mask.dense(LENGTH) > 0
    other = {**rows, "tokens": jnp.where(hide, (rows["tokens"] - 5 + 7) % 85 + 5, rows["tokens"])}
    first, second = (chosen.mask(each, Context.of(0)) for each in (rows, other))
    np.testing.assert_array_equal(first.corrupted.tokens, second.corrupted.tokens)
    np.testing.assert_array_equal(first.mask.positions, second.mask.positions)
    assert not np.array_equal(first.targets, second.targets)


@pytest.mark.parametrize("selection", [TokenSelection(), WordSelection(), SpanSelection()])
def test_masks_depend_on_seed_epoch_and_id_alone(selection: object) -> None:
    chosen = objective(selection=selection)
    rows = chosen.mask(batch(8), Context.of(0))
    later = chosen.mask(batch(4, first=4), Context.of(0, step=77, training=True))
    chex.assert_trees_all_equal(jax.tree.map(lambda each: each[4:], rows), later)
    for other in (
        chosen.mask(batch(8), Context.of(1)),
        chosen.mask(batch(8, epoch=1), Context.of(0)),
    ):
        assert not np.array_equal(rows.mask.positions, other.mask.positions)


def test_static_masks_repeat_after_their_number() -> None:
    chosen = objective(static_masks=2)
    drawn = [chosen.mask(batch(8, epoch=e), Context.of(0)).mask.positions for e in range(4)]
    np.testing.assert_array_equal(drawn[0], drawn[2])
    np.testing.assert_array_equal(drawn[1], drawn[3])
    assert not np.array_equal(drawn[0], drawn[1])


def test_rows_without_an_eligible_token_give_loss_and_gradient_zero() -> None:
    for empty in (batch(3, used=2), {**batch(3), "valid": jnp.zeros((3, LENGTH), bool)}):
        graph, parameters = nnx.split(model())

        def value(parameters: nnx.State, rows: Batch = empty, graph: object = graph) -> jax.Array:
            return objective()(nnx.merge(graph, parameters), rows, Context.of(0)).value()

        found, gradient = jax.jit(jax.value_and_grad(value))(parameters)
        assert float(found) == 0
        assert all(not leaf.any() for leaf in jax.tree.leaves(gradient))


def test_next_sentence_has_a_denominator_of_its_own() -> None:
    rows = batch()
    rows = {**rows, "valid": rows["valid"].at[5].set(False)}
    found = loss(objective(next_sentence=True), rows)
    assert set(found.terms) == {"mask_loss", "next_sentence_loss"}
    assert float(found.terms["next_sentence_loss"].weight) == 5
    values = figures(found)
    assert float(found.value()) == pytest.approx(values["mask_loss"] + values["next_sentence_loss"])


def test_a_ratio_schedule_moves_the_share_within_one_compile() -> None:
    schedule = LinearRatio(start=0.1, end=0.5, steps=100)
    chosen = objective(ratio_schedule=schedule)
    traces = []

    @nnx.jit
    def share(model: Bert, step: jax.Array) -> jax.Array:
        traces.append(step)
        context = Context(prng.root(0), step, jnp.int32(0), training=False)
        return chosen(model, batch(), context).metrics["selected_share"].value()

    found = [float(share(model(), jnp.int32(step))) for step in (0, 50, 100, 400)]
    assert found == pytest.approx([2 / 22, 7 / 22, 11 / 22, 11 / 22])
    assert len(traces) == 1


def test_dropout_differs_by_step_and_micro_batch() -> None:
    context = Context.of(0, training=True)
    keys = [
        jax.random.key_data(Context(context.seed, jnp.int32(s), jnp.int32(p)).dropout_key())
        for s in (0, 1)
        for p in (0, 1)
    ]
    assert len({tuple(np.asarray(key)) for key in keys}) == 4
    assert Context.of(0).dropout_key() is None


@pytest.mark.parametrize(
    ("choices", "data", "sentence"),
    [
        ({}, {"length": 32}, "--data.length to at most 24"),
        ({"next_sentence": True}, {"length": 24}, "--data.layout pairs"),
    ],
)
def test_data_that_do_not_fit_are_refused(choices: dict, data: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        objective(**choices).check(MODEL, TextData(**data).spec())
