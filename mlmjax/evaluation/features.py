"""Features of frozen encoders: hidden states, pooled to one vector an example, with nothing masked or random."""

from collections.abc import Iterable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from mlmjax.core.errors import UserError
from mlmjax.core.types import Batch
from mlmjax.models.bert import BertEncoder
from mlmjax.models.classifier import VitClassifier
from mlmjax.models.mae import Mae
from mlmjax.nn.attention import Visibility

Pooling = Literal["mean", "class", "max"]
"""Mean or maximum over an image's patches, or over a text's tokens, [CLS] and [SEP] included; or the state of the
class token, which in text is [CLS]."""


OF_IMAGES = (Mae, VitClassifier)
"""Models whose examples are images."""


def features(
    model: nnx.Module,
    batches: Iterable[dict[str, np.ndarray]],
    *,
    layer: int | None = None,
    pooling: Pooling = "mean",
) -> Float[np.ndarray, "rows hidden"]:
    """One vector an example; the same in every call.

    Args:
        model: a :class:`Mae` or a :class:`Bert`, or a classifier with the encoder of one.
        batches: arrays by name, ``pixels`` and ``valid``, or ``tokens``, ``segments`` and ``valid``; others are not
            looked at. Rows that only fill a batch are left out.
        layer: the state after that many blocks, 0 for the embeddings; before the final norm of a pre-norm encoder.
            By default the last state, after the norm.
        pooling: how the states of an example become one vector.

    Raises:
        UserError: the model is of another kind, it has no such layer or no class token, or rows are packed.
    """
    check(model, layer=layer, pooling=pooling)
    names = ("pixels",) if isinstance(model, OF_IMAGES) else ("tokens", "segments", "valid")
    graph, parameters = nnx.split(model)
    found = [np.zeros((0, _sizes(model).hidden), np.float32)]
    for batch in batches:
        if "documents" in batch:
            raise UserError(
                "Features are of whole rows, and packed rows hold several documents: use --data.layout full."
            )
        valid = batch["valid"]
        present = valid if valid.ndim == 1 else valid.any(axis=1)
        shown = {name: batch[name] for name in names}
        pooled = _pooled(graph, parameters, shown, layer=layer, pooling=pooling)
        found.append(np.asarray(pooled)[present])
    return np.concatenate(found)


def check(model: nnx.Module, *, layer: int | None, pooling: Pooling) -> None:
    """Refuse a layer or a pooling that the model has not.

    Raises:
        UserError: naming the option to change.
    """
    if not isinstance(model, (*OF_IMAGES, BertEncoder)):
        raise UserError(
            "Features are taken of masked autoencoders, of BERT, and of classifiers made of them, not of a "
            f"{type(model).__name__}."
        )
    layers = _sizes(model).layers
    if layer is not None and not 0 <= layer <= layers:
        raise UserError(
            f"--layer {layer}: the encoder has layers 0 (the embeddings) to {layers}; leave it out for the last "
            "state."
        )
    if pooling == "class" and isinstance(model, OF_IMAGES) and not model.config.encoder.class_token:
        raise UserError(
            "--pooling class: the encoder was built without a class token; use mean or max."
        )


def _sizes(model: Any) -> Any:
    """The config of the encoder's blocks."""
    return model.config.encoder if isinstance(model, OF_IMAGES) else model.config


@partial(jax.jit, static_argnums=0, static_argnames=("layer", "pooling"))
def _pooled(
    graph: nnx.GraphDef, parameters: nnx.State, batch: Batch, *, layer: int | None, pooling: Pooling
) -> Float[Array, "batch hidden"]:
    model = nnx.merge(graph, parameters)
    every = layer is not None
    if isinstance(model, OF_IMAGES):
        patches = model.patches(batch["pixels"])
        encoded = model.encode(patches, every_layer=every)
        extra, valid = int(model.config.encoder.class_token), jnp.ones(patches.shape[:2])
    else:
        visibility = Visibility(batch["valid"])
        encoded = model.encode(batch["tokens"], batch["segments"], visibility, every_layer=every)
        extra, valid = 0, batch["valid"].astype(jnp.float32)
    states = encoded.hidden if encoded.layers is None else encoded.layers[layer]
    states = states.astype(jnp.float32)
    if pooling == "class":
        return states[:, 0]
    states, there = states[:, extra:], valid[..., None]
    if pooling == "max":
        return jnp.where(there > 0, states, -jnp.inf).max(axis=1)
    return (states * there).sum(axis=1) / jnp.maximum(there.sum(axis=1), 1)
