"""BERT and RoBERTa: their classes ``Bert*`` and ``Roberta*``."""

from typing import Any, ClassVar

import numpy as np

from mlmjax.core.errors import UserError
from mlmjax.data.text import TextData
from mlmjax.data.tokenizer import Tokenizer
from mlmjax.experiment import Experiment
from mlmjax.interop.huggingface.family import Family, Given, Table, their_activation
from mlmjax.interop.huggingface.mapping import (
    REVERSED,
    REVERSED_TRANSPOSED,
    SAME,
    Row,
    attention,
    linear,
    norm,
    padded,
)
from mlmjax.models.bert import BertConfig
from mlmjax.objectives.mlm import MaskedLanguageModel
from mlmjax.optim import AdamW


class BertFamily(Family):
    """BERT (Devlin et al. 2019)."""

    architectures: ClassVar = {
        "BertForMaskedLM": ("encoder", "mlm"),
        "BertForPreTraining": ("encoder", "pooler", "mlm", "next_sentence"),
        "BertModel": ("encoder", "pooler"),
    }
    prefix = "bert."
    encoder = "BertModel"
    kind: ClassVar[str] = "bert"
    offset: ClassVar[int] = 0

    def experiment(self, config: Given) -> Experiment:
        config.must_be("position_embedding_type", "absolute")
        config.must_be("is_decoder", False)
        config.must_be("add_cross_attention", False)
        config.must_be("tie_word_embeddings", True)
        positions = config("max_position_embeddings") - self.offset
        model = BertConfig(
            layers=config("num_hidden_layers"),
            hidden=config("hidden_size"),
            heads=config("num_attention_heads"),
            mlp=config("intermediate_size"),
            activation=config.activation(),
            head_activation=self.head_activation(config.activation()),
            initial_std=config("initializer_range", 0.02),
            epsilon=config("layer_norm_eps", 1e-12),
            dropout=config("hidden_dropout_prob", 0.1),
            attention_dropout=config("attention_probs_dropout_prob", 0.1),
            vocabulary=config("vocab_size"),
            positions=positions,
            position_offset=self.offset,
            segments=config("type_vocab_size"),
        )
        return Experiment(
            model=model,
            objective=MaskedLanguageModel(),
            data=TextData(length=min(positions, 512)),
            optimizer=AdamW(),
        )

    def head_activation(self, activation: str) -> str | None:
        """Of the masked-token head, where it is not the blocks'."""
        return None

    def config(self, experiment: Experiment, tokenizer: Tokenizer | None) -> dict[str, Any]:
        model = experiment.model
        assert isinstance(model, BertConfig)
        if model.norm != "post":
            raise UserError(
                f"A model with norm '{model.norm}' cannot be exported: {self.encoder} normalises after each sum. "
                "One that is trained with --model.norm post can."
            )
        if (model.head_activation or model.activation) != (
            self.head_activation(model.activation) or model.activation
        ):
            raise UserError(
                f"A model whose masked-token head has the activation '{model.head_activation}' cannot be "
                f"exported: {self.encoder} has another there."
            )
        special = (
            {}
            if tokenizer is None
            else {
                "pad_token_id": tokenizer.vocabulary.padding,
                "bos_token_id": tokenizer.vocabulary.start,
                "eos_token_id": tokenizer.vocabulary.separator,
            }
        )
        return {
            "model_type": self.kind,
            "vocab_size": model.known_vocabulary,
            "hidden_size": model.hidden,
            "num_hidden_layers": model.layers,
            "num_attention_heads": model.heads,
            "intermediate_size": model.mlp,
            "hidden_act": their_activation(model.activation),
            "hidden_dropout_prob": model.dropout,
            "attention_probs_dropout_prob": model.attention_dropout,
            "max_position_embeddings": model.positions + model.position_offset,
            "type_vocab_size": model.segments,
            "initializer_range": model.initial_std,
            "layer_norm_eps": model.epsilon,
            "tie_word_embeddings": True,
            **special,
        }

    def table(self, experiment: Experiment, prefix: str) -> Table:
        model = experiment.model
        assert isinstance(model, BertConfig)
        embeddings, layer = f"{prefix}embeddings", f"{prefix}encoder.layer.{{layer}}"
        words = padded(model.known_vocabulary, model.columns)
        word = f"{embeddings}.word_embeddings.weight"
        part, ours = "encoder", "encoder/layers"
        rows = [
            Row(part, "token/embedding", (word,), words),
            Row(part, "position/embedding", (f"{embeddings}.position_embeddings.weight",), SAME),
            Row(part, "segment/embedding", (f"{embeddings}.token_type_embeddings.weight",), SAME),
            *norm(part, "norm", f"{embeddings}.LayerNorm"),
            *attention(
                part,
                f"{ours}/attention",
                f"{layer}.attention.self.{{}}",
                heads=model.heads,
                out=f"{layer}.attention.output.dense",
            ),
            *norm(part, f"{ours}/attention_norm", f"{layer}.attention.output.LayerNorm"),
            *linear(part, f"{ours}/up", f"{layer}.intermediate.dense"),
            *linear(part, f"{ours}/down", f"{layer}.output.dense"),
            *norm(part, f"{ours}/mlp_norm", f"{layer}.output.LayerNorm"),
            *linear("pooler", "pooler", f"{prefix}pooler.dense"),
            *self.heads(words),
        ]
        ids = np.arange(model.positions + self.offset)[None]
        return Table(rows, self.copies(word), {f"{embeddings}.position_ids": ids})

    def heads(self, words: Any) -> list[Row]:
        """Rows of the heads."""
        head = "cls.predictions"
        return [
            Row("mlm", "mlm/bias", (f"{head}.bias",), words),
            *linear("mlm", "mlm/dense", f"{head}.transform.dense"),
            *norm("mlm", "mlm/norm", f"{head}.transform.LayerNorm"),
            # Their class 0 is "follows"; ours is class 1, the label is_next.
            Row(
                "next_sentence",
                "next_sentence/kernel",
                ("cls.seq_relationship.weight",),
                REVERSED_TRANSPOSED,
            ),
            Row("next_sentence", "next_sentence/bias", ("cls.seq_relationship.bias",), REVERSED),
        ]

    def copies(self, word: str) -> dict[str, str]:
        """Tied tensors of the head."""
        head = "cls.predictions"
        return {f"{head}.decoder.weight": word, f"{head}.decoder.bias": f"{head}.bias"}


class RobertaFamily(BertFamily):
    """RoBERTa (Liu et al. 2019): positions count from the padding id's next, and the head has a GELU always."""

    architectures: ClassVar = {
        "RobertaForMaskedLM": ("encoder", "mlm"),
        "RobertaModel": ("encoder", "pooler"),
    }
    prefix = "roberta."
    encoder = "RobertaModel"
    kind = "roberta"
    offset = 2

    def experiment(self, config: Given) -> Experiment:
        config.must_be("pad_token_id", self.offset - 1)
        return super().experiment(config)

    def head_activation(self, activation: str) -> str | None:
        return None if activation == "gelu" else "gelu"

    def heads(self, words: Any) -> list[Row]:
        return [
            Row("mlm", "mlm/bias", ("lm_head.bias",), words),
            *linear("mlm", "mlm/dense", "lm_head.dense"),
            *norm("mlm", "mlm/norm", "lm_head.layer_norm"),
        ]

    def copies(self, word: str) -> dict[str, str]:
        return {"lm_head.decoder.weight": word, "lm_head.decoder.bias": "lm_head.bias"}
