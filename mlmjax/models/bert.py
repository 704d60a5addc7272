"""BERT (Devlin et al. 2019, section 3 and appendix A): encoder, masked-token head, next-sentence head."""

import math
from typing import Annotated, Any, Literal, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key
from pydantic import Field

from mlmjax.core.errors import UserError
from mlmjax.core.vocabulary import Vocabulary
from mlmjax.models.base import ModelConfig
from mlmjax.nn.attention import Visibility
from mlmjax.nn.dropout import dropout
from mlmjax.nn.linear import Linear, embedding, layer_norm, sinusoids
from mlmjax.nn.transformer import ACTIVATIONS, Encoded, Transformer, TransformerConfig


class BertEncoderConfig(TransformerConfig, ModelConfig):
    """Sizes and choices of BERT's encoder, whatever stands on it; the defaults are BERT-base's."""

    vocabulary: Annotated[int, Field(gt=0)] | None = None
    """Number of tokens; by default the tokenizer's."""
    vocabulary_multiple: Annotated[int, Field(gt=0)] = 1
    """Pad the token table to a multiple of this, so that hardware and meshes divide it."""
    positions: Annotated[int, Field(gt=0)] = 512
    """Longest row."""
    position_offset: Annotated[int, Field(ge=0)] = 0
    """Rows of the position table before that of a row's first token. RoBERTa's published weights have 2."""
    initial_positions: Literal["normal", "sinusoidal"] = "normal"
    """What the learned position embeddings begin as. With sinusoids, where a shift is a linear map, a model
    learns sooner to look at neighbours."""
    segments: Annotated[int, Field(gt=0)] = 2
    """Token types: 2 for pairs, 1 where a row is one text."""

    @classmethod
    def base(cls, **changes: Any) -> Self:
        """BERT-base, uncased: 110M parameters (Devlin et al. 2019, section 3)."""
        return cls(**{"vocabulary": 30522, **changes})

    @classmethod
    def large(cls, **changes: Any) -> Self:
        """BERT-large, uncased: 340M parameters (Devlin et al. 2019, section 3)."""
        sizes = {"vocabulary": 30522, "layers": 24, "hidden": 1024, "heads": 16, "mlp": 4096}
        return cls(**{**sizes, **changes})

    @classmethod
    def roberta_base(cls, **changes: Any) -> Self:
        """RoBERTa-base: 125M parameters (Liu et al. 2019, table 9); its code adds 1e-5 in the norms."""
        return cls(**{"vocabulary": 50265, "segments": 1, "epsilon": 1e-5, **changes})

    def like(self, pretrained: ModelConfig) -> Self:
        if not isinstance(pretrained, BertEncoderConfig):
            return super().like(pretrained)
        return self.sized_as(pretrained, BertEncoderConfig)

    @property
    def columns(self) -> int:
        """Rows of the token table: the vocabulary and its padding."""
        return -(-self.known_vocabulary // self.vocabulary_multiple) * self.vocabulary_multiple

    @property
    def known_vocabulary(self) -> int:
        """The number of tokens, once it is known."""
        if self.vocabulary is None:
            raise UserError("The model has no vocabulary size yet: set --model.vocabulary.")
        return self.vocabulary

    def fitted(self, vocabulary: Vocabulary | None) -> Self:
        if vocabulary is None:
            raise UserError("BERT reads tokens, and the data has no vocabulary.")
        if self.vocabulary not in (None, vocabulary.size):
            raise UserError(
                f"The tokenizer has {vocabulary.size} tokens and the model {self.vocabulary}: "
                f"set --model.vocabulary {vocabulary.size}, or leave it out."
            )
        return self.updated(vocabulary=vocabulary.size)


class BertConfig(BertEncoderConfig):
    """Sizes and choices of a BERT model; the defaults are BERT-base's."""

    head_activation: Literal["gelu", "gelu_tanh", "relu"] | None = None
    """Of the masked-token head; by default that of the blocks."""
    span_boundary: Annotated[int, Field(gt=0)] | None = None
    """Places in a run of hidden tokens that the span boundary head tells apart; none leaves the head out."""
    span_boundary_place: Annotated[int, Field(gt=0)] = 200
    """Width of the embedding of each such place."""

    def like(self, pretrained: ModelConfig) -> Self:
        alike = super().like(pretrained)
        if not isinstance(pretrained, BertConfig):
            return alike
        return alike.updated(head_activation=pretrained.head_activation)

    def build(self, rngs: nnx.Rngs) -> "Bert":
        return Bert(self, rngs=rngs)


class BertEncoder(nnx.Module):
    """The encoder: embeddings and blocks. A model is one with heads on it, so their parameters share names."""

    def __init__(self, config: BertEncoderConfig, *, rngs: nnx.Rngs):
        self.config = config
        hidden, std, dtype = config.hidden, config.initial_std, config.dtype
        self.token = embedding(config.columns, hidden, axes=("vocab", "embed"), std=std, rngs=rngs)
        rows = config.positions + config.position_offset
        self.position = embedding(rows, hidden, axes=(None, "embed"), std=std, rngs=rngs)
        if config.initial_positions == "sinusoidal":
            # Of the same size as the normal ones: the mean square of a sine is a half.
            waves = sinusoids(rows, hidden)
            self.position.embedding[...] = std * math.sqrt(2) * waves
        self.segment = embedding(config.segments, hidden, axes=(None, "embed"), std=std, rngs=rngs)
        self.norm = layer_norm(hidden, epsilon=config.epsilon, dtype=dtype, rngs=rngs)
        self.encoder = Transformer(config, rngs=rngs)

    def encode(
        self,
        tokens: Int[Array, "batch length"],
        segments: Int[Array, "batch length"],
        visibility: Visibility,
        key: Key[Array, ""] | None = None,
        *,
        positions: Int[Array, "batch length"] | None = None,
        every_layer: bool = False,
    ) -> Encoded:
        """Hidden states of the tokens.

        Args:
            tokens: token ids.
            segments: token types.
            visibility: who may attend to whom.
            key: of dropout; without one there is none.
            positions: of each token, as packed rows need them; by default 0, 1, ... in every row.
            every_layer: also return the state after each block.
        """
        keys = (None, None) if key is None else tuple(jax.random.split(key))
        first = self.config.position_offset
        position = (
            self.position.embedding[first : first + tokens.shape[1]]
            if positions is None
            else self.position(positions + first)
        )
        embedded = self.norm(self.token(tokens) + self.segment(segments) + position)
        embedded = dropout(embedded, self.config.dropout, key=keys[0])
        return self.encoder(embedded, visibility, keys[1], every_layer=every_layer)


class Bert(BertEncoder):
    """The module. ``encode`` gives hidden states; the heads take those that they are to judge."""

    config: BertConfig

    def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        hidden, std, dtype = config.hidden, config.initial_std, config.dtype
        self.mlm = MaskedTokenHead(config, rngs=rngs)
        self.pooler = Linear(hidden, hidden, axes=("embed", None), std=std, dtype=dtype, rngs=rngs)
        self.next_sentence = Linear(
            hidden, 2, axes=("embed", None), std=std, dtype=dtype, rngs=rngs
        )
        places = config.span_boundary
        self.span_boundary = (
            None if places is None else SpanBoundaryHead(config, places=places, rngs=rngs)
        )

    def mlm_logits(
        self, hidden: Float[Array, "*places hidden"]
    ) -> Float[Array, "*places vocabulary"]:
        """Float32 logits over the whole vocabulary; for a few places only, since they are large."""
        features, size = self.mlm(hidden), self.config.known_vocabulary
        table = self.token.embedding[:size].astype(features.dtype)
        return (
            jnp.matmul(features, table.T, preferred_element_type=jnp.float32) + self.mlm.bias[:size]
        )

    def next_sentence_logits(
        self, hidden: Float[Array, "batch length hidden"]
    ) -> Float[Array, "batch 2"]:
        """Float32 logits of (not next, next), from the pooled state of the first token."""
        return self.next_sentence(jnp.tanh(self.pooler(hidden[:, 0]))).astype(jnp.float32)


class MaskedTokenHead(nnx.Module):
    """What stands between a hidden state and the token table, which is the decoder too (tied).

    Calling it gives the vector that is multiplied with the table; ``bias`` is added to the logits.
    """

    def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
        hidden, std, dtype = config.hidden, config.initial_std, config.dtype
        self.activation = config.head_activation or config.activation
        self.dense = Linear(hidden, hidden, axes=("embed", None), std=std, dtype=dtype, rngs=rngs)
        self.norm = layer_norm(hidden, epsilon=config.epsilon, dtype=dtype, rngs=rngs)
        self.bias = nnx.Param(jnp.zeros(config.columns), axes=("vocab",))

    def __call__(self, hidden: Float[Array, "*places hidden"]) -> Float[Array, "*places hidden"]:
        return self.norm(ACTIVATIONS[self.activation](self.dense(hidden)))


class SpanBoundaryHead(nnx.Module):
    """Predicts the tokens of a run from what stands on either side (SpanBERT, Joshi et al. 2020, section 3.2).

    Two layers, each affine, activation, norm. As with :class:`MaskedTokenHead`, calling it gives the vector
    that is multiplied with the token table; ``bias`` is added to the logits.
    """

    def __init__(self, config: BertConfig, *, places: int, rngs: nnx.Rngs):
        hidden, std, dtype = config.hidden, config.initial_std, config.dtype
        width = config.span_boundary_place
        self.activation = config.activation
        self.places = places
        self.place = embedding(places, width, axes=(None, None), std=std, rngs=rngs)
        # Its inputs are two states and a place: few meshes divide that sum, so the outputs are cut.
        self.first = Linear(
            2 * hidden + width, hidden, axes=(None, "embed"), std=std, dtype=dtype, rngs=rngs
        )
        self.first_norm = layer_norm(hidden, epsilon=config.epsilon, dtype=dtype, rngs=rngs)
        self.second = Linear(hidden, hidden, axes=("embed", None), std=std, dtype=dtype, rngs=rngs)
        self.second_norm = layer_norm(hidden, epsilon=config.epsilon, dtype=dtype, rngs=rngs)
        self.bias = nnx.Param(jnp.zeros(config.columns), axes=("vocab",))

    def __call__(
        self,
        left: Float[Array, "*places hidden"],
        right: Float[Array, "*places hidden"],
        place: Int[Array, "*places"],
    ) -> Float[Array, "*places hidden"]:
        """The vector of each token.

        Args:
            left: the state before the token's run.
            right: the state after it.
            place: of the token within the run, from 0; the last place stands for all beyond it.
        """
        act = ACTIVATIONS[self.activation]
        place = self.place(jnp.minimum(place, self.places - 1)).astype(left.dtype)
        joined = jnp.concatenate([left, right, place], axis=-1)
        return self.second_norm(act(self.second(self.first_norm(act(self.first(joined))))))
