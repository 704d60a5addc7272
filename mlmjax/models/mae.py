"""Masked autoencoder (He et al. 2022, section 3): a ViT over some patches, a light decoder over all of them."""

from typing import Annotated, Any, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Key, UInt
from pydantic import Field

from mlmjax.core.errors import UserError
from mlmjax.core.types import Mask
from mlmjax.core.vocabulary import Vocabulary
from mlmjax.models.base import ModelConfig
from mlmjax.models.vit import ImageTransformerConfig, Vit, VitConfig, learned_vector
from mlmjax.nn.attention import Visibility
from mlmjax.nn.dropout import dropout
from mlmjax.nn.linear import Linear
from mlmjax.nn.patches import scatter_patches, xavier_uniform
from mlmjax.nn.transformer import Encoded, Transformer
from mlmjax.targets import patchify


class DecoderConfig(ImageTransformerConfig):
    """Sizes and choices of a decoder; the defaults are the paper's (He et al. 2022, section 4.1)."""

    layers: Annotated[int, Field(gt=0)] = 8
    hidden: Annotated[int, Field(gt=0)] = 512
    """Width of the hidden states."""
    heads: Annotated[int, Field(gt=0)] = 16
    mlp: Annotated[int, Field(gt=0)] = 2048
    """Width of the feed-forward layer."""


class MaeConfig(ModelConfig):
    """Sizes and choices of a masked autoencoder; the defaults are those of MAE with ViT-B/16."""

    encoder: VitConfig = VitConfig()
    decoder: DecoderConfig | None = DecoderConfig()
    """None: one linear layer predicts each patch from the encoder's state there (SimMIM, Xie et al. 2022, section
    3.4), so the encoder must be given all patches."""

    @classmethod
    def vit_b16(cls, **changes: Any) -> Self:
        """MAE with ViT-B/16: 112M parameters."""
        return cls(**{"encoder": VitConfig.b16(), **changes})

    @classmethod
    def vit_l16(cls, **changes: Any) -> Self:
        """MAE with ViT-L/16: 330M parameters."""
        return cls(**{"encoder": VitConfig.l16(), **changes})

    @classmethod
    def vit_h14(cls, **changes: Any) -> Self:
        """MAE with ViT-H/14: 657M parameters."""
        return cls(**{"encoder": VitConfig.h14(), **changes})

    @property
    def dtype(self) -> str:
        """The encoder's compute type, for the record of a run."""
        return self.encoder.dtype

    def build(self, rngs: nnx.Rngs) -> "Mae":
        return Mae(self, rngs=rngs)

    def fitted(self, vocabulary: Vocabulary | None) -> Self:
        if vocabulary is not None:
            raise UserError(
                "A masked autoencoder reads images, and the data is text: give --data of images."
            )
        return self

    def like(self, pretrained: ModelConfig) -> Self:
        if not isinstance(pretrained, MaeConfig):
            return super().like(pretrained)
        encoder, decoder = self.encoder.like(pretrained.encoder), self.decoder
        if decoder is not None and pretrained.decoder is not None:
            decoder = decoder.sized_as(pretrained.decoder, DecoderConfig)
        return self.updated(encoder=encoder, decoder=decoder)

    def resized(self, image: tuple[int, int]) -> Self:
        """The same model for images of another size (:meth:`VitConfig.resized`)."""
        return self.updated(encoder=self.encoder.resized(image))

    def flops(self, encoded: int) -> float:
        """Floating-point operations of the forward pass over one image (2 per multiply-add).

        Args:
            encoded: patches that the encoder is given.
        """
        encoder, decoder = self.encoder, self.decoder
        extra = int(encoder.class_token)
        found = 2.0 * encoded * encoder.patch_size * encoder.hidden + encoder.flops(encoded + extra)
        width = encoder.hidden
        if decoder is not None:
            width = decoder.hidden
            found += 2.0 * (encoded + extra) * encoder.hidden * width
            found += decoder.flops(encoder.patches + extra)
        return found + 2.0 * encoder.patches * width * encoder.patch_size


class Mae(nnx.Module):
    """The module: raw pixels to scaled patches, patches to hidden states, and those to predicted patches."""

    def __init__(self, config: MaeConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.encoder = Vit(config.encoder, rngs=rngs)
        chosen = config.decoder
        self.decoder = None if chosen is None else Decoder(config.encoder, chosen, rngs=rngs)
        sizes = config.encoder if chosen is None else chosen
        self.head = Linear(
            sizes.hidden,
            config.encoder.patch_size,
            axes=("embed", None),
            std=sizes.initial_std,
            dtype=sizes.dtype,
            rngs=rngs,
        )
        if sizes.initial == "xavier":
            xavier_uniform(self.head, rngs=rngs)

    def patches(
        self, pixels: UInt[Array, "batch height width channels"]
    ) -> Float[Array, "batch patches size"]:
        """Raw pixels scaled and cut into patches, float32."""
        return patchify(self.config.encoder.input(pixels), self.config.encoder.patch)

    def encode(
        self,
        patches: Float[Array, "batch patches size"],
        *,
        visible: Mask | None = None,
        exact: bool = False,
        replaced: Bool[Array, "batch patches"] | None = None,
        key: Key[Array, ""] | None = None,
        every_layer: bool = False,
    ) -> Encoded:
        """Hidden states of scaled patches, as :meth:`Vit.encode`."""
        return self.encoder.encode(
            patches,
            visible=visible,
            exact=exact,
            replaced=replaced,
            key=key,
            every_layer=every_layer,
        )

    def decode(
        self,
        hidden: Float[Array, "batch length hidden"],
        *,
        visible: Mask | None = None,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "batch patches size"]:
        """A prediction of every patch, float32.

        Args:
            hidden: the encoder's last states.
            visible: the patches that it was given; by default all.
            key: of dropout; without one there is none.

        Raises:
            UserError: the encoder was given a part, and there is no decoder to fill in the rest.
        """
        if self.decoder is not None:
            return self.head(self.decoder(hidden, visible=visible, key=key)).astype(jnp.float32)
        if visible is not None:
            raise UserError(
                "Without a decoder the encoder has to see all patches: choose another "
                "--objective.corruption.kind than drop, or a --model.decoder."
            )
        return self.head(hidden[:, int(self.config.encoder.class_token) :]).astype(jnp.float32)


class Decoder(nnx.Module):
    """Blocks over all patches: the encoder's states where it saw one, a learned mask token elsewhere."""

    def __init__(self, encoder: VitConfig, config: DecoderConfig, *, rngs: nnx.Rngs):
        self.encoder = encoder
        self.config = config
        std = config.initial_std
        self.embed = Linear(
            encoder.hidden,
            config.hidden,
            axes=("embed", None),
            std=std,
            dtype=config.dtype,
            rngs=rngs,
        )
        self.mask_token = learned_vector(config.hidden, std=std, rngs=rngs)
        self.blocks = Transformer(config, rngs=rngs)
        if config.initial == "xavier":
            xavier_uniform(self, rngs=rngs)

    def __call__(
        self,
        hidden: Float[Array, "batch length hidden"],
        *,
        visible: Mask | None,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "batch patches width"]:
        """The last state of every patch, in the order of the image; the class token is attended to."""
        extra, count = int(self.encoder.class_token), self.encoder.patches
        states = self.embed(hidden)
        first, states = states[:, :extra], states[:, extra:]
        if visible is not None:
            seen = visible.dense(count)[..., None] > 0
            states = scatter_patches(states, visible, count)
            states = jnp.where(seen, states, self.mask_token[...].astype(states.dtype))
        states = states + self.encoder.positions(self.config.hidden).astype(states.dtype)
        states = jnp.concatenate([first, states], axis=1)
        keys = (None, None) if key is None else tuple(jax.random.split(key))
        states = dropout(states, self.config.dropout, key=keys[0])
        return self.blocks(states, Visibility(), keys[1]).hidden[:, extra:]
