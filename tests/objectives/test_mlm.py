"""The objective: what is counted, what leaks, and what a row without targets gives."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from mlmjax.core import prng
from mlmjax.core.errors import UserError
from mlmjax.core.types import Batch, Context, Loss
from mlmjax.corruption import TokenCorruption
from mlmjax.data.text import TextData
from mlmjax.losses import full_cross_entropy
from mlmjax.masking import LinearRatio, SpanSelection, TokenSelection, WordSelection
from mlmjax.models.bert import Bert
from mlmjax.nn.attention import Visibility
from mlmjax.objectives.hiding import Masked
from mlmjax.objectives.mlm import MaskedLanguageModel
from tests.objectives.examples import LENGTH, MODEL, VOCABULARY, alone, model, packed


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
        "sentence_starts": jnp.asarray(tokens % 7 == 0),
        "frequency": jnp.asarray(np.where(tokens < 5, 0, tokens / 4000), jnp.float32),
        "segments": jnp.zeros(tokens.shape, jnp.int32),
        "id": jnp.stack([jnp.zeros(rows), ids], 1).astype(jnp.uint32),
        "epoch": jnp.full(rows, epoch, jnp.int32),
        "is_next": jnp.asarray(ids % 2, jnp.int32),
    }


@partial(jax.jit, static_argnums=0)
def mask(objective: MaskedLanguageModel, batch: Batch, context: Context) -> Masked:
    return objective.mask(batch, context)


def loss(objective: MaskedLanguageModel, batch: Batch, **context: object) -> Loss:
    return nnx.jit(lambda model: objective(model, batch, Context.of(0, **context)))(model())


def figures(found: Loss) -> dict[str, float]:
    return {name: float(metric.value()) for name, metric in found.metrics.items()}


def test_the_loss_is_cross_entropy_over_the_targets_alone() -> None:
    rows, chosen = batch(), objective(corruption=TokenCorruption(mask=1.0, random=0.0, keep=0.0))
    masked = mask(chosen, rows, Context.of(0))
    corrupted = jnp.where(masked.mask.dense(LENGTH) > 0, 4, rows["tokens"])
    np.testing.assert_array_equal(masked.corrupted.tokens, corrupted)

    @nnx.jit
    def losses(model: Bert) -> jax.Array:
        hidden = model.encode(corrupted, rows["segments"], Visibility(rows["valid"])).hidden
        table, bias = model.token.embedding[...], model.mlm.bias[...]
        features, labels = model.mlm(hidden).reshape(-1, 16), rows["tokens"].reshape(-1)
        return full_cross_entropy(features, table, bias, labels, vocabulary=90).loss

    by_token = losses(model()).reshape(rows["tokens"].shape)
    weight = masked.mask.dense(LENGTH)
    by_row = (by_token * weight).sum(1) / weight.sum(1)
    wanted = {
        "token_mean": (by_token * weight).sum() / weight.sum(),
        "sequence_mean": by_row.mean(),
    }
    every = [chosen.updated(denominator=name) for name in wanted]
    found = nnx.jit(lambda model: [one(model, rows, Context.of(0)).value() for one in every])(
        model()
    )
    np.testing.assert_allclose(found, list(wanted.values()), rtol=1e-5)


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
    hide = mask(chosen, rows, Context.of(0)).mask.dense(LENGTH) > 0
    other = {**rows, "tokens": jnp.where(hide, (rows["tokens"] - 5 + 7) % 85 + 5, rows["tokens"])}
    first, second = (mask(chosen, each, Context.of(0)) for each in (rows, other))
    np.testing.assert_array_equal(first.corrupted.tokens, second.corrupted.tokens)
    np.testing.assert_array_equal(first.mask.positions, second.mask.positions)
    assert not np.array_equal(first.targets, second.targets)


@pytest.mark.parametrize("selection", [TokenSelection(), WordSelection(), SpanSelection()])
def test_masks_depend_on_seed_epoch_and_id_alone(selection: object) -> None:
    chosen = objective(selection=selection)
    rows = mask(chosen, batch(8), Context.of(0))
    later = mask(chosen, batch(8, first=4), Context.of(0, step=77, training=True))
    first, second = jax.device_get((rows, later))
    chex.assert_trees_all_equal(
        jax.tree.map(lambda each: each[4:], first), jax.tree.map(lambda each: each[:4], second)
    )
    for other in (
        mask(chosen, batch(8), Context.of(1)),
        mask(chosen, batch(8, epoch=1), Context.of(0)),
    ):
        assert not np.array_equal(rows.mask.positions, other.mask.positions)


def test_static_masks_repeat_after_their_number() -> None:
    chosen = objective(static_masks=2)
    drawn = [mask(chosen, batch(8, epoch=e), Context.of(0)).mask.positions for e in range(4)]
    np.testing.assert_array_equal(drawn[0], drawn[2])
    np.testing.assert_array_equal(drawn[1], drawn[3])
    assert not np.array_equal(drawn[0], drawn[1])


def test_rows_without_an_eligible_token_give_loss_and_gradient_zero() -> None:
    without = {**batch(3), "valid": jnp.zeros((3, LENGTH), bool)}
    graph, parameters = nnx.split(model())

    @jax.jit
    @jax.value_and_grad
    def value(parameters: nnx.State, rows: Batch) -> jax.Array:
        return objective()(nnx.merge(graph, parameters), rows, Context.of(0)).value()

    for empty in (batch(3, used=2), without):
        found, gradient = value(parameters, empty)
        assert float(found) == 0
        assert all(not leaf.any() for leaf in jax.tree.leaves(gradient))


def test_packed_documents_give_the_loss_of_rows_of_their_own() -> None:
    """By either denominator, and all metrics but that of visible tokens, of which there is one a row."""
    names = ("token_mean", "sequence_mean")
    choices = [objective(denominator=name, span_boundary=True) for name in names]
    graph, parameters = nnx.split(model())

    def losses(parameters: nnx.State, batch: Batch) -> tuple[jax.Array, list[Loss]]:
        found = [each(nnx.merge(graph, parameters), batch, Context.of(0)) for each in choices]
        return found[0].value() + found[1].value(), found

    value = jax.jit(jax.value_and_grad(losses, has_aux=True))
    (_, together), _ = value(parameters, packed([[9], [8, 7], [6, 5, 4], [3, 2, 1, 0]]))
    _, apart = jax.jit(losses)(parameters, alone())
    for found, wanted in zip(together, apart, strict=True):
        for name, term in found.terms.items():
            assert float(term.weight) == float(wanted.terms[name].weight)
        found, wanted = figures(found), figures(wanted)
        del found["visible_loss"], wanted["visible_loss"]
        assert found == pytest.approx(wanted, rel=1e-5, nan_ok=True)
    (nothing, _), gradient = value(parameters, packed([[], [], [], []]))
    assert float(nothing) == 0
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
        ({"next_sentence": True}, {"length": 24, "layout": "packed"}, "--data.layout pairs"),
    ],
)
def test_data_that_do_not_fit_are_refused(choices: dict, data: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        objective(**choices).check(MODEL, TextData(**data).spec())


def test_the_work_counts_every_target_of_a_head() -> None:
    """Forward and backward: three times the products with K targets a row, more in packed rows."""
    small, packed_spec = TextData(length=24).spec(), TextData(length=24, layout="packed").spec()
    rows, head = small["tokens"].shape[0], 2 * 16 * (16 + 90)
    plain = objective().work(MODEL, small).flops
    packed_rows = objective().work(MODEL, packed_spec).flops
    capacity = objective().capacity(24, packed_spec["document_ids"].shape[1])
    assert objective().capacity(24) == 4
    assert plain == 3 * rows * (MODEL.flops(24) + 4 * head)
    assert packed_rows == 3 * rows * (MODEL.flops(24) + capacity * head)
    boundary = objective(span_boundary=True).work(MODEL, small).flops
    assert boundary - plain == 3 * rows * 4 * (head + 2 * 16 * (2 * 16 + 200))
