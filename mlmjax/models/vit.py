"""Vision transformer (Dosovitskiy et al. 2021, section 3.1), able to encode a part of the patches."""

import math
from typing import Annotated, Any, Literal, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Key
from pydantic import Field, model_validator

from mlmjax.core.errors import UserError
from mlmjax.core.types import Mask
from mlmjax.nn.attention import Visibility
from mlmjax.nn.dropout import dropout
from mlmjax.nn.linear import Linear, initializer
from mlmjax.nn.patches import gather_patches, sine_cosine_2d, xavier_uniform
from mlmjax.nn.transformer import Encoded, Transformer, TransformerConfig
from mlmjax.targets import PixelScale

Size = Annotated[int, Field(gt=0)]


class ImageTransformerConfig(TransformerConfig):
    """A stack of blocks over patches: pre-norm, without dropout."""

    norm: Literal["post", "pre"] = "pre"
    """Normalise before each sub-layer, as ViT does, or after each residual sum."""
    epsilon: Annotated[float, Field(gt=0)] = 1e-6
    """Added to the variance in layer normalisation."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Rate on embeddings and on the output of each sub-layer."""
    attention_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Rate on attention probabilities; only where it is 0 is a fused attention kernel used."""
    initial: Literal["xavier", "normal"] = "xavier"
    """Initial kernels: by the size of each layer, as ViT and MAE do, or all with ``initial_std``. Learned
    vectors always begin with that."""

    @model_validator(mode="after")
    def _has_positions(self) -> Self:
        if self.hidden % 4 and not getattr(self, "learned_positions", False):
            raise ValueError(
                f"hidden {self.hidden} is not a multiple of 4, which sine-cosine positions need"
            )
        return self


class VitConfig(ImageTransformerConfig):
    """Sizes and choices of a vision transformer; the defaults are ViT-B/16's."""

    image: tuple[Size, Size] = (224, 224)
    """Height and width of the images."""
    patch: tuple[Size, Size] = (16, 16)
    """Height and width of a patch."""
    channels: Size = 3
    class_token: bool = True
    """A learned vector before the patches."""
    masked_vector: bool = False
    """A learned vector in place of masked patches, for the corruption ``vector`` (SimMIM)."""
    input: PixelScale = PixelScale()
    """How raw pixels are scaled."""
    learned_positions: bool = False
    """Positions that are parameters, the class token's too, as ViT has them (Dosovitskiy et al. 2021, section 3.1);
    by default they are sines and cosines, as MAE has them, and the class token has none."""
    positions_of: tuple[Size, Size] | None = None
    """Image size whose positions are stretched over the image, for a model that was trained on it; by default
    the image's own."""

    @model_validator(mode="after")
    def _patches_fill_the_image(self) -> Self:
        for name in ("image", "positions_of"):
            sizes = getattr(self, name) or self.image
            for size, patch, axis in zip(sizes, self.patch, ("height", "width"), strict=True):
                if size % patch:
                    below, above = size // patch * patch, -(-size // patch) * patch
                    would = f"{below} or {above}" if below else f"{above}"
                    raise ValueError(
                        f"the {axis} {size} of {name} is not a multiple of the patch's {patch}: "
                        f"{would} would do"
                    )
        for name in ("mean", "std"):
            count = len(getattr(self.input, name))
            if count not in (1, self.channels):
                raise ValueError(
                    f"input.{name} has {count} values: give 1, or one for each of {self.channels} channels"
                )
        return self

    @classmethod
    def b16(cls, **changes: Any) -> Self:
        """ViT-B/16: 86M parameters (Dosovitskiy et al. 2021, table 1)."""
        return cls(**changes)

    @classmethod
    def l16(cls, **changes: Any) -> Self:
        """ViT-L/16: 307M parameters (Dosovitskiy et al. 2021, table 1)."""
        sizes = {"layers": 24, "hidden": 1024, "heads": 16, "mlp": 4096}
        return cls(**{**sizes, **changes})

    @classmethod
    def h14(cls, **changes: Any) -> Self:
        """ViT-H/14: 632M parameters (Dosovitskiy et al. 2021, table 1)."""
        sizes = {"layers": 32, "hidden": 1280, "heads": 16, "mlp": 5120, "patch": (14, 14)}
        return cls(**{**sizes, **changes})

    def like(self, pretrained: "VitConfig") -> Self:
        """With the sizes of a pretrained encoder."""
        return self.sized_as(pretrained, VitConfig)

    @property
    def grid(self) -> tuple[int, int]:
        """Patches down and across an image."""
        return self.image[0] // self.patch[0], self.image[1] // self.patch[1]

    @property
    def patches(self) -> int:
        """Patches of an image."""
        return self.grid[0] * self.grid[1]

    @property
    def patch_size(self) -> int:
        """Numbers in a patch: rows times columns times channels."""
        return self.patch[0] * self.patch[1] * self.channels

    def resized(self, image: tuple[int, int]) -> Self:
        """The same model for images of another size, its positions stretched over them.

        Its parameters have the same shapes, so a trained model's can be taken as they are.
        """
        return self.updated(image=image, positions_of=self.positions_of or self.image)

    def positions(self, width: int | None = None) -> Float[Array, "patches hidden"]:
        """Sines and cosines of each patch, as wide as the hidden states or, for a decoder, as wide as its own."""
        return sine_cosine_2d(self.grid, width or self.hidden, over=self.positions_grid)

    @property
    def positions_grid(self) -> tuple[int, int]:
        """Patches down and across the image whose positions are stretched over the model's."""
        over = self.positions_of or self.image
        return over[0] // self.patch[0], over[1] // self.patch[1]


class Vit(nnx.Module):
    """The module: patches to hidden states, the class token's first."""

    def __init__(self, config: VitConfig, *, rngs: nnx.Rngs):
        self.config = config
        hidden, std = config.hidden, config.initial_std
        self.embed = Linear(
            config.patch_size,
            hidden,
            axes=(None, "embed"),
            std=std,
            dtype=config.dtype,
            rngs=rngs,
        )
        self.class_token = (
            learned_vector(hidden, std=std, rngs=rngs) if config.class_token else None
        )
        self.masked_vector = (
            learned_vector(hidden, std=std, rngs=rngs) if config.masked_vector else None
        )
        places = math.prod(config.positions_grid) + int(config.class_token)
        self.position = (
            nnx.Param(initializer(std)(rngs.params(), (places, hidden)), axes=(None, "embed"))
            if config.learned_positions
            else None
        )
        self.blocks = Transformer(config, rngs=rngs)
        if config.initial == "xavier":
            xavier_uniform(self, rngs=rngs)

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
        """Hidden states of the class token, if there is one, and of the patches after it.

        Args:
            patches: all patches of each image, scaled.
            visible: the patches that are encoded, in this order; by default all, in order. The others are
                neither read nor attended to.
            exact: every place of ``visible`` is in use, as with a ratio that is constant: then attention needs no
                mask.
            replaced: the patches in whose place the learned vector stands.
            key: of dropout; without one there is none.
            every_layer: also return the state after each block.

        Raises:
            UserError: patches are to be replaced, and the model has no vector for it.
        """
        config = self.config
        first, position = self.positions()
        if visible is not None:
            patches = gather_patches(patches, visible)
            position = position[visible.positions]
        embedded = self.embed(patches)
        if replaced is not None:
            if self.masked_vector is None:
                raise UserError(
                    "The encoder has no vector to put in place of a patch: set --model.encoder.masked-vector."
                )
            if visible is not None:
                replaced = jnp.take_along_axis(replaced, visible.positions, axis=1)
            vector = self.masked_vector[...].astype(embedded.dtype)
            embedded = jnp.where(replaced[..., None], vector, embedded)
        embedded = embedded + position.astype(embedded.dtype)
        valid = None if visible is None or exact else visible.weight > 0
        if self.class_token is not None:
            token = self.class_token[...]
            embedded = prepend(token if first is None else token + first, embedded)
            if valid is not None:
                valid = jnp.pad(valid, ((0, 0), (1, 0)), constant_values=True)
        keys = (None, None) if key is None else tuple(jax.random.split(key))
        embedded = dropout(embedded, config.dropout, key=keys[0])
        return self.blocks(embedded, Visibility(valid), keys[1], every_layer=every_layer)

    def positions(self) -> tuple[Float[Array, " hidden"] | None, Float[Array, "patches hidden"]]:
        """What is added to the class token, and to each patch; learned positions are stretched bicubically."""
        config = self.config
        if self.position is None:
            return None, config.positions()
        learned, extra = self.position[...], int(config.class_token)
        patches = learned[extra:]
        if config.grid != config.positions_grid:
            grid = patches.reshape(*config.positions_grid, -1)
            resized = jax.image.resize(grid, (*config.grid, grid.shape[-1]), "cubic")
            patches = resized.reshape(-1, grid.shape[-1])
        return learned[0] if extra else None, patches


def learned_vector(width: int, *, std: float, rngs: nnx.Rngs) -> nnx.Param:
    """A parameter that stands in the place of an embedding."""
    return nnx.Param(initializer(std)(rngs.params(), (width,)), axes=("embed",))


def prepend(
    vector: Float[Array, " hidden"], states: Float[Array, "batch length hidden"]
) -> Float[Array, "batch length+1 hidden"]:
    """The vector before the states of each row, in their type."""
    first = jnp.broadcast_to(vector.astype(states.dtype), (states.shape[0], 1, vector.size))
    return jnp.concatenate([first, states], axis=1)
