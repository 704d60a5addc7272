"""The tensors of MAE's own code (``models_mae.py`` of He et al. 2022), and the sizes that their shapes tell."""

import math
import re
from typing import Any

from mlmjax.core.errors import UserError
from mlmjax.interop.huggingface.family import Table
from mlmjax.interop.huggingface.mapping import (
    Row,
    fused,
    joined_heads,
    linear,
    norm,
    patches,
    query_key_value,
    query_key_value_bias,
    reshaped,
)
from mlmjax.interop.huggingface.tensors import Weights
from mlmjax.interop.huggingface.vit import IMAGENET, with_class
from mlmjax.models.mae import DecoderConfig, MaeConfig
from mlmjax.models.vit import VitConfig
from mlmjax.targets import PixelScale

_HEADS = {768: 12, 1024: 16, 1280: 16}
"""Of the published encoders, by width."""
_DECODER_HEADS = {512: 16}

_SCALE = PixelScale(mean=IMAGENET["image_mean"], std=IMAGENET["image_std"])
_SHARED: dict[str, Any] = {"activation": "gelu", "epsilon": 1e-6}


def sizes(
    weights: Weights, *, heads: int | None = None, decoder_heads: int | None = None
) -> MaeConfig:
    """The model of a checkpoint, as far as the checkpoint tells.

    A checkpoint of the encoder alone is given the paper's decoder.

    Args:
        weights: a checkpoint.
        heads: of the encoder's attention; by default those of the published model of its width.
        decoder_heads: of the decoder's, likewise.

    Raises:
        UserError: a tensor that tells a size is missing or of other axes; or the heads must be given, or cannot be.
    """
    _, places, hidden = _shape(weights, "pos_embed", 3)
    side = math.isqrt(max(places - 1, 0))
    if side < 1 or side * side != places - 1:
        raise UserError(
            f"{weights.path}: pos_embed has {places} places, which are not those of a class token and a square of "
            "patches."
        )
    width, channels, *patch = _shape(weights, "patch_embed.proj.weight", 4)
    if width != hidden:
        raise UserError(
            f"{weights.path}: pos_embed is {hidden} wide and patch_embed.proj.weight {width}; they do not belong "
            "together."
        )
    encoder = VitConfig(
        image=(side * patch[0], side * patch[1]),
        patch=(patch[0], patch[1]),
        channels=channels,
        layers=_layers(weights, "blocks"),
        hidden=hidden,
        heads=_heads(weights, "--heads", heads, _HEADS, hidden),
        mlp=_shape(weights, "blocks.0.mlp.fc1.weight", 2)[0],
        input=_SCALE if channels == 3 else PixelScale(),
        **_SHARED,
    )
    if not any(name.startswith("decoder_") for name in weights):
        if decoder_heads is not None:
            raise UserError(f"--decoder-heads {decoder_heads}: {weights.path} has no decoder.")
        return MaeConfig(encoder=encoder, decoder=DecoderConfig(**_SHARED))
    hidden = _shape(weights, "decoder_embed.weight", 2)[0]
    decoder = DecoderConfig(
        layers=_layers(weights, "decoder_blocks"),
        hidden=hidden,
        heads=_heads(weights, "--decoder-heads", decoder_heads, _DECODER_HEADS, hidden),
        mlp=_shape(weights, "decoder_blocks.0.mlp.fc1.weight", 2)[0],
        **_SHARED,
    )
    return MaeConfig(encoder=encoder, decoder=decoder)


def table(model: MaeConfig) -> Table:
    """What the tensors of a checkpoint become."""
    encoder, decoder = model.encoder, model.decoder
    assert decoder is not None
    cut = patches(*encoder.patch, encoder.channels)
    rows = [
        _vector("encoder", "encoder/class_token", "cls_token", encoder.hidden),
        *linear("encoder", "encoder/embed", "patch_embed.proj", kernel=cut),
        *_blocks("encoder", "blocks", heads=encoder.heads),
        *norm("encoder", "encoder/blocks/norm", "norm"),
        *linear("decoder", "decoder/embed", "decoder_embed"),
        _vector("decoder", "decoder/mask_token", "mask_token", decoder.hidden),
        *_blocks("decoder", "decoder_blocks", heads=decoder.heads),
        *norm("decoder", "decoder/blocks/norm", "decoder_norm"),
        *linear("decoder", "head", "decoder_pred"),
    ]
    widths = {"pos_embed": encoder.hidden, "decoder_pos_embed": decoder.hidden}
    return Table(rows, buffers={name: with_class(encoder, width) for name, width in widths.items()})


def _vector(part: str, ours: str, theirs: str, width: int) -> Row:
    return Row(part, ours, (theirs,), reshaped((1, 1, width)))


def _blocks(part: str, theirs: str, *, heads: int) -> list[Row]:
    ours, layer = f"{part}/blocks/layers", f"{theirs}.{{layer}}"
    return [
        Row(
            part,
            f"{ours}/attention/qkv/kernel",
            (f"{layer}.attn.qkv.weight",),
            fused(query_key_value(heads), 3),
        ),
        Row(
            part,
            f"{ours}/attention/qkv/bias",
            (f"{layer}.attn.qkv.bias",),
            fused(query_key_value_bias(heads), 3),
        ),
        *linear(part, f"{ours}/attention/out", f"{layer}.attn.proj", joined_heads(heads)),
        *norm(part, f"{ours}/attention_norm", f"{layer}.norm1"),
        *norm(part, f"{ours}/mlp_norm", f"{layer}.norm2"),
        *linear(part, f"{ours}/up", f"{layer}.mlp.fc1"),
        *linear(part, f"{ours}/down", f"{layer}.mlp.fc2"),
    ]


def _shape(weights: Weights, name: str, axes: int) -> tuple[int, ...]:
    if name not in weights:
        raise UserError(
            f"{weights.path} has no {name}, so it is no checkpoint of MAE's code (models_mae.py)."
        )
    shape = weights[name].shape
    if len(shape) != axes or 0 in shape:
        raise UserError(f"{weights.path}: {name} is {shape}, and MAE's has {axes} axes.")
    return shape


def _layers(weights: Weights, blocks: str) -> int:
    found = (re.match(rf"{blocks}\.(\d+)\.", name) for name in weights)
    return len({each[1] for each in found if each})


def _heads(
    weights: Weights, option: str, given: int | None, published: dict[int, int], width: int
) -> int:
    if given is None:
        if width not in published:
            known = ", ".join(str(each) for each in published)
            raise UserError(
                f"{weights.path} does not tell the attention heads of a width of {width}, and the published models "
                f"have {known}: give {option}."
            )
        return published[width]
    if given < 1 or width % given:
        raise UserError(f"{option} {given}: it must divide the width, which is {width}.")
    return given
