"""The values that pass between the rooms: batches, masks, metrics and losses.

Three things that a sequence has are never one boolean array: *padding* (the batch's ``valid``: is there
a token?), *visibility* (who may attend to whom, ``nn.attention``) and *content* (:class:`Mask`: which
positions are predicted).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, Shaped

from mlmjax.core import prng

Batch = Mapping[str, Array]
"""Arrays of one batch by name; every array's first axis is the example. Objectives know the names."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Mask:
    """Which positions are predicted: a fixed capacity K, so that shapes are static.

    Attributes:
        positions: indices into the sequence, ascending; unused places hold 0.
        weight: 1 where the place holds a target, 0 where it is unused.
    """

    positions: Int[Array, "*batch capacity"]
    weight: Float[Array, "*batch capacity"]

    def dense(self, length: int) -> Float[Array, "*batch length"]:
        """The same mask as one number a position: 1 where it is predicted."""
        hits = jax.nn.one_hot(self.positions, length) * self.weight[..., None]
        return hits.sum(axis=-2)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Metric:
    """A figure as a sum and a weight, so that micro-batches, devices and hosts add up exactly.

    ``reduce`` says what the figure is once everything is added: ``mean`` is sum / weight;
    ``variance`` is the weighted variance, over the entries of a vector, of each entry's mean.
    """

    sum: Float[Array, "*entries"]
    weight: Float[Array, "*entries"]
    reduce: Literal["mean", "variance"] = field(default="mean", metadata={"static": True})

    def value(self) -> Float[Array, ""]:
        """The figure; not a number where nothing was counted."""
        if self.reduce == "mean":
            return self.sum / self.weight
        mean = self.sum / jnp.maximum(self.weight, 1e-9)
        total = self.weight.sum()
        centre = self.sum.sum() / total
        return (self.weight * jnp.square(mean - centre)).sum() / total


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Loss:
    """A loss as terms, each a sum and a weight: add both over micro-batches and devices, divide once.

    Attributes:
        terms: the loss is the sum of their values. Each has a denominator of its own (masked tokens,
            sequences); a coefficient belongs into the term's sum.
        metrics: what is logged; no gradient flows from them.
    """

    terms: dict[str, Metric]
    metrics: dict[str, Metric]

    def value(self, weights: dict[str, Float[Array, ""]] | None = None) -> Float[Array, ""]:
        """The loss, each term divided by its weight, or by the given one (that of a larger whole)."""
        weights = weights or {name: term.weight for name, term in self.terms.items()}
        shares = [
            term.sum / jnp.maximum(jax.lax.stop_gradient(weights[name]), 1e-9)
            for name, term in self.terms.items()
        ]
        return jnp.stack(shares).sum()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Context:
    """What an objective may depend on beside the model and the batch.

    Attributes:
        seed: the root key of the run (``prng.root``).
        step: the number of updates made so far.
        part: the micro-batch within the step.
        training: without it, the model is deterministic (no dropout).
    """

    seed: Key[Array, ""]
    step: Shaped[Array, ""]
    part: Shaped[Array, ""]
    training: bool = field(default=True, metadata={"static": True})

    @classmethod
    def of(cls, seed: int, *, step: int = 0, training: bool = False) -> "Context":
        """The context of a seed, outside the training loop."""
        return cls(prng.root(seed), jnp.int32(step), jnp.int32(0), training)

    def dropout_key(self) -> Key[Array, ""] | None:
        """The key of dropout in this step; None where the model is to be deterministic."""
        if not self.training:
            return None
        return prng.fold(prng.stream(self.seed, "dropout"), self.step, self.part)
