"""Encoders with a head that tells classes apart, to be fine-tuned whole.

The encoders' parameters have the names that they have in the models that are pretrained, so that they can be taken
from a pretrained run; of a head that is left away here none is carried along.
"""

from functools import partial
from typing import Annotated, Any, Literal, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key, UInt
from pydantic import Field, model_validator

from mlmjax.core.errors import UserError
from mlmjax.core.vocabulary import Vocabulary
from mlmjax.models.base import ModelConfig
from mlmjax.models.bert import BertEncoder, BertEncoderConfig
from mlmjax.models.mae import MaeConfig
from mlmjax.models.vit import Vit, VitConfig
from mlmjax.nn.attention import Visibility
from mlmjax.nn.dropout import dropout
from mlmjax.nn.linear import Linear, layer_norm
from mlmjax.nn.transformer import Encoded
from mlmjax.targets import patchify

Rate = Annotated[float, Field(ge=0, lt=1)]
Classes = Annotated[int, Field(ge=2)]


class ClassifierConfig(ModelConfig):
    """What classifiers of every modality have in common."""

    classes: Classes | None = None
    """Number of classes; by default the data's."""
    classifier_dropout: Rate = 0.0
    """Rate on what the head reads."""

    @property
    def known_classes(self) -> int:
        """The number of classes, once it is known."""
        if self.classes is None:
            raise UserError("The model has no number of classes yet: set --model.classes.")
        return self.classes

    def of_classes(self, classes: int) -> Self:
        if self.classes not in (None, classes):
            raise UserError(
                f"The data has {classes} classes and the model {self.classes}: set --model.classes {classes}, or "
                "leave it out."
            )
        return self.updated(classes=classes)

    def head_flops(self) -> float:
        """Floating-point operations of the head's forward pass over one example (2 per multiply-add)."""
        raise TypeError(f"{type(self).__name__} does not count its head: define head_flops()")


class BertClassifierConfig(BertEncoderConfig, ClassifierConfig):
    """Sizes and choices of a BERT that classifies texts or pairs of texts; the defaults are BERT-base's."""

    head: Literal["pooler", "dense"] = "pooler"
    """``pooler``: an affine layer on BERT's pooled state of [CLS], whose pooler was pretrained with next-sentence
    prediction (Devlin et al. 2019, section 4.1). ``dense``: a hidden layer of the head's own on the state of [CLS],
    as RoBERTa has, which has no pooler."""
    classifier_dropout: Rate = 0.1
    """Rate on what the head reads."""

    def build(self, rngs: nnx.Rngs) -> "BertClassifier":
        return BertClassifier(self, rngs=rngs)

    def head_flops(self) -> float:
        """Both heads have a square layer and an affine one."""
        return 2.0 * self.hidden * (self.hidden + self.known_classes)


class BertClassifier(BertEncoder):
    """The module: a BERT encoder and scores of classes from the state of the first token."""

    config: BertClassifierConfig

    def __init__(self, config: BertClassifierConfig, *, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        hidden, std, dtype = config.hidden, config.initial_std, config.dtype
        pooled = config.head == "pooler"
        square, affine = (
            partial(Linear, hidden, size, axes=("embed", None), std=std, dtype=dtype, rngs=rngs)
            for size in (hidden, config.known_classes)
        )
        self.pooler = square() if pooled else None
        self.classifier = affine() if pooled else DenseHead(config, rngs=rngs)

    def logits(
        self,
        tokens: Int[Array, "batch length"],
        segments: Int[Array, "batch length"],
        visibility: Visibility,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "batch classes"]:
        """Float32 scores of each text's classes.

        Args:
            tokens: token ids, [CLS] first.
            segments: token types; in a model of one type all are of that.
            visibility: who may attend to whom.
            key: of dropout; without one there is none.
        """
        keys = (None, None) if key is None else tuple(jax.random.split(key))
        segments = jnp.minimum(segments, self.config.segments - 1)
        state = self.encode(tokens, segments, visibility, keys[0]).hidden[:, 0]
        rate = self.config.classifier_dropout
        if isinstance(self.classifier, DenseHead):
            return self.classifier(state, keys[1]).astype(jnp.float32)
        assert self.pooler is not None
        pooled = dropout(jnp.tanh(self.pooler(state)), rate, key=keys[1])
        return self.classifier(pooled).astype(jnp.float32)


class DenseHead(nnx.Module):
    """RoBERTa's head of classification, as in its published code: dropout, affine, tanh, dropout, affine."""

    def __init__(self, config: BertClassifierConfig, *, rngs: nnx.Rngs):
        hidden, std, dtype = config.hidden, config.initial_std, config.dtype
        self.rate = config.classifier_dropout
        self.dense = Linear(hidden, hidden, axes=("embed", None), std=std, dtype=dtype, rngs=rngs)
        self.out = Linear(
            hidden, config.known_classes, axes=("embed", None), std=std, dtype=dtype, rngs=rngs
        )

    def __call__(
        self, state: Float[Array, "batch hidden"], key: Key[Array, ""] | None = None
    ) -> Float[Array, "batch classes"]:
        keys = (None, None) if key is None else tuple(jax.random.split(key))
        inner = jnp.tanh(self.dense(dropout(state, self.rate, key=keys[0])))
        return self.out(dropout(inner, self.rate, key=keys[1]))


class VitClassifierConfig(ClassifierConfig):
    """Sizes and choices of a vision transformer that classifies images; the defaults are ViT-B/16's."""

    encoder: VitConfig = VitConfig()
    pooling: Literal["class", "mean"] = "class"
    """What the head reads: the state of the class token, or the mean over all patches, normalised (He et al. 2022,
    appendix A.1, where both work alike). The encoder's own final norm comes before either."""

    @model_validator(mode="after")
    def _has_what_is_pooled(self) -> Self:
        if self.pooling == "class" and not self.encoder.class_token:
            raise ValueError(
                "the encoder has no class token to pool: set pooling mean, or encoder.class_token"
            )
        return self

    @property
    def dtype(self) -> str:
        """The encoder's compute type, for the record of a run."""
        return self.encoder.dtype

    def build(self, rngs: nnx.Rngs) -> "VitClassifier":
        return VitClassifier(self, rngs=rngs)

    def fitted(self, vocabulary: Vocabulary | None) -> Self:
        if vocabulary is not None:
            raise UserError(
                "A vision transformer reads images, and the data is text: give --data of images."
            )
        return self

    def like(self, pretrained: ModelConfig) -> Self:
        if not isinstance(pretrained, MaeConfig | VitClassifierConfig):
            return super().like(pretrained)
        return self.updated(encoder=self.encoder.like(pretrained.encoder))

    def resized(self, image: tuple[int, int]) -> Self:
        """The same model for images of another size (:meth:`VitConfig.resized`)."""
        return self.updated(encoder=self.encoder.resized(image))

    def flops(self) -> float:
        """Floating-point operations of the encoder's forward pass over one image (2 per multiply-add)."""
        encoder = self.encoder
        embedding = 2.0 * encoder.patches * encoder.patch_size * encoder.hidden
        return embedding + encoder.flops(encoder.patches + int(encoder.class_token))

    def head_flops(self) -> float:
        return 2.0 * self.encoder.hidden * self.known_classes


class VitClassifier(nnx.Module):
    """The module: raw pixels to scaled patches, all of them to hidden states, and those to scores of classes."""

    def __init__(self, config: VitClassifierConfig, *, rngs: nnx.Rngs):
        self.config = config
        sizes = config.encoder
        self.encoder = Vit(sizes, rngs=rngs)
        self.pooled_norm = (
            layer_norm(sizes.hidden, epsilon=sizes.epsilon, dtype=sizes.dtype, rngs=rngs)
            if config.pooling == "mean"
            else None
        )
        self.classifier = Linear(
            sizes.hidden,
            config.known_classes,
            axes=("embed", None),
            std=sizes.initial_std,
            dtype=sizes.dtype,
            rngs=rngs,
        )

    def patches(
        self, pixels: UInt[Array, "batch height width channels"]
    ) -> Float[Array, "batch patches size"]:
        """Raw pixels scaled and cut into patches, float32."""
        return patchify(self.config.encoder.input(pixels), self.config.encoder.patch)

    def encode(self, patches: Float[Array, "batch patches size"], **how: Any) -> Encoded:
        """Hidden states of scaled patches, as :meth:`Vit.encode`."""
        return self.encoder.encode(patches, **how)

    def logits(
        self,
        pixels: UInt[Array, "batch height width channels"],
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "batch classes"]:
        """Float32 scores of each image's classes.

        Args:
            pixels: as they are in the data.
            key: of dropout; without one there is none.
        """
        keys = (None, None) if key is None else tuple(jax.random.split(key))
        hidden = self.encode(self.patches(pixels), key=keys[0]).hidden
        if self.pooled_norm is None:
            pooled = hidden[:, 0]
        else:
            pooled = self.pooled_norm(
                hidden[:, int(self.config.encoder.class_token) :].mean(axis=1)
            )
        pooled = dropout(pooled, self.config.classifier_dropout, key=keys[1])
        return self.classifier(pooled).astype(jnp.float32)
