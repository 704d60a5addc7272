"""The masked autoencoder has the published sizes, and computes what the reference implementation does."""

from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from pydantic import ValidationError

from mlmjax.core.errors import UserError
from mlmjax.core.types import Batch, Context, Mask
from mlmjax.core.vocabulary import Vocabulary
from mlmjax.models.mae import DecoderConfig, Mae, MaeConfig
from mlmjax.models.vit import VitConfig
from mlmjax.objectives.mae import MaskedAutoencoder
from mlmjax.targets import PixelScale, PixelTarget, patchify

GOLDEN = Path(__file__).parent.parent / "golden" / "mae.npz"
TINY = MaeConfig(
    encoder=VitConfig(
        layers=2, hidden=16, heads=4, mlp=24, image=(12, 12), patch=(3, 3), channels=2
    ),
    decoder=DecoderConfig(layers=3, hidden=8, heads=2, mlp=12),
)


def shapes(config: MaeConfig) -> dict[tuple, nnx.Variable]:
    abstract = nnx.eval_shape(lambda: config.build(nnx.Rngs(params=0)))
    return dict(nnx.to_flat_state(nnx.state(abstract)))


def count(config: MaeConfig, part: str | None = None) -> int:
    return sum(leaf.size for path, leaf in shapes(config).items() if part in (None, path[0]))


@pytest.mark.parametrize(
    ("config", "encoder", "whole"),
    [
        (MaeConfig.vit_b16(), 85_798_656, 111_907_840),
        (MaeConfig.vit_l16(), 303_301_632, 329_541_888),
        (MaeConfig.vit_h14(), 630_764_800, 657_074_508),
    ],
)
def test_published_parameter_counts(config: MaeConfig, encoder: int, whole: int) -> None:
    """Those of the released models, which count their fixed positions, the class token's among them.

    Dosovitskiy et al. 2021, table 1, give 86M, 307M and 632M; with a layer of a thousand classes on top, these
    have 86.6M, 304.3M and 632.0M.
    """
    positions = config.encoder.patches + 1
    fixed = positions * config.encoder.hidden
    assert count(config, "encoder") + fixed == encoder
    assert config.decoder is not None
    assert count(config) + fixed + positions * config.decoder.hidden == whole


def filled(config: MaeConfig, values: dict[str, np.ndarray]) -> Mae:
    graph, state = nnx.split(nnx.eval_shape(lambda: config.build(nnx.Rngs(params=0))))
    flat = {
        path: jnp.asarray(values["/".join(map(str, path))]) for path, _ in nnx.to_flat_state(state)
    }
    return nnx.merge(graph, nnx.traversals.unflatten_mapping(flat))


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    return dict(np.load(GOLDEN))


def chosen(positions: np.ndarray) -> Mask:
    return Mask(jnp.asarray(positions), jnp.ones(positions.shape))


def test_every_layer_and_the_prediction_equal_the_reference(golden: dict) -> None:
    model, visible = filled(TINY, golden), chosen(golden["visible"])
    for width, name in ((16, "positions"), (8, "decoder_positions")):
        np.testing.assert_allclose(TINY.encoder.positions(width), golden[name], atol=1e-6)

    @nnx.jit
    def run(model: Mae) -> tuple:
        patches = model.patches(jnp.asarray(golden["pixels"]))
        found = model.encode(patches, visible=visible, exact=True, every_layer=True)
        return found, model.decode(found.hidden, visible=visible)

    found, prediction = run(model)
    assert found.layers is not None
    assert len(found.layers) == len(golden["hidden_states"]) == 3
    np.testing.assert_allclose(found.layers, golden["hidden_states"], atol=2e-6)
    np.testing.assert_allclose(found.hidden, golden["latent"], atol=2e-6)
    np.testing.assert_allclose(prediction, golden["logits"], atol=5e-6)


class Given(MaskedAutoencoder):
    """The objective, with the reference's masks."""

    def select(self, grid: tuple[int, int], batch: Batch, context: Context) -> Mask:
        del grid, context
        return Mask(batch["masked"], jnp.ones(batch["masked"].shape))


def test_loss_and_gradient_equal_the_reference(golden: dict) -> None:
    graph, parameters = nnx.split(filled(TINY, golden))
    batch = {
        "pixels": jnp.asarray(golden["pixels"]),
        "masked": jnp.asarray(golden["masked"]),
        "valid": jnp.ones(3, bool),
        "id": jnp.zeros((3, 2), jnp.uint32),
        "epoch": jnp.zeros(3, jnp.int32),
    }

    @jax.jit
    @partial(jax.value_and_grad, has_aux=True)
    def value(parameters: nnx.State) -> tuple[jax.Array, jax.Array]:
        normalised, plain = (
            Given(target=PixelTarget(normalise=normalise))(
                nnx.merge(graph, parameters), batch, Context.of(0)
            ).value()
            for normalise in (True, False)
        )
        return normalised, plain

    (loss, plain), gradient = value(parameters)
    assert float(loss) == pytest.approx(float(golden["normalised_loss"]), rel=1e-5)
    assert float(plain) == pytest.approx(float(golden["loss"]), rel=1e-5)
    for path, leaf in nnx.to_flat_state(gradient):
        name = "gradient/" + "/".join(map(str, path))
        np.testing.assert_allclose(leaf[...], golden[name], atol=2e-6, err_msg=name)


def pixels(config: MaeConfig, rows: int = 2) -> jax.Array:
    encoder = config.encoder
    shape = (rows, *encoder.image, encoder.channels)
    return jax.random.randint(jax.random.key(5), shape, 0, 256).astype(jnp.uint8)


@cache
def build(config: MaeConfig) -> Mae:
    return nnx.jit(lambda: config.build(nnx.Rngs(params=0)))()


def test_encoding_has_no_masking_and_no_chance(golden: dict) -> None:
    """All patches in order give what they give when each is named, and two calls agree bit for bit."""
    model, every = filled(TINY, golden), chosen(np.tile(np.arange(16), (2, 1)))
    patches = model.patches(pixels(TINY))
    encode = nnx.jit(lambda model, **choices: model.encode(patches, **choices).hidden)
    found = encode(model)
    assert found.shape == (2, 17, 16)
    np.testing.assert_array_equal(encode(model), found)
    np.testing.assert_allclose(encode(model, visible=every), found, atol=1e-6)


def test_unused_places_are_seen_by_nobody(golden: dict) -> None:
    """A visible part with room to spare encodes and decodes as the same part without."""
    model = filled(TINY, golden)
    patches = model.patches(pixels(TINY))
    tight = chosen(np.array([[1, 4, 9], [0, 2, 15]], np.int32))
    loose = Mask(
        jnp.pad(tight.positions, ((0, 0), (0, 2))), jnp.pad(tight.weight, ((0, 0), (0, 2)))
    )

    @nnx.jit
    def run(model: Mae, visible: Mask) -> tuple[jax.Array, jax.Array]:
        hidden = model.encode(patches, visible=visible).hidden
        return hidden, model.decode(hidden, visible=visible)

    (hidden, prediction), (wide, same) = run(model, tight), run(model, loose)
    np.testing.assert_allclose(wide[:, :4], hidden, atol=1e-6)
    np.testing.assert_allclose(same, prediction, atol=1e-5)


@pytest.mark.slow
def test_patches_may_be_replaced_by_a_learned_vector() -> None:
    """What stood there moves nothing; without the vector the option is named."""
    encoder = TINY.encoder.updated(masked_vector=True, class_token=False, image=(6, 12))
    config = TINY.updated(encoder=encoder, decoder=None)
    model, replaced = build(config), jnp.zeros((2, 8), bool).at[:, 3].set(True)
    patches = model.patches(pixels(config))
    encode = nnx.jit(lambda model, patches: model.encode(patches, replaced=replaced).hidden)
    found = encode(model, patches)
    assert found.shape == (2, 8, 16)
    np.testing.assert_array_equal(encode(model, patches.at[:, 3].set(7.0)), found)
    assert not np.array_equal(encode(model, patches.at[:, 2].set(7.0)), found)
    part = Mask(jnp.tile(jnp.arange(2, 5), (2, 1)), jnp.ones((2, 3)))
    some = nnx.jit(lambda m, each: m.encode(each, visible=part, replaced=replaced).hidden)
    np.testing.assert_array_equal(some(model, patches.at[:, 3].set(7.0)), some(model, patches))
    with pytest.raises(UserError, match=r"--model.encoder.masked-vector"):
        build(TINY).encode(build(TINY).patches(pixels(TINY)), replaced=jnp.zeros((2, 16), bool))


def test_without_a_decoder_one_layer_predicts_all_patches() -> None:
    config = TINY.updated(decoder=None)
    model = build(config)
    hidden = model.encode(model.patches(pixels(config))).hidden
    wanted = hidden[:, 1:] @ model.head.kernel[...] + model.head.bias[...]
    np.testing.assert_allclose(model.decode(hidden), wanted, atol=1e-6)
    with pytest.raises(UserError, match=r"--objective.corruption.kind"):
        model.decode(hidden, visible=chosen(np.zeros((2, 16), np.int32)))


def test_kernels_begin_as_wide_as_their_layer_asks() -> None:
    """Uniform in sqrt(6 / (inputs + outputs)), query, key and value together; vectors and biases as elsewhere."""
    model = build(TINY)
    block = model.encoder.blocks.layers
    for layer, width in (
        (block.attention.qkv, 16 + 48),
        (block.attention.out, 32),
        (block.up, 40),
        (model.encoder.embed, 18 + 16),
        (model.head, 8 + 18),
    ):
        kernel, limit = np.asarray(layer.kernel[...]), (6 / width) ** 0.5
        assert 0.95 * limit < abs(kernel).max() <= limit
        assert kernel.std() == pytest.approx(limit / 3**0.5, rel=0.1)
        assert not layer.bias[...].any()
    first, second = block.up.kernel[...]
    assert not np.allclose(first, second)
    assert abs(model.encoder.class_token[...]).max() <= 0.04
    normal = TINY.updated(encoder=TINY.encoder.updated(initial="normal", initial_std=0.1))
    assert abs(build(normal).encoder.embed.kernel[...]).max() <= 0.2


def test_another_image_size_takes_the_same_parameters(golden: dict) -> None:
    """And a picture that is enlarged, patch by patch, is encoded at the same place of the image."""
    wide = TINY.resized((24, 36))
    assert {path: leaf.shape for path, leaf in shapes(wide).items()} == {
        path: leaf.shape for path, leaf in shapes(TINY).items()
    }
    assert wide.encoder.grid == (8, 12)
    assert wide.resized((12, 12)).encoder.positions_of == (12, 12)
    np.testing.assert_allclose(
        wide.resized((12, 12)).encoder.positions(), TINY.encoder.positions(), atol=1e-6
    )
    model = filled(wide, golden)
    found = nnx.eval_shape(lambda: model.encode(model.patches(pixels(wide))).hidden)
    assert found.shape == (2, 97, 16)
    # The centre of every other block of 3 by 3 patches is that of one patch before.
    three = TINY.resized((36, 36)).encoder.positions().reshape(12, 12, 16)[1::3, 1::3]
    np.testing.assert_allclose(three.reshape(16, 16), TINY.encoder.positions(), atol=1e-6)


def test_dropout_follows_its_key() -> None:
    rates = {"dropout": 0.3, "attention_dropout": 0.3}
    config = TINY.updated(
        encoder=TINY.encoder.updated(**rates), decoder=TINY.decoder.updated(**rates)
    )
    model, (first, second) = build(config), jax.random.split(jax.random.key(0))
    patches = model.patches(pixels(config))

    @nnx.jit
    def run(model: Mae, encoder: jax.Array | None, decoder: jax.Array | None) -> jax.Array:
        return model.decode(model.encode(patches, key=encoder).hidden, key=decoder)

    found = run(model, first, first)
    np.testing.assert_array_equal(run(model, first, first), found)
    for other in ((first, second), (second, first), (None, None)):
        assert not np.array_equal(run(model, *other), found)


@pytest.mark.slow
def test_bfloat16_gives_bfloat16_states_and_float32_predictions() -> None:
    config = TINY.updated(
        encoder=TINY.encoder.updated(dtype="bfloat16"),
        decoder=TINY.decoder.updated(dtype="bfloat16"),
    )
    assert config.dtype == "bfloat16"
    visible = chosen(np.tile(np.arange(4), (2, 1)))

    def run() -> tuple:
        model = config.build(nnx.Rngs(params=0))
        patches = model.patches(pixels(config))
        hidden = model.encode(patches, visible=visible).hidden
        return patches, hidden, model.decode(hidden, visible=visible), nnx.state(model)

    patches, hidden, found, state = nnx.eval_shape(run)
    assert (patches.dtype, hidden.dtype, found.dtype) == (jnp.float32, jnp.bfloat16, jnp.float32)
    assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {jnp.dtype("float32")}


def test_patches_are_scaled_as_the_config_says() -> None:
    scale = PixelScale(range="0-255", mean=(1.0, 2.0), std=(4.0,))
    config = TINY.updated(encoder=TINY.encoder.updated(input=scale))
    raw = pixels(config)
    wanted = patchify((raw.astype(jnp.float32) - jnp.array([1.0, 2.0])) / 4, (3, 3))
    np.testing.assert_allclose(build(config).patches(raw), wanted, rtol=1e-6)


def test_the_work_is_that_of_the_products() -> None:
    """Two operations for every weight and token, and the scores of attention."""
    encoder, decoder = TINY.encoder, TINY.decoder
    assert decoder is not None

    def products(part: str, layers: int, width: int, mlp: int, length: int) -> float:
        blocks = layers * (4 * width**2 + 2 * width * mlp)
        return 2 * length * blocks + 4 * layers * length**2 * width

    wanted = (
        2 * 5 * 18 * 16
        + products("encoder", 2, 16, 24, 6)
        + 2 * 6 * 16 * 8
        + products("decoder", 3, 8, 12, 17)
        + 2 * 16 * 8 * 18
    )
    assert TINY.flops(5) == wanted
    alone = TINY.updated(decoder=None)
    assert alone.flops(16) == 2 * 16 * 18 * 16 * 2 + encoder.flops(17)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"image": (30, 12), "patch": (4, 4)}, "height 30 of image .* 28 or 32 would do"),
        ({"image": (12, 3), "patch": (4, 4)}, "width 3 of image .* 4 would do"),
        ({"positions_of": (12, 13)}, "width 13 of positions_of"),
        ({"hidden": 18, "heads": 2}, "multiple of 4"),
        ({"input": PixelScale(mean=(1.0, 2.0, 3.0))}, "input.mean has 3 values"),
    ],
)
def test_bad_sizes_are_refused(changes: dict, sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        TINY.encoder.updated(**changes)


def test_text_is_refused() -> None:
    vocabulary = Vocabulary(
        size=50, padding=0, unknown=1, start=2, separator=3, mask=4, special=(0, 1, 2, 3, 4)
    )
    assert TINY.fitted(None) == TINY
    with pytest.raises(UserError, match="reads images"):
        TINY.fitted(vocabulary)
