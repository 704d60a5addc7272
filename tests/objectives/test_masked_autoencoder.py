"""The objective on images: what is counted, what leaks, and what a batch without images gives."""

from collections.abc import Callable
from functools import cache, partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from mlmjax.core.errors import UserError
from mlmjax.core.types import Batch, Context, Loss
from mlmjax.corruption import PatchCorruption
from mlmjax.masking import BlockPatches, GridPatches, LinearRatio, RandomPatches, StagedRatio
from mlmjax.models.base import ModelConfig
from mlmjax.models.mae import DecoderConfig, Mae, MaeConfig
from mlmjax.models.vit import VitConfig
from mlmjax.objectives.mae import HiddenPatches, MaskedAutoencoder
from mlmjax.sharding import MeshConfig, batch_sharding, parameter_shardings
from mlmjax.targets import (
    PixelScale,
    PixelTarget,
    denormalise_patches,
    patch_statistics,
    unpatchify,
)
from mlmjax.training.state import plain
from mlmjax.training.step import loss_and_gradient

GRID, PATCH = (4, 6), (3, 2)
PATCHES = 24
MODEL = MaeConfig(
    encoder=VitConfig(
        layers=2,
        hidden=16,
        heads=2,
        mlp=32,
        image=(12, 12),
        patch=PATCH,
        channels=2,
        masked_vector=True,
    ),
    decoder=DecoderConfig(layers=1, hidden=8, heads=2, mlp=16),
)
LINEAR = MODEL.updated(decoder=None)
KINDS = ("drop", "vector", "zero", "noise", "swap")


@cache
def model(config: MaeConfig = MODEL) -> Mae:
    return nnx.jit(lambda: config.build(nnx.Rngs(params=0)))()


def batch(rows: int = 4, *, first: int = 0, epoch: int = 0, used: int | None = None) -> Batch:
    """Images whose content depends on their id alone; those from ``used`` on only fill the batch."""
    ids = np.arange(first, first + rows)
    images = [np.random.default_rng(n).integers(0, 256, (12, 12, 2), dtype=np.uint8) for n in ids]
    return {
        "pixels": jnp.asarray(np.stack(images)),
        "valid": jnp.arange(rows) < (rows if used is None else used),
        "id": jnp.asarray(np.stack([ids * 0, ids], 1), jnp.uint32),
        "epoch": jnp.full(rows, epoch, jnp.int32),
    }


def objective(kind: str = "drop", **choices: object) -> MaskedAutoencoder:
    return MaskedAutoencoder(corruption=PatchCorruption(kind=kind), **choices)


@nnx.jit(static_argnums=1)
def everything(
    model: Mae, chosen: MaskedAutoencoder, rows: Batch, context: Context
) -> tuple[HiddenPatches, jax.Array, Loss]:
    """In one compile for each objective, whatever a test reads of it."""
    hidden = chosen.mask(model, rows, context)
    return hidden, chosen.predict(model, hidden, context), chosen(model, rows, context)


def hide(*given: object) -> tuple[HiddenPatches, jax.Array]:
    return everything(*given)[:2]


def loss(*given: object) -> Loss:
    return everything(*given)[2]


def figures(found: Loss) -> dict[str, float]:
    return {name: float(metric.value()) for name, metric in found.metrics.items()}


def changed(pixels: jax.Array, masked: np.ndarray) -> jax.Array:
    """The images with other pixels in the given patches."""
    size = PATCH[0] * PATCH[1] * 2
    where = np.repeat(masked[..., None], size, axis=-1)
    at = unpatchify(jnp.asarray(where), PATCH, GRID)
    return jnp.where(at, 255 - pixels, pixels)


@pytest.mark.parametrize("kind", ["drop", "vector", "zero"])
def test_masked_patches_cannot_be_read(kind: str) -> None:
    """Their pixels do not move the prediction by one bit; those of any visible patch do."""
    chosen, rows, context = objective(kind), batch(), Context.of(0)
    hidden, prediction = hide(model(), chosen, rows, context)
    masked = np.asarray(hidden.mask.dense(PATCHES)) > 0
    assert (masked.sum(axis=1) == 18).all()
    other = {**rows, "pixels": changed(rows["pixels"], masked)}
    after, same = hide(model(), chosen, other, context)
    np.testing.assert_array_equal(same, prediction)
    assert not np.array_equal(after.targets[masked], hidden.targets[masked])
    for place in range(6):
        one = np.zeros_like(masked)
        np.put_along_axis(one, np.asarray(hidden.visible.positions)[:, place : place + 1], True, 1)
        moved = {**rows, "pixels": changed(rows["pixels"], one)}
        _, found = hide(model(), chosen, moved, context)
        assert (np.abs(found - prediction).max(axis=-1) > 0).all()


def test_no_image_is_seen_by_another() -> None:
    chosen, rows, context = objective(), batch(), Context.of(0)
    _, prediction = hide(model(), chosen, rows, context)
    other = {**rows, "pixels": rows["pixels"].at[1:].add(101)}
    np.testing.assert_array_equal(hide(model(), chosen, other, context)[1][0], prediction[0])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_in_sight_is_shown_as_it_is(kind: str) -> None:
    """Mask and visible patches are the two parts of an image; noise and swap show something else, not the truth."""
    hidden, _ = hide(model(), objective(kind), batch(), Context.of(0))
    masked = np.asarray(hidden.mask.dense(PATCHES)) > 0
    np.testing.assert_array_equal(np.asarray(hidden.visible.dense(PATCHES)) > 0, ~masked)
    np.testing.assert_array_equal(hidden.shown[~masked], hidden.patches[~masked])
    assert (np.asarray(hidden.shown)[masked] != np.asarray(hidden.patches)[masked]).all(-1).any()
    if kind == "swap":
        for shown, patches, at in zip(hidden.shown, hidden.patches, masked, strict=True):
            found, true = (np.sort(np.asarray(each)[at], axis=0) for each in (shown, patches))
            np.testing.assert_array_equal(found, true)


@pytest.mark.parametrize(
    ("error", "normalise", "over"), [("mean", True, "masked"), ("sum", False, "all")]
)
def test_the_loss_is_its_formula(error: str, normalise: bool, over: str) -> None:
    chosen = objective(error=error, over=over, target=PixelTarget(normalise=normalise))
    rows = batch(used=3)
    hidden, prediction = hide(model(), chosen, rows, Context.of(0))
    target = np.asarray(hidden.patches)
    if normalise:
        mean, std = target.mean(-1, keepdims=True), target.std(-1, keepdims=True, ddof=1)
        np.testing.assert_allclose(hidden.targets, (target - mean) / std, rtol=1e-3, atol=1e-4)
        target = np.asarray(hidden.targets)
    errors = getattr(np.square(np.asarray(prediction) - target), error)(axis=-1)
    masked = np.zeros((4, PATCHES), bool)
    np.put_along_axis(masked, np.asarray(hidden.mask.positions), True, axis=1)
    masked[3] = False
    found = loss(model(), chosen, rows, Context.of(0))
    counted = masked if over == "masked" else np.ones_like(masked) * (np.arange(4) < 3)[:, None]
    assert float(found.value()) == pytest.approx(errors[counted > 0].mean(), rel=1e-5)
    values = figures(found)
    assert values["mask_loss"] == pytest.approx(errors[masked].mean(), rel=1e-5)
    assert values["visible_loss"] == pytest.approx(errors[:3][~masked[:3]].mean(), rel=1e-5)
    assert values["selected_share"] == pytest.approx(0.75)
    assert values["mask_ratio"] == pytest.approx(0.75)
    if normalise:
        prediction = denormalise_patches(prediction, patch_statistics(hidden.patches))
    in_pixels = np.asarray(jnp.square(prediction - hidden.patches).mean(axis=-1))
    assert values["pixel_error"] == pytest.approx(in_pixels[masked].mean(), rel=1e-4)
    means = [errors[:, at][masked[:, at]].mean() for at in range(PATCHES) if masked[:, at].any()]
    weights = masked.sum(axis=0)[masked.any(axis=0)]
    variance = np.average((means - np.average(means, weights=weights)) ** 2, weights=weights)
    assert values["position_variance"] == pytest.approx(variance, rel=1e-3)


@cache
def gradient_of(chosen: MaskedAutoencoder, config: MaeConfig = MODEL) -> Callable:
    graph, parameters = nnx.split(model(config))

    @jax.jit
    def gradient(rows: Batch) -> tuple[jax.Array, nnx.State]:
        def value(parameters: nnx.State) -> jax.Array:
            return chosen(nnx.merge(graph, parameters), rows, Context.of(0)).value()

        return jax.value_and_grad(value)(parameters)

    return gradient


@pytest.mark.slow
def test_visible_patches_count_only_where_it_is_asked_for() -> None:
    """What is predicted of them moves the loss, and has a gradient, only then."""
    graph, parameters = nnx.split(model())

    @jax.jit
    @partial(jax.jacrev, has_aux=True)
    def slopes(shift: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
        class Shifted(MaskedAutoencoder):
            """Predicts something else where it looks."""

            def predict(self, model: Mae, hidden: HiddenPatches, context: Context) -> jax.Array:
                found = super().predict(model, hidden, context)
                seen = hidden.visible.dense(PATCHES)[..., None] > 0
                return jnp.where(seen, (1 + shift) * found + shift, found)

        values = [
            Shifted(over=over)(nnx.merge(graph, parameters), batch(), Context.of(0)).value()
            for over in ("masked", "all")
        ]
        return values, values

    (masked_slope, all_slope), (masked, over_all) = slopes(jnp.float32(0))
    (moved_slope, _), (moved, over_all_moved) = slopes(jnp.float32(2))
    assert float(masked) == float(moved)
    assert float(masked_slope) == float(moved_slope) == 0
    assert float(over_all) != float(over_all_moved)
    assert float(all_slope) != 0


@pytest.mark.parametrize(
    ("kind", "config", "unread"), [("drop", MODEL, {"masked_vector"}), ("vector", LINEAR, set())]
)
def test_every_parameter_learns(kind: str, config: MaeConfig, unread: set[str]) -> None:
    """But a vector that nobody reads; without a decoder as with one."""
    _, gradient = gradient_of(objective(kind), config)(batch())
    still = {p[-1] for p, leaf in nnx.to_flat_state(gradient) if not leaf[...].any()}
    assert still == unread


def test_images_of_one_colour_give_finite_loss_and_gradient() -> None:
    rows = {**batch(), "pixels": jnp.full((4, 12, 12, 2), 77, jnp.uint8)}
    value, gradient = gradient_of(objective())(rows)
    assert np.isfinite(float(value))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_a_batch_without_images_gives_loss_and_gradient_zero() -> None:
    value, gradient = gradient_of(objective())(batch(used=0))
    assert float(value) == 0
    assert all(not leaf.any() for leaf in jax.tree.leaves(gradient))
    empty = objective(error="sum", over="all", target=PixelTarget(normalise=False))
    assert float(loss(model(), empty, batch(used=0), Context.of(0)).value()) == 0


@pytest.mark.parametrize("selection", [RandomPatches(), BlockPatches(smallest=4), GridPatches()])
def test_masks_depend_on_seed_epoch_and_id_alone(selection: object) -> None:
    chosen = objective("noise", selection=selection)
    rows, _ = hide(model(), chosen, batch(8), Context.of(0))
    later, _ = hide(model(), chosen, batch(8, first=4), Context.of(0, step=77, training=True))
    first, second = jax.device_get((rows, later))
    chex.assert_trees_all_equal(
        jax.tree.map(lambda each: each[4:], first), jax.tree.map(lambda each: each[:4], second)
    )
    for other in (
        hide(model(), chosen, batch(8), Context.of(1)),
        hide(model(), chosen, batch(8, epoch=1), Context.of(0)),
    ):
        assert not np.array_equal(rows.mask.positions, other[0].mask.positions)


def test_static_masks_repeat_after_their_number() -> None:
    chosen = objective("noise", static_masks=2)
    drawn = [hide(model(), chosen, batch(epoch=e), Context.of(0))[0] for e in range(3)]
    np.testing.assert_array_equal(drawn[0].mask.positions, drawn[2].mask.positions)
    np.testing.assert_array_equal(drawn[0].shown, drawn[2].shown)
    assert not np.array_equal(drawn[0].mask.positions, drawn[1].mask.positions)


def test_a_ratio_schedule_hides_what_a_constant_ratio_would() -> None:
    """In one compile; places that a low ratio leaves empty are neither seen nor counted."""
    chosen = objective(ratio_schedule=StagedRatio(stages=((0, 0.25), (10, 0.75))))
    for step, ratio in ((0, 0.25), (25, 0.75)):
        context = Context.of(0, step=step)
        alone = objective(selection=RandomPatches(ratio=ratio))
        found = figures(loss(model(), chosen, batch(), context))
        wanted = figures(loss(model(), alone, batch(), context))
        assert found == pytest.approx(wanted, rel=1e-4)
        hidden, _ = hide(model(), chosen, batch(), context)
        assert hidden.visible.positions.shape == (4, 18)
        assert hidden.mask.positions.shape == (4, 18)


@pytest.mark.slow  # tests/test_distributed.py compares the steps of a shipped config
def test_masks_and_step_are_the_same_on_eight_devices() -> None:
    """All parameters lie in shards; loss, gradient and masks are those of one device."""
    graph, parameters = nnx.split(model())
    chosen, rows = objective(), batch(8)
    whole = plain(parameters)

    def run(parameters: dict, rows: Batch) -> tuple:
        context = Context.of(0)
        found = loss_and_gradient(chosen, graph, parameters, rows, context)
        return found, chosen.select(GRID, rows, context)

    alone = jax.jit(run)(whole, rows)
    mesh = MeshConfig(data=2, fsdp=2, tensor=2).make(jax.devices()[:8])
    shardings = parameter_shardings(mesh, parameters)
    cut = [s.spec for s in jax.tree.leaves(shardings) if any(s.spec)]
    kernels = [path for path, _ in nnx.to_flat_state(parameters) if path[-1] == "kernel"]
    assert len(cut) >= len(kernels)
    spread = jax.jit(run)(
        jax.device_put(whole, shardings),
        {name: jax.device_put(each, batch_sharding(mesh)) for name, each in rows.items()},
    )
    np.testing.assert_array_equal(spread[1].positions, alone[1].positions)
    chex.assert_trees_all_close(
        jax.device_get(spread[0]), jax.device_get(alone[0]), rtol=1e-3, atol=2e-5
    )


def check(
    config: ModelConfig, *, shape: tuple[int, ...] = (4, 12, 12, 2), **choices: object
) -> None:
    spec = {"pixels": jax.ShapeDtypeStruct(shape, jnp.uint8)}
    objective(**choices).check(config, spec)


PLAIN = MODEL.updated(encoder=MODEL.encoder.updated(masked_vector=False))


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        (
            {"config": MODEL, "shape": (4, 12, 18, 2)},
            "--data.size 12 12, or --model.encoder.image 12 18",
        ),
        (
            {"config": MODEL, "shape": (4, 12, 12, 3)},
            "--data.channels 2, or --model.encoder.channels 3",
        ),
        ({"config": LINEAR}, "--objective.corruption.kind vector"),
        ({"config": PLAIN, "kind": "vector"}, "--model.encoder.masked-vector"),
        (
            {"config": MODEL, "selection": RandomPatches(ratio=0.02)},
            "masks none of 24 .* at least 0.0417",
        ),
        (
            {"config": MODEL, "selection": RandomPatches(ratio=0.98)},
            "leaves none of 24 .* at most 0.958",
        ),
        (
            {"config": MODEL, "ratio_schedule": LinearRatio(start=0.01, steps=10)},
            "A ratio of 0.01 masks none of 24 .* or --objective.ratio-schedule",
        ),
        ({"config": ModelConfig()}, "needs a MaeConfig"),
    ],
)
def test_what_does_not_go_together_is_refused(choices: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        check(**choices)


def test_what_goes_together_is_not_refused() -> None:
    check(MODEL)
    check(PLAIN, selection=BlockPatches(ratio=0.4))
    for kind in KINDS[1:]:
        check(LINEAR, kind=kind)


def test_the_work_counts_the_patches_that_are_encoded() -> None:
    spec = {"pixels": jax.ShapeDtypeStruct((5, 12, 12, 2), jnp.uint8)}
    for chosen, encoded in (
        (objective(), 6),
        (objective(selection=RandomPatches(ratio=0.5)), 12),
        (objective(ratio_schedule=LinearRatio(start=0.25, steps=10)), 18),
        (objective("zero"), 24),
    ):
        work = chosen.work(MODEL, spec)
        assert work == (15 * MODEL.flops(encoded), "images", 5)


def test_the_record_names_all_choices() -> None:
    chosen = objective("noise", error="sum", over="all", target=PixelTarget(normalise=False))
    found = chosen.describe()
    assert found["loss"] == {
        "kind": "squared error",
        "within_patch": "sum",
        "denominator": "token_mean",
        "over": "all patches",
    }
    assert found["corruption"]["kind"] == "noise"
    assert found["mask"]["ratio"] == 0.75
    assert found["target"]["normalise"] is False
    assert found["visibility"] == "bidirectional over all patches"
    assert objective().describe()["visibility"] == "bidirectional over visible patches"


def test_the_range_of_pixels_scales_the_loss() -> None:
    """By 65,025 where the target is pixels, and hardly where it is normalised."""
    other = nnx.merge(nnx.graphdef(model()), nnx.state(model()))
    encoder = MODEL.encoder.updated(input=PixelScale(range="0-255"))
    other.config = MODEL.updated(encoder=encoder)
    small, large = (each.patches(batch()["pixels"]) for each in (model(), other))
    assert float((large**2).sum() / (small**2).sum()) == pytest.approx(65_025, rel=1e-4)
    target = objective().target
    np.testing.assert_allclose(target(large), target(small), atol=1e-3)
