"""BERT and its kin: the classes ``Bert*``, ``Roberta*`` and ``RobertaPreLayerNorm*``."""

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from mlmjax.core.errors import UserError
from mlmjax.data.text import TextData
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
    REVERSED,
    REVERSED_TRANSPOSED,
    SAME,
    Change,
    Row,
    attention,
    below,
    linear,
    norm,
    padded,
)
from mlmjax.models.base import ModelConfig
from mlmjax.models.bert import BertConfig, BertEncoderConfig
from mlmjax.models.classifier import BertClassifierConfig
from mlmjax.objectives.classification import Classification
from mlmjax.objectives.mlm import MaskedLanguageModel
from mlmjax.optim import AdamW
from mlmjax.training.folder import Run


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
    norm: ClassVar[str] = "post"

    def holds(self, model: ModelConfig) -> bool:
        return type(model) is BertConfig and self.fits(model)

    def fits(self, model: BertEncoderConfig) -> bool:
        """Does the encoder go with this family's?"""
        return model.norm == self.norm and model.position_offset == 0

    def offset(self, config: Given) -> int:
        """Rows of the position table before that of a row's first token."""
        return 0

    def experiment(self, config: Given) -> Experiment:
        sizes = self.sizes(config)
        activation = self.head_activation(sizes["activation"])
        model = BertConfig(head_activation=activation, **sizes)
        return Experiment(
            model=model,
            objective=MaskedLanguageModel(),
            data=TextData(length=min(model.positions, 512)),
            optimizer=AdamW(),
        )

    def sizes(self, config: Given) -> dict[str, Any]:
        """Fields of our encoder's config.

        Raises:
            UserError: the config asks for what our encoder cannot do.
        """
        config.must_be("position_embedding_type", "absolute")
        config.must_be("is_decoder", False)
        config.must_be("add_cross_attention", False)
        config.must_be("tie_word_embeddings", True)
        offset = self.offset(config)
        return {
            "layers": config("num_hidden_layers"),
            "hidden": config("hidden_size"),
            "heads": config("num_attention_heads"),
            "mlp": config("intermediate_size"),
            "norm": self.norm,
            "activation": config.activation(),
            "initial_std": config("initializer_range", 0.02),
            "epsilon": config("layer_norm_eps", 1e-12),
            "dropout": config("hidden_dropout_prob", 0.1),
            "attention_dropout": config("attention_probs_dropout_prob", 0.1),
            "vocabulary": config("vocab_size"),
            "positions": config("max_position_embeddings") - offset,
            "position_offset": offset,
            "segments": config("type_vocab_size"),
        }

    def head_activation(self, activation: str) -> str | None:
        """Of the masked-token head, where it is not the blocks'."""
        return None

    def config(self, run: Run) -> dict[str, Any]:
        model = run.config.model
        assert isinstance(model, BertEncoderConfig)
        self.check_head(model)
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
            "max_position_embeddings": model.positions + model.position_offset + self.unused(model),
            "type_vocab_size": model.segments,
            "initializer_range": model.initial_std,
            "layer_norm_eps": model.epsilon,
            "tie_word_embeddings": True,
            **self.special(run),
        }

    def check_head(self, model: BertEncoderConfig) -> None:
        """See that their masked-token head has our activation.

        Raises:
            UserError: it has another.
        """
        blocks, theirs = model.activation, self.head_activation(model.activation)
        if isinstance(model, BertConfig) and (model.head_activation or blocks) != (
            theirs or blocks
        ):
            raise UserError(
                f"A model whose masked-token head has the activation '{model.head_activation or blocks}' cannot be "
                f"exported: {self.encoder}'s has '{theirs or blocks}'. Train it with --model.head-activation "
                f"{theirs or blocks}."
            )

    def special(self, run: Run) -> dict[str, Any]:
        """Ids of special tokens."""
        if run.tokenizer is None:
            return {}
        vocabulary = run.tokenizer.vocabulary
        return {
            "pad_token_id": vocabulary.padding,
            "bos_token_id": vocabulary.start,
            "eos_token_id": vocabulary.separator,
        }

    def unused(self, model: BertEncoderConfig) -> int:
        """Rows that their position table has below ours."""
        return 0

    def table(self, experiment: Experiment, prefix: str) -> Table:
        model = experiment.model
        assert isinstance(model, BertEncoderConfig)
        embeddings, unused = f"{prefix}embeddings", self.unused(model)
        words = padded(model.known_vocabulary, model.columns)
        word = f"{embeddings}.word_embeddings.weight"
        place, part = f"{embeddings}.position_embeddings.weight", "encoder"
        rows = [
            Row(part, "token/embedding", (word,), words),
            Row(part, "position/embedding", (place,), below(unused) if unused else SAME),
            Row(part, "segment/embedding", (f"{embeddings}.token_type_embeddings.weight",), SAME),
            *norm(part, "norm", f"{embeddings}.LayerNorm"),
            *self.blocks(model, prefix),
            *self.heads(model, prefix, words),
        ]
        ids = np.arange(model.positions + model.position_offset + unused)[None]
        return Table(rows, self.copies(word), {f"{embeddings}.position_ids": ids})

    def blocks(self, model: BertEncoderConfig, prefix: str) -> list[Row]:
        """Rows of the stack."""
        part, ours, layer = "encoder", "encoder/layers", f"{prefix}encoder.layer.{{layer}}"
        return [
            *attention(
                part,
                f"{ours}/attention",
                f"{layer}.attention.self.{{}}",
                heads=model.heads,
                out=f"{layer}.attention.output.dense",
            ),
            *linear(part, f"{ours}/up", f"{layer}.intermediate.dense"),
            *linear(part, f"{ours}/down", f"{layer}.output.dense"),
            *self.norms(prefix),
        ]

    def norms(self, prefix: str) -> list[Row]:
        """Rows of the layer normalisations in and after the stack."""
        ours, layer = "encoder/layers", f"{prefix}encoder.layer.{{layer}}"
        return [
            *norm("encoder", f"{ours}/attention_norm", f"{layer}.attention.output.LayerNorm"),
            *norm("encoder", f"{ours}/mlp_norm", f"{layer}.output.LayerNorm"),
        ]

    def heads(self, model: Any, prefix: str, words: Change) -> list[Row]:
        """Rows of what stands on the encoder."""
        head = "cls.predictions"
        return [
            *linear("pooler", "pooler", f"{prefix}pooler.dense"),
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

    def fits(self, model: BertEncoderConfig) -> bool:
        return model.norm == self.norm and model.position_offset > 0

    def offset(self, config: Given) -> int:
        return config("pad_token_id", 1) + 1

    def head_activation(self, activation: str) -> str | None:
        return None if activation == "gelu" else "gelu"

    def special(self, run: Run) -> dict[str, Any]:
        found, model = super().special(run), run.config.model
        assert isinstance(model, BertEncoderConfig)
        padding = model.position_offset + self.unused(model) - 1
        if found.setdefault("pad_token_id", padding) != padding:
            raise UserError(
                f"A model whose padding token is {found['pad_token_id']} cannot be exported: {self.encoder} takes "
                f"the first position from it, which here makes it {padding}."
            )
        return found

    def heads(self, model: Any, prefix: str, words: Change) -> list[Row]:
        return [
            *linear("pooler", "pooler", f"{prefix}pooler.dense"),
            Row("mlm", "mlm/bias", ("lm_head.bias",), words),
            *linear("mlm", "mlm/dense", "lm_head.dense"),
            *norm("mlm", "mlm/norm", "lm_head.layer_norm"),
        ]

    def copies(self, word: str) -> dict[str, str]:
        return {"lm_head.decoder.weight": word, "lm_head.decoder.bias": "lm_head.bias"}


class PreNormFamily(RobertaFamily):
    """RoBERTa that normalises before each sub-layer; it holds all of our models that do."""

    architectures: ClassVar = {
        "RobertaPreLayerNormForMaskedLM": ("encoder", "mlm"),
        "RobertaPreLayerNormModel": ("encoder", "pooler"),
    }
    prefix = "roberta_prelayernorm."
    encoder = "RobertaPreLayerNormModel"
    kind = "roberta-prelayernorm"
    norm = "pre"

    def fits(self, model: BertEncoderConfig) -> bool:
        return model.norm == self.norm

    def unused(self, model: BertEncoderConfig) -> int:
        """Their row 0 is that of a padding id of 0."""
        return int(model.position_offset == 0)

    def norms(self, prefix: str) -> list[Row]:
        ours, layer = "encoder/layers", f"{prefix}encoder.layer.{{layer}}"
        return [
            *norm("encoder", f"{ours}/attention_norm", f"{layer}.attention.LayerNorm"),
            *norm("encoder", f"{ours}/mlp_norm", f"{layer}.intermediate.LayerNorm"),
            *norm("encoder", "encoder/norm", f"{prefix}LayerNorm"),
        ]


class _Classifier(BertFamily):
    """What differs in classes of classification: a head, and names of its classes."""

    ours: ClassVar[str]
    """Our name of the head when it is read."""

    def holds(self, model: ModelConfig) -> bool:
        return type(model) is BertClassifierConfig and self.fits(model)

    def experiment(self, config: Given) -> Experiment:
        config.must_be("problem_type", "single_label_classification")
        sizes = self.sizes(config)
        rate = config("classifier_dropout", sizes["dropout"])
        model = BertClassifierConfig(
            head=self.ours, classes=len(class_names(config)), classifier_dropout=rate, **sizes
        )
        data = TextData(length=min(model.positions, 512), layout="documents", label_field="label")
        return Experiment(model=model, objective=Classification(), data=data, optimizer=AdamW())

    def classes(self, config: Given) -> tuple[str, ...]:
        return class_names(config)

    def config(self, run: Run) -> dict[str, Any]:
        model = run.config.model
        assert isinstance(model, BertClassifierConfig)
        dropped = {"classifier_dropout": model.classifier_dropout}
        return super().config(run) | dropped | class_entries(run)

    def heads(self, model: BertClassifierConfig, prefix: str, words: Change) -> list[Row]:
        """Both heads are an affine layer, tanh, and another one; whose the first is matters to dropout alone."""
        ours = {"pooler": ("pooler", "classifier"), "dense": ("classifier/dense", "classifier/out")}
        pairs = zip(ours[model.head], self.layers(prefix), strict=True)
        return [row for mine, theirs in pairs for row in linear("classifier", mine, theirs)]

    def layers(self, prefix: str) -> Iterable[str]:
        """Their names of the head's layers."""
        return "classifier.dense", "classifier.out_proj"

    def copies(self, word: str) -> dict[str, str]:
        return {}


class BertClassifierFamily(_Classifier):
    """BERT with a classifier on its pooled state."""

    architectures: ClassVar = {"BertForSequenceClassification": ("encoder", "classifier")}
    ours = "pooler"

    def layers(self, prefix: str) -> Iterable[str]:
        return f"{prefix}pooler.dense", "classifier"


class RobertaClassifierFamily(_Classifier, RobertaFamily):
    """RoBERTa with a classifier of two layers."""

    architectures: ClassVar = {"RobertaForSequenceClassification": ("encoder", "classifier")}
    ours = "dense"


class PreNormClassifierFamily(_Classifier, PreNormFamily):
    """The same, normalising before each sub-layer."""

    architectures: ClassVar = {
        "RobertaPreLayerNormForSequenceClassification": ("encoder", "classifier")
    }
    ours = "dense"
