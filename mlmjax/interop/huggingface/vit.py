"""Vision transformers: the classes ``ViT*``, and what masked autoencoders share with them."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from mlmjax.core.errors import UserError
from mlmjax.data.images import ImageData
from mlmjax.experiment import Experiment
from mlmjax.interop.huggingface.family import (
    Family,
    Given,
    Table,
    class_entries,
    class_names,
    their_activation,
)
from mlmjax.interop.huggingface.mapping import (
    LEADING,
    Row,
    attention,
    linear,
    norm,
    patches,
    reshaped,
)
from mlmjax.models.base import ModelConfig
from mlmjax.models.classifier import VitClassifierConfig
from mlmjax.models.mae import DecoderConfig, MaeConfig
from mlmjax.models.vit import VitConfig
from mlmjax.objectives.classification import Classification
from mlmjax.objectives.mae import MaskedAutoencoder
from mlmjax.optim import AdamW
from mlmjax.targets import PixelScale
from mlmjax.training.folder import Run

PROCESSOR = "preprocessor_config.json"

IMAGENET = {"image_mean": (0.485, 0.456, 0.406), "image_std": (0.229, 0.224, 0.225)}
HALVES = {"image_mean": (0.5,), "image_std": (0.5,)}


class VitFamily(Family):
    """ViT (Dosovitskiy et al. 2021): the encoder of a masked autoencoder whose positions are learned."""

    architectures: ClassVar[dict[str, tuple[str, ...]]] = {"ViTModel": ("encoder",)}
    prefix = "vit."
    encoder = "ViTModel"
    absent: ClassVar[frozenset[str]] = frozenset({"decoder"})

    def holds(self, model: ModelConfig) -> bool:
        return type(model) is MaeConfig and model.encoder.learned_positions

    def experiment(self, config: Given) -> Experiment:
        encoder = encoder_of(config, learned_positions=True, scale=HALVES)
        return Experiment(
            model=MaeConfig(encoder=encoder, decoder=DecoderConfig(epsilon=encoder.epsilon)),
            objective=MaskedAutoencoder(),
            data=ImageData(size=encoder.image, channels=encoder.channels),
            optimizer=AdamW(),
        )

    def config(self, run: Run) -> dict[str, Any]:
        return {"model_type": "vit", **encoder_entries(_encoder(run.config))}

    def processor(self, experiment: Experiment) -> dict[str, Any]:
        return processor(_encoder(experiment))

    def table(self, experiment: Experiment, prefix: str) -> Table:
        encoder = _encoder(experiment)
        rows, buffers = encoder_tensors(encoder, prefix)
        kept = frozenset(f"{prefix}pooler.dense.{kind}" for kind in ("weight", "bias"))
        return Table(
            rows + self.heads(),
            buffers=buffers,
            kept=kept | {f"{prefix}embeddings.mask_token"},
            absent=self.absent,
            needed={"encoder": tuple(buffers)},
        )

    def heads(self) -> list[Row]:
        """Rows of what stands on the encoder."""
        return []


class VitClassifierFamily(VitFamily):
    """ViT with an affine head on the class token's state."""

    architectures: ClassVar = {"ViTForImageClassification": ("encoder", "classifier")}
    absent = frozenset()

    def holds(self, model: ModelConfig) -> bool:
        return type(model) is VitClassifierConfig

    def experiment(self, config: Given) -> Experiment:
        config.must_be("problem_type", "single_label_classification")
        encoder = encoder_of(config, learned_positions=True, scale=HALVES)
        return Experiment(
            model=VitClassifierConfig(encoder=encoder, classes=len(class_names(config))),
            objective=Classification(),
            data=ImageData(size=encoder.image, channels=encoder.channels, labels=True),
            optimizer=AdamW(),
        )

    def classes(self, config: Given) -> tuple[str, ...]:
        return class_names(config)

    def config(self, run: Run) -> dict[str, Any]:
        model = run.config.model
        assert isinstance(model, VitClassifierConfig)
        if model.pooling != "class":
            raise UserError(
                f"A classifier with pooling '{model.pooling}' cannot be exported: ViTForImageClassification reads "
                "the class token. One that is trained with --model.pooling class can."
            )
        return super().config(run) | class_entries(run)

    def heads(self) -> list[Row]:
        return linear("classifier", "classifier", "classifier")


def encoder_of(
    config: Given, *, learned_positions: bool, scale: Mapping[str, tuple[float, ...]]
) -> VitConfig:
    """The encoder of a config.json, with the image processor's scale.

    Args:
        config: of one of the classes.
        learned_positions: as the class has them.
        scale: mean and standard deviation of pixels where no processor tells them.

    Raises:
        UserError: the config asks for what our encoder cannot do.
    """
    config.must_be("qkv_bias", True)
    processor, channels = config.beside(PROCESSOR), config("num_channels", 3)
    one = {"image_mean": (0.0,), "image_std": (1.0,)}
    mean, std = (
        tuple(processor.get(name, scale[name] if channels in (3, len(scale[name])) else one[name]))
        for name in ("image_mean", "image_std")
    )
    return VitConfig(
        image=_pair(config("image_size", 224)),
        patch=_pair(config("patch_size", 16)),
        channels=channels,
        layers=config("num_hidden_layers"),
        hidden=config("hidden_size"),
        heads=config("num_attention_heads"),
        mlp=config("intermediate_size"),
        learned_positions=learned_positions,
        input=PixelScale(mean=mean, std=std),
        **stack_of(config),
    )


def stack_of(config: Given) -> dict[str, Any]:
    """What encoder and decoder have in common."""
    return {
        "activation": config.activation(),
        "epsilon": config("layer_norm_eps", 1e-12),
        "initial_std": config("initializer_range", 0.02),
        "dropout": config("hidden_dropout_prob", 0.0),
        "attention_dropout": config("attention_probs_dropout_prob", 0.0),
    }


def encoder_entries(encoder: VitConfig) -> dict[str, Any]:
    """Entries of config.json for an encoder of ours.

    Raises:
        UserError: their classes have no such encoder.
    """
    for wrong, why in (
        (not encoder.class_token, "has no class token"),
        (encoder.masked_vector, "has a vector for masked patches"),
        (encoder.norm != "pre", "does not normalise first"),
        (encoder.patch[0] != encoder.patch[1], "has patches that are no squares"),
        (
            encoder.learned_positions and encoder.positions_of not in (None, encoder.image),
            "stretches its learned positions",
        ),
        (encoder.input.range != "0-1", "takes pixels from 0 to 255"),
    ):
        if wrong:
            raise UserError(f"A model that {why} cannot be exported: ViT's classes cannot.")
    square = encoder.image[0] == encoder.image[1]
    return {
        "image_size": encoder.image[0] if square else list(encoder.image),
        "patch_size": encoder.patch[0],
        "num_channels": encoder.channels,
        "num_hidden_layers": encoder.layers,
        "hidden_size": encoder.hidden,
        "num_attention_heads": encoder.heads,
        "intermediate_size": encoder.mlp,
        "hidden_act": their_activation(encoder.activation),
        "layer_norm_eps": encoder.epsilon,
        "initializer_range": encoder.initial_std,
        "hidden_dropout_prob": encoder.dropout,
        "attention_probs_dropout_prob": encoder.attention_dropout,
        "qkv_bias": True,
    }


def processor(encoder: VitConfig) -> dict[str, Any]:
    """The content of preprocessor_config.json."""
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


def encoder_tensors(encoder: VitConfig, prefix: str) -> tuple[list[Row], dict[str, np.ndarray]]:
    """Rows of an encoder's parameters, and its positions where they are none."""
    part, embeddings = "encoder", f"{prefix}embeddings"
    positions = f"{embeddings}.position_embeddings"
    cut = patches(*encoder.patch, encoder.channels)
    token = reshaped((1, 1, encoder.hidden))
    rows = [
        Row(part, "encoder/class_token", (f"{embeddings}.cls_token",), token),
        *linear(part, "encoder/embed", f"{embeddings}.patch_embeddings.projection", kernel=cut),
        *blocks(part, f"{prefix}encoder.layer", heads=encoder.heads),
        *norm(part, "encoder/blocks/norm", f"{prefix}layernorm"),
    ]
    if encoder.learned_positions:
        return [*rows, Row(part, "encoder/position", (positions,), LEADING)], {}
    return rows, {positions: with_class(encoder, encoder.hidden)}


def with_class(encoder: VitConfig, width: int) -> np.ndarray:
    """The positions, after those of the class token, which are zeros."""
    return np.pad(np.asarray(encoder.positions(width)), ((1, 0), (0, 0)))[None]


def blocks(part: str, theirs: str, *, heads: int) -> list[Row]:
    """Rows of a stack of blocks."""
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


def _encoder(experiment: Experiment) -> VitConfig:
    model = experiment.model
    assert isinstance(model, MaeConfig | VitClassifierConfig)
    return model.encoder


def _pair(size: Any) -> tuple[int, int]:
    """Height and width, where one number may stand for both."""
    return tuple(size) if isinstance(size, list) else (size, size)
