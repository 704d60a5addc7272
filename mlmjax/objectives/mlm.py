"""Masked language modelling, with next-sentence prediction as an option (Devlin et al. 2019, section 3.1), and
with the span boundary objective as another (SpanBERT, Joshi et al. 2020, section 3.2).
"""

from functools import partial
from typing import Annotated, Any, Literal, Self

import jax
import jax.numpy as jnp
import tyro
from jaxtyping import Array, Float, Shaped
from pydantic import Field

from mlmjax.core import prng
from mlmjax.core.errors import UserError
from mlmjax.core.types import Batch, Context, Loss, Mask, Metric
from mlmjax.core.vocabulary import Vocabulary
from mlmjax.corruption import Corrupted, Kind, TokenCorruption
from mlmjax.losses import (
    TokenLoss,
    chunked_cross_entropy,
    cross_entropy,
    sequence_mean,
    token_mean,
)
from mlmjax.masking import (
    RatioSchedule,
    Row,
    Selection,
    TokenSelection,
    eligible_tokens,
    select_tokens,
)
from mlmjax.masking.packed import document_positions, packed_capacity
from mlmjax.models.base import ModelConfig
from mlmjax.models.bert import Bert, BertConfig
from mlmjax.nn.attention import Visibility
from mlmjax.objectives.base import Objective, Spec, Work
from mlmjax.objectives.hiding import Keys, Masked, example_keys, hide_documents
from mlmjax.objectives.span_boundary import boundary

DENOMINATORS = {"token_mean": token_mean, "sequence_mean": sequence_mean}


class MaskedLanguageModel(Objective):
    """Hide tokens, predict them from both sides; cross-entropy over the hidden ones only."""

    selection: Selection = TokenSelection()
    """Which positions are hidden."""
    ratio_schedule: RatioSchedule | None = None
    """Changes the selection's ratio over the steps; by default it is constant."""
    corruption: TokenCorruption = TokenCorruption()
    """What the encoder sees at hidden positions."""
    static_masks: Annotated[int, Field(gt=0)] | None = None
    """Number of masks of an example before they repeat, epoch after epoch; by default each epoch's are new."""
    denominator: Literal["token_mean", "sequence_mean"] = "token_mean"
    """Mean over all targets, or over each sequence's targets first (each document's, in packed rows)."""
    next_sentence: bool = False
    """Also predict whether the second segment continues the first; needs ``--data.layout pairs``."""
    span_boundary: bool = False
    """Also predict each hidden token from the states on either side of its run; needs
    ``--model.span-boundary``."""
    chunk: Annotated[int, Field(gt=0)] = 4096
    """Columns of the vocabulary whose logits exist at a time."""
    visible_sample: Annotated[int, Field(ge=0)] = 1
    """Visible tokens a row whose loss is logged: far below the masked loss, it tells of a leak or a copy."""
    vocabulary: Annotated[Vocabulary | None, tyro.conf.Suppress] = None
    """Taken from the tokenizer."""

    def fitted(self, vocabulary: Vocabulary | None) -> Self:
        return self.updated(vocabulary=vocabulary)

    def check(self, model: ModelConfig, spec: Spec) -> None:
        if not isinstance(model, BertConfig):
            raise UserError(
                f"Masked language modelling needs a BertConfig, not a {type(model).__name__}."
            )
        length = spec["tokens"].shape[1]
        if length > model.positions:
            raise UserError(
                f"Rows have {length} tokens and the model {model.positions} positions: set "
                f"--data.length to at most {model.positions}, or --model.positions {length}."
            )
        if self.next_sentence and "is_next" not in spec:
            raise UserError(
                "Next-sentence prediction needs rows of two segments: set --data.layout pairs, "
                "or --objective.no-next-sentence."
            )
        if "is_next" in spec and model.segments < 2:
            raise UserError("Rows of two segments need --model.segments 2.")
        if self.span_boundary and model.span_boundary is None:
            raise UserError(
                "The span boundary objective needs a head: set --model.span-boundary 20, the longest run whose "
                "places it tells apart, or --objective.no-span-boundary."
            )

    def capacity(self, length: int, documents: int = 0) -> int:
        """The number of places for targets in a row.

        Args:
            length: tokens in a row.
            documents: in a packed row at most; 0 where rows are not packed.
        """
        schedule, ratio = self.ratio_schedule, self.selection.ratio
        places = self.selection.capacity(length, schedule.highest(ratio) if schedule else ratio)
        return packed_capacity(places, length=length, documents=documents) if documents else places

    def ratio(self, step: Shaped[Array, ""]) -> Float[Array, ""]:
        """The ratio in force at a step."""
        ratio = self.selection.ratio
        return (
            jnp.float32(ratio)
            if self.ratio_schedule is None
            else self.ratio_schedule.at(step, ratio)
        )

    def mask(self, batch: Batch, context: Context) -> Masked:
        """Hide part of a batch; a pure function of (seed, epoch, id) and the ratio in force.

        The id is that of the row or, in packed rows, that of each document.
        """
        if self.vocabulary is None:
            raise UserError("The objective has no vocabulary yet: call fitted(vocabulary) first.")
        vocabulary, ratio, tokens = self.vocabulary, self.ratio(context.step), batch["tokens"]
        epoch = batch["epoch"] % self.static_masks if self.static_masks else batch["epoch"]
        row = Row(
            eligible=eligible_tokens(tokens, batch["valid"], special=vocabulary.special),
            word_starts=batch["word_starts"],
            sentence_starts=batch["sentence_starts"],
            frequency=batch["frequency"],
        )
        places = self.capacity(tokens.shape[1])

        def hide(keys: Keys, row: Row, tokens: Array) -> tuple[Mask, Corrupted]:
            mask = self.selection(keys.mask, row, ratio=ratio, capacity=places, step=context.step)
            return mask, self.corruption(keys.corruption, tokens, mask, vocabulary)

        if "documents" in batch:
            ids = batch["document_ids"]
            capacity = self.capacity(tokens.shape[1], ids.shape[1])
            packed = jax.vmap(partial(hide_documents, hide, capacity=capacity))
            keys = example_keys(context.seed, epoch, ids)
            mask, corrupted = packed(keys, row, tokens, batch["documents"])
        else:
            keys = example_keys(context.seed, epoch, batch["id"])
            mask, corrupted = jax.vmap(hide)(keys, row, tokens)
        targets = jnp.take_along_axis(tokens, mask.positions, axis=1)
        return Masked(row.eligible, mask, corrupted, targets)

    def encode(
        self, model: Bert, masked: Masked, batch: Batch, context: Context
    ) -> Float[Array, "batch length hidden"]:
        """Hidden states of what the encoder is shown; in packed rows, of each document by itself."""
        documents = batch.get("documents")
        return model.encode(
            masked.corrupted.tokens,
            batch["segments"],
            Visibility(batch["valid"], documents),
            context.dropout_key(),
            positions=None if documents is None else document_positions(documents),
        ).hidden

    def __call__(self, model: Bert, batch: Batch, context: Context) -> Loss:
        masked = self.mask(batch, context)
        hidden = self.encode(model, masked, batch, context)
        found = self._predict(model, hidden, masked.mask.positions, masked.targets)
        terms = {"mask_loss": self._total(found.loss, masked.mask, batch)}
        metrics = self._metrics(found, masked, batch)
        metrics["mask_ratio"] = Metric(self.ratio(context.step), jnp.float32(1))
        if self.visible_sample:
            metrics["visible_loss"] = self._visible_loss(model, hidden, batch, masked, context)
        if self.span_boundary:
            assert model.span_boundary is not None
            features = model.span_boundary(*boundary(hidden, masked.mask))
            bias = model.span_boundary.bias[...]
            judged = self._judge(model, features, bias, masked.targets)
            terms["span_boundary_loss"] = self._total(judged.loss, masked.mask, batch)
            metrics["span_boundary_accuracy"] = _mean(judged.correct, masked.mask.weight)
        if self.next_sentence:
            judged = cross_entropy(model.next_sentence_logits(hidden), batch["is_next"])
            present = batch["valid"].any(axis=1).astype(jnp.float32)
            terms["next_sentence_loss"] = _mean(judged.loss, present)
            metrics["next_sentence_accuracy"] = _mean(judged.correct, present)
        return Loss(terms, {**terms, **metrics})

    def _predict(self, model: Bert, hidden: Array, positions: Array, targets: Array) -> TokenLoss:
        """Loss of the targets at some positions of each row: gathered first, then projected."""
        gathered = jnp.take_along_axis(hidden, positions[..., None], axis=1)
        return self._judge(model, model.mlm(gathered), model.mlm.bias[...], targets)

    def _judge(self, model: Bert, features: Array, bias: Array, targets: Array) -> TokenLoss:
        """Loss of the targets given the vectors that are multiplied with the token table."""
        found = chunked_cross_entropy(
            features.reshape(-1, features.shape[-1]),
            model.token.embedding[...],
            bias,
            targets.reshape(-1),
            vocabulary=model.config.known_vocabulary,
            chunk=self.chunk,
        )
        shape = targets.shape
        return TokenLoss(found.loss.reshape(shape), found.correct.reshape(shape))

    def _total(self, losses: Array, mask: Mask, batch: Batch) -> Metric:
        """The sum and the weight of a term, by the denominator that was chosen."""
        weight = mask.weight
        if self.denominator == "sequence_mean" and "documents" in batch:
            # Each document is a sequence: its targets alone count in a copy of the row.
            owner = jnp.take_along_axis(batch["documents"], mask.positions, axis=1)
            own = owner[:, None] == jnp.arange(batch["document_ids"].shape[1])[:, None]
            weight = (own * weight[:, None]).reshape(-1, weight.shape[1])
            losses = jnp.repeat(losses, own.shape[1], axis=0)
        total = DENOMINATORS[self.denominator](losses, weight)
        return Metric(total.sum, total.weight)

    def _metrics(self, found: TokenLoss, masked: Masked, batch: Batch) -> dict[str, Metric]:
        weight, kind = masked.mask.weight, masked.corrupted.kind
        by_kind = {name: weight * (kind == value) for name, value in KINDS.items()}
        metrics = {"mask_accuracy": _mean(found.correct, weight)}
        for name, chosen in by_kind.items():
            metrics[f"{name}_loss"] = _mean(found.loss, chosen)
            metrics[f"{name}_share"] = Metric(chosen.sum(), weight.sum())
        metrics["selected_share"] = Metric(weight.sum(), masked.eligible.sum(dtype=jnp.float32))
        positions = masked.mask.positions
        if "documents" in batch:
            within = document_positions(batch["documents"])
            positions = jnp.take_along_axis(within, positions, axis=1)
        at = jnp.zeros(batch["tokens"].shape[1]).at[positions]
        metrics["position_variance"] = Metric(
            at.add(found.loss * weight), at.add(weight), reduce="variance"
        )
        return metrics

    def _visible_loss(
        self, model: Bert, hidden: Array, batch: Batch, masked: Masked, context: Context
    ) -> Metric:
        """Loss of a few tokens that the encoder was shown; no gradient."""
        visible = masked.eligible & (masked.mask.dense(hidden.shape[1]) == 0)
        keys = prng.per_example(prng.stream(context.seed, "visible"), batch["epoch"], batch["id"])
        sample = jax.vmap(
            lambda key, row: select_tokens(key, row, ratio=1.0, capacity=self.visible_sample)
        )(keys, visible)
        targets = jnp.take_along_axis(batch["tokens"], sample.positions, axis=1)
        model, hidden = jax.lax.stop_gradient((model, hidden))
        return _mean(self._predict(model, hidden, sample.positions, targets).loss, sample.weight)

    def work(self, model: ModelConfig, spec: Spec) -> Work:
        assert isinstance(model, BertConfig)
        rows, length = spec["tokens"].shape
        documents = spec["document_ids"].shape[1] if "documents" in spec else 0
        head = model.hidden * (model.hidden + model.known_vocabulary)
        if self.span_boundary:
            # Twice as much, and a first layer that reads two states and a place.
            head += head + model.hidden * (2 * model.hidden + model.span_boundary_place)
        head = 2 * self.capacity(length, documents) * head
        return Work(3 * rows * (model.flops(length) + head), "tokens", rows * length)

    def describe(self) -> dict[str, Any]:
        dump = self.model_dump(mode="json", serialize_as_any=True)
        return {
            "mask": {
                **dump["selection"],
                "ratio_schedule": dump["ratio_schedule"],
                "kind": "dynamic" if self.static_masks is None else "static",
                "static_masks": self.static_masks,
            },
            "corruption": dump["corruption"],
            "visibility": "bidirectional over valid tokens; in packed rows, those of the same document",
            "target": "token id",
            "loss": {"kind": "cross-entropy", "denominator": self.denominator},
            "next_sentence": self.next_sentence,
            "span_boundary": self.span_boundary,
        }


KINDS = {"masked": Kind.MASK, "random": Kind.RANDOM, "kept": Kind.KEEP}


def _mean(values: Shaped[Array, "*places"], weight: Float[Array, "*places"]) -> Metric:
    return Metric((values * weight).sum(), weight.sum())
