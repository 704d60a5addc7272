"""Masked language modelling, with next-sentence prediction as an option (Devlin et al. 2019, section 3.1)."""

from typing import Annotated, Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import tyro
from jaxtyping import Array, Bool, Float, Int, Shaped
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
    Selection,
    TokenSelection,
    eligible_tokens,
    select_tokens,
)
from mlmjax.models.base import ModelConfig
from mlmjax.models.bert import Bert, BertConfig
from mlmjax.nn.attention import Visibility
from mlmjax.objectives.base import Objective, Spec, Work

DENOMINATORS = {"token_mean": token_mean, "sequence_mean": sequence_mean}


class Masked(NamedTuple):
    """A batch with part of it hidden.

    Attributes:
        eligible: positions that might have been selected.
        mask: those that are to be predicted.
        corrupted: what the encoder sees there, and the fate of each target.
        targets: the token ids to be predicted, at the mask's positions.
    """

    eligible: Bool[Array, "batch length"]
    mask: Mask
    corrupted: Corrupted
    targets: Int[Array, "batch capacity"]


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
    """Mean over all targets, or over each sequence's targets first."""
    next_sentence: bool = False
    """Also predict whether the second segment continues the first; needs ``--data.layout pairs``."""
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

    def capacity(self, length: int) -> int:
        """The number of places for targets in a row."""
        schedule, ratio = self.ratio_schedule, self.selection.ratio
        return self.selection.capacity(length, schedule.highest(ratio) if schedule else ratio)

    def ratio(self, step: Shaped[Array, ""]) -> Float[Array, ""]:
        """The ratio in force at a step."""
        ratio = self.selection.ratio
        return (
            jnp.float32(ratio)
            if self.ratio_schedule is None
            else self.ratio_schedule.at(step, ratio)
        )

    def mask(self, batch: Batch, context: Context) -> Masked:
        """Hide part of a batch; a pure function of (seed, epoch, example id) and the ratio in force."""
        if self.vocabulary is None:
            raise UserError("The objective has no vocabulary yet: call fitted(vocabulary) first.")
        vocabulary, ratio = self.vocabulary, self.ratio(context.step)
        epoch = batch["epoch"] % self.static_masks if self.static_masks else batch["epoch"]
        tokens, capacity = batch["tokens"], self.capacity(batch["tokens"].shape[1])
        eligible = eligible_tokens(tokens, batch["valid"], special=vocabulary.special)

        def keys(name: str) -> Array:
            return prng.per_example(prng.stream(context.seed, name), epoch, batch["id"])

        mask = jax.vmap(
            lambda key, eligible, starts: self.selection(
                key, eligible, starts, ratio=ratio, capacity=capacity
            )
        )(keys("mask"), eligible, batch["word_starts"])
        corrupted = jax.vmap(lambda key, row, mask: self.corruption(key, row, mask, vocabulary))(
            keys("corruption"), tokens, mask
        )
        targets = jnp.take_along_axis(tokens, mask.positions, axis=1)
        return Masked(eligible, mask, corrupted, targets)

    def __call__(self, model: Bert, batch: Batch, context: Context) -> Loss:
        masked = self.mask(batch, context)
        hidden = model.encode(
            masked.corrupted.tokens,
            batch["segments"],
            Visibility(batch["valid"]),
            context.dropout_key(),
        ).hidden
        found = self._predict(model, hidden, masked.mask.positions, masked.targets)
        total = DENOMINATORS[self.denominator](found.loss, masked.mask.weight)
        terms = {"mask_loss": Metric(total.sum, total.weight)}
        metrics = self._metrics(found, masked, length=hidden.shape[1])
        metrics["mask_ratio"] = Metric(self.ratio(context.step), jnp.float32(1))
        if self.visible_sample:
            metrics["visible_loss"] = self._visible_loss(model, hidden, batch, masked, context)
        if self.next_sentence:
            judged = cross_entropy(model.next_sentence_logits(hidden), batch["is_next"])
            present = batch["valid"].any(axis=1).astype(jnp.float32)
            terms["next_sentence_loss"] = _mean(judged.loss, present)
            metrics["next_sentence_accuracy"] = _mean(judged.correct, present)
        return Loss(terms, {**terms, **metrics})

    def _predict(self, model: Bert, hidden: Array, positions: Array, targets: Array) -> TokenLoss:
        """Loss of the targets at some positions of each row: gathered first, then projected."""
        gathered = jnp.take_along_axis(hidden, positions[..., None], axis=1)
        features = model.mlm(gathered)
        found = chunked_cross_entropy(
            features.reshape(-1, features.shape[-1]),
            model.token.embedding[...],
            model.mlm.bias[...],
            targets.reshape(-1),
            vocabulary=model.config.known_vocabulary,
            chunk=self.chunk,
        )
        shape = positions.shape
        return TokenLoss(found.loss.reshape(shape), found.correct.reshape(shape))

    def _metrics(self, found: TokenLoss, masked: Masked, *, length: int) -> dict[str, Metric]:
        weight, kind = masked.mask.weight, masked.corrupted.kind
        by_kind = {name: weight * (kind == value) for name, value in KINDS.items()}
        metrics = {"mask_accuracy": _mean(found.correct, weight)}
        for name, chosen in by_kind.items():
            metrics[f"{name}_loss"] = _mean(found.loss, chosen)
            metrics[f"{name}_share"] = Metric(chosen.sum(), weight.sum())
        metrics["selected_share"] = Metric(weight.sum(), masked.eligible.sum(dtype=jnp.float32))
        at = jnp.zeros(length).at[masked.mask.positions]
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
        head = 2 * self.capacity(length) * model.hidden * (model.hidden + model.known_vocabulary)
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
            "visibility": "bidirectional over valid tokens",
            "target": "token id",
            "loss": {"kind": "cross-entropy", "denominator": self.denominator},
            "next_sentence": self.next_sentence,
        }


KINDS = {"masked": Kind.MASK, "random": Kind.RANDOM, "kept": Kind.KEEP}


def _mean(values: Shaped[Array, "*places"], weight: Float[Array, "*places"]) -> Metric:
    return Metric((values * weight).sum(), weight.sum())
