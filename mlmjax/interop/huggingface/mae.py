"""Masked autoencoders with a vision transformer: the classes ``ViTMAE*``."""

from typing import Any, ClassVar

import numpy as np

from mlmjax.core.errors import UserError
from mlmjax.data.images import ImageData
from mlmjax.data.tokenizer import Tokenizer
from mlmjax.experiment import Experiment
from mlmjax.interop.huggingface.family import Family, Given, Table, their_activation
from mlmjax.interop.huggingface.mapping import Row, attention, linear, norm, patches, reshaped
from mlmjax.masking import RandomPatches
from mlmjax.models.mae import DecoderConfig, MaeConfig
from mlmjax.models.vit import VitConfig
from mlmjax.objectives.mae import MaskedAutoencoder
from mlmjax.optim import AdamW
from mlmjax.targets import PixelScale, PixelTarget

PROCESSOR = "preprocessor_config.json"

IMAGENET = {"image_mean": (0.485, 0.456, 0.406), "image_std": (0.229, 0.224, 0.225)}


class MaeFamily(Family):
    """MAE (He et al. 2022); positions are a formula, and a file's are seen to be those."""

    architectures: ClassVar = {
        "ViTMAEForPreTraining": ("encoder", "decoder"),
        "ViTMAEModel": ("encoder",),
    }
    prefix = "vit."
    encoder = "ViTMAEModel"

    def experiment(self, config: Given) -> Experiment:
        config.must_be("qkv_bias", True)
        image, patch = _pair(config("image_size", 224)), _pair(config("patch_size", 16))
        channels = config("num_channels", 3)
        shared = {
            "activation": config.activation(),
            "epsilon": config("layer_norm_eps", 1e-12),
            "initial_std": config("initializer_range", 0.02),
            "dropout": config("hidden_dropout_prob", 0.0),
            "attention_dropout": config("attention_probs_dropout_prob", 0.0),
        }
        processor = config.beside(PROCESSOR)
        scale = {
            ours: tuple(processor.get(name, IMAGENET[name] if channels == 3 else default))
            for ours, name, default in (
                ("mean", "image_mean", (0.0,)),
                ("std", "image_std", (1.0,)),
            )
        }
        encoder = VitConfig(
            image=image,
            patch=patch,
            channels=channels,
            layers=config("num_hidden_layers"),
            hidden=config("hidden_size"),
            heads=config("num_attention_heads"),
            mlp=config("intermediate_size"),
            input=PixelScale(**scale),
            **shared,
        )
        decoder = DecoderConfig(
            layers=config("decoder_num_hidden_layers"),
            hidden=config("decoder_hidden_size"),
            heads=config("decoder_num_attention_heads"),
            mlp=config("decoder_intermediate_size"),
            **shared,
        )
        return Experiment(
            model=MaeConfig(encoder=encoder, decoder=decoder),
            objective=MaskedAutoencoder(
                selection=RandomPatches(ratio=config("mask_ratio", 0.75)),
                target=PixelTarget(normalise=config("norm_pix_loss", False)),
            ),
            data=ImageData(size=image, channels=channels),
            optimizer=AdamW(),
        )

    def config(self, experiment: Experiment, tokenizer: Tokenizer | None) -> dict[str, Any]:
        encoder, decoder = _sizes(experiment)
        for wrong, why in (
            (not encoder.class_token, "has no class token"),
            (encoder.masked_vector, "has a vector for masked patches"),
            (encoder.norm != "pre" or decoder.norm != "pre", "does not normalise first"),
            (encoder.patch[0] != encoder.patch[1], "has patches that are no squares"),
            (encoder.positions_of is not None, "stretches its positions"),
            (encoder.input.range != "0-1", "takes pixels from 0 to 255"),
            (
                (encoder.activation, encoder.epsilon) != (decoder.activation, decoder.epsilon),
                "has another activation or epsilon in its decoder",
            ),
        ):
            if wrong:
                raise UserError(f"A model that {why} cannot be exported: ViTMAE's classes cannot.")
        objective, height_width = experiment.objective, encoder.image
        known: dict[str, Any] = {}
        if isinstance(objective, MaskedAutoencoder):
            known["norm_pix_loss"] = objective.target.normalise
            if isinstance(objective.selection, RandomPatches):
                known["mask_ratio"] = objective.selection.ratio
        square = height_width[0] == height_width[1]
        return {
            "model_type": "vit_mae",
            "image_size": height_width[0] if square else list(height_width),
            "patch_size": encoder.patch[0],
            "num_channels": encoder.channels,
            "num_hidden_layers": encoder.layers,
            "hidden_size": encoder.hidden,
            "num_attention_heads": encoder.heads,
            "intermediate_size": encoder.mlp,
            "decoder_num_hidden_layers": decoder.layers,
            "decoder_hidden_size": decoder.hidden,
            "decoder_num_attention_heads": decoder.heads,
            "decoder_intermediate_size": decoder.mlp,
            "hidden_act": their_activation(encoder.activation),
            "layer_norm_eps": encoder.epsilon,
            "initializer_range": encoder.initial_std,
            "hidden_dropout_prob": encoder.dropout,
            "attention_probs_dropout_prob": encoder.attention_dropout,
            "qkv_bias": True,
            **known,
        }

    def processor(self, experiment: Experiment) -> dict[str, Any]:
        encoder, _ = _sizes(experiment)
        scale, channels = encoder.input, encoder.channels
        mean, std = (list(each) * (channels // len(each)) for each in (scale.mean, scale.std))
        return {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": True,
            "size": {"height": encoder.image[0], "width": encoder.image[1]},
            "resample": 3,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": mean,
            "image_std": std,
        }

    def table(self, experiment: Experiment, prefix: str) -> Table:
        encoder, decoder = _sizes(experiment)
        embeddings = f"{prefix}embeddings"
        cut = patches(*encoder.patch, encoder.channels)
        one = (1, 1)
        rows = [
            Row(
                "encoder",
                "encoder/class_token",
                (f"{embeddings}.cls_token",),
                reshaped((*one, encoder.hidden)),
            ),
            *linear(
                "encoder", "encoder/embed", f"{embeddings}.patch_embeddings.projection", kernel=cut
            ),
            *_blocks("encoder", f"{prefix}encoder.layer", heads=encoder.heads),
            *norm("encoder", "encoder/blocks/norm", f"{prefix}layernorm"),
            *linear("decoder", "decoder/embed", "decoder.decoder_embed"),
            Row(
                "decoder",
                "decoder/mask_token",
                ("decoder.mask_token",),
                reshaped((*one, decoder.hidden)),
            ),
            *_blocks("decoder", "decoder.decoder_layers", heads=decoder.heads),
            *norm("decoder", "decoder/blocks/norm", "decoder.decoder_norm"),
            *linear("decoder", "head", "decoder.decoder_pred"),
        ]
        positions = {
            "encoder": (f"{embeddings}.position_embeddings", encoder.hidden),
            "decoder": ("decoder.decoder_pos_embed", decoder.hidden),
        }
        return Table(
            rows,
            buffers={name: with_class(encoder, width) for name, width in positions.values()},
            needed={part: (name,) for part, (name, _) in positions.items()},
            spellings={"decoder.decoder_encoder.layer.": "decoder.decoder_layers."},
        )


def _sizes(experiment: Experiment) -> tuple[VitConfig, DecoderConfig]:
    model = experiment.model
    assert isinstance(model, MaeConfig)
    if model.decoder is None:
        raise UserError("A model without a decoder cannot be exported: ViTMAE's classes have one.")
    return model.encoder, model.decoder


def with_class(encoder: VitConfig, width: int) -> np.ndarray:
    """The positions, after those of the class token, which are zeros."""
    return np.pad(np.asarray(encoder.positions(width)), ((1, 0), (0, 0)))[None]


def _blocks(part: str, theirs: str, *, heads: int) -> list[Row]:
    ours, layer = f"{part}/blocks/layers", f"{theirs}.{{layer}}"
    return [
        *attention(
            part,
            f"{ours}/attention",
            f"{layer}.attention.attention.{{}}",
            heads=heads,
            out=f"{layer}.attention.output.dense",
        ),
        *norm(part, f"{ours}/attention_norm", f"{layer}.layernorm_before"),
        *norm(part, f"{ours}/mlp_norm", f"{layer}.layernorm_after"),
        *linear(part, f"{ours}/up", f"{layer}.intermediate.dense"),
        *linear(part, f"{ours}/down", f"{layer}.output.dense"),
    ]


def _pair(size: Any) -> tuple[int, int]:
    """Height and width, where one number may stand for both."""
    return tuple(size) if isinstance(size, list) else (size, size)
