"""Classification, for fine-tuning: nothing is hidden, and a label of each example is predicted."""

from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import Field

from mlmjax.core.errors import UserError
from mlmjax.core.types import Batch, Context, Loss, Metric
from mlmjax.losses import cross_entropy
from mlmjax.models.base import ModelConfig
from mlmjax.models.classifier import (
    BertClassifier,
    BertClassifierConfig,
    VitClassifier,
    VitClassifierConfig,
)
from mlmjax.nn.attention import Visibility
from mlmjax.objectives.base import Objective, Spec, Work
from mlmjax.objectives.images import check_images

LABEL_OPTIONS = {
    "tokens": "--data.layout documents and --data.label-field, the field that holds the class",
    "pixels": "--data.labels",
}
"""What makes the data put labels into batches, by what else is in them."""


class Classification(Objective):
    """Tell the class of each example; cross-entropy.

    A label of -1 is none: such an example counts in nothing.
    """

    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the target that is spread evenly over all classes (Szegedy et al. 2016, section 7), in training
    alone: held-out losses are those of the labels."""

    def check(self, model: ModelConfig, spec: Spec) -> None:
        wanted = {"tokens": BertClassifierConfig, "pixels": VitClassifierConfig}
        read = "pixels" if "pixels" in spec else "tokens"
        if not isinstance(model, wanted[read]):
            what = "texts" if read == "tokens" else "images"
            raise UserError(
                f"Classification of {what} needs a {wanted[read].__name__}, not a {type(model).__name__}."
            )
        if "labels" not in spec:
            raise UserError(f"Classification needs labels in batches: set {LABEL_OPTIONS[read]}.")
        if isinstance(model, VitClassifierConfig):
            check_images(model.encoder, spec)
        if isinstance(model, BertClassifierConfig) and spec["tokens"].shape[1] > model.positions:
            raise UserError(
                f"Rows have {spec['tokens'].shape[1]} tokens and the model {model.positions} positions: set "
                f"--data.length to at most {model.positions}."
            )

    def logits(
        self, model: BertClassifier | VitClassifier, batch: Batch, context: Context
    ) -> Float[Array, "batch classes"]:
        """The model's scores of a batch."""
        key = context.dropout_key()
        if isinstance(model, VitClassifier):
            return model.logits(batch["pixels"], key)
        return model.logits(batch["tokens"], batch["segments"], Visibility(batch["valid"]), key)

    def __call__(
        self, model: BertClassifier | VitClassifier, batch: Batch, context: Context
    ) -> Loss:
        logits, labels = self.logits(model, batch, context), batch["labels"]
        there = (labels >= 0).astype(jnp.float32)
        found = cross_entropy(logits, jnp.maximum(labels, 0))
        losses = found.loss
        if context.training and self.label_smoothing:
            share = self.label_smoothing
            losses = (1 - share) * losses - share * jax.nn.log_softmax(logits).mean(axis=-1)
        term = Metric((losses * there).sum(), there.sum())
        accuracy = Metric((found.correct * there).sum(), there.sum())
        return Loss({"class_loss": term}, {"class_loss": term, "class_accuracy": accuracy})

    def work(self, model: ModelConfig, spec: Spec) -> Work:
        if isinstance(model, BertClassifierConfig):
            rows, length = spec["tokens"].shape
            one, unit, units = model.flops(length), "tokens", rows * length
        else:
            assert isinstance(model, VitClassifierConfig)
            rows = units = spec["pixels"].shape[0]
            one, unit = model.flops(), "images"
        return Work(3 * rows * (one + model.head_flops()), unit, units)

    def describe(self) -> dict[str, Any]:
        return {
            "mask": None,
            "corruption": None,
            "visibility": "bidirectional over all patches or valid tokens",
            "target": "class of the example",
            "loss": {
                "kind": "cross-entropy",
                "label_smoothing": self.label_smoothing,
                "denominator": "labelled examples",
            },
        }
