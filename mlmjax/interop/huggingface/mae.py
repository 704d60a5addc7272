"""Masked autoencoders with a vision transformer: the classes ``ViTMAE*``."""

from typing import Any, ClassVar

from mlmjax.core.errors import UserError
from mlmjax.data.images import ImageData
from mlmjax.experiment import Experiment
from mlmjax.interop.huggingface.family import Family, Given, Table
from mlmjax.interop.huggingface.mapping import Row, linear, norm, reshaped
from mlmjax.interop.huggingface.vit import (
    IMAGENET,
    blocks,
    encoder_entries,
    encoder_of,
    encoder_tensors,
    processor,
    stack_of,
    with_class,
)
from mlmjax.masking import RandomPatches
from mlmjax.models.base import ModelConfig
from mlmjax.models.mae import DecoderConfig, MaeConfig
from mlmjax.models.vit import VitConfig
from mlmjax.objectives.mae import MaskedAutoencoder
from mlmjax.optim import AdamW
from mlmjax.targets import PixelTarget
from mlmjax.training.folder import Run


class MaeFamily(Family):
    """MAE (He et al. 2022); positions are a formula, and a file's are seen to be those.

    Learned ones are written in their place, which their classes read as they are.
    """

    architectures: ClassVar = {
        "ViTMAEForPreTraining": ("encoder", "decoder"),
        "ViTMAEModel": ("encoder",),
    }
    prefix = "vit."
    encoder = "ViTMAEModel"

    def holds(self, model: ModelConfig) -> bool:
        return type(model) is MaeConfig

    def experiment(self, config: Given) -> Experiment:
        encoder = encoder_of(config, learned_positions=False, scale=IMAGENET)
        decoder = DecoderConfig(
            layers=config("decoder_num_hidden_layers"),
            hidden=config("decoder_hidden_size"),
            heads=config("decoder_num_attention_heads"),
            mlp=config("decoder_intermediate_size"),
            **stack_of(config),
        )
        return Experiment(
            model=MaeConfig(encoder=encoder, decoder=decoder),
            objective=MaskedAutoencoder(
                selection=RandomPatches(ratio=config("mask_ratio", 0.75)),
                target=PixelTarget(normalise=config("norm_pix_loss", False)),
            ),
            data=ImageData(size=encoder.image, channels=encoder.channels),
            optimizer=AdamW(),
        )

    def config(self, run: Run) -> dict[str, Any]:
        encoder, decoder = _sizes(run.config)
        entries = encoder_entries(encoder)
        for wrong, why in (
            (encoder.positions_of not in (None, encoder.image), "stretches its positions"),
            (decoder.norm != "pre", "does not normalise first"),
            (
                (encoder.activation, encoder.epsilon) != (decoder.activation, decoder.epsilon),
                "has another activation or epsilon in its decoder",
            ),
        ):
            if wrong:
                raise UserError(f"A model that {why} cannot be exported: ViTMAE's classes cannot.")
        objective = run.config.objective
        if isinstance(objective, MaskedAutoencoder):
            entries["norm_pix_loss"] = objective.target.normalise
            if isinstance(objective.selection, RandomPatches):
                entries["mask_ratio"] = objective.selection.ratio
        return {
            "model_type": "vit_mae",
            "decoder_num_hidden_layers": decoder.layers,
            "decoder_hidden_size": decoder.hidden,
            "decoder_num_attention_heads": decoder.heads,
            "decoder_intermediate_size": decoder.mlp,
            **entries,
        }

    def processor(self, experiment: Experiment) -> dict[str, Any]:
        return processor(_sizes(experiment)[0])

    def table(self, experiment: Experiment, prefix: str) -> Table:
        encoder, decoder = _sizes(experiment)
        rows, buffers = encoder_tensors(encoder, prefix)
        part, positions = "decoder", "decoder.decoder_pos_embed"
        token = reshaped((1, 1, decoder.hidden))
        rows += [
            *linear(part, "decoder/embed", "decoder.decoder_embed"),
            Row(part, "decoder/mask_token", ("decoder.mask_token",), token),
            *blocks(part, "decoder.decoder_layers", heads=decoder.heads),
            *norm(part, "decoder/blocks/norm", "decoder.decoder_norm"),
            *linear(part, "head", "decoder.decoder_pred"),
        ]
        return Table(
            rows,
            buffers={**buffers, positions: with_class(encoder, decoder.hidden)},
            needed={"encoder": tuple(buffers), "decoder": (positions,)},
            spellings={"decoder.decoder_encoder.layer.": "decoder.decoder_layers."},
        )


def _sizes(experiment: Experiment) -> tuple[VitConfig, DecoderConfig]:
    model = experiment.model
    assert isinstance(model, MaeConfig)
    if model.decoder is None:
        raise UserError("A model without a decoder cannot be exported: ViTMAE's classes have one.")
    return model.encoder, model.decoder
