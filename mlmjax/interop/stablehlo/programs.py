"""What a served model computes, by its kind: names, shapes and types of what goes in, and what comes out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from mlmjax.core.errors import UserError
from mlmjax.models.base import ModelConfig
from mlmjax.models.bert import Bert, BertEncoder
from mlmjax.models.classifier import BertClassifier, VitClassifier
from mlmjax.models.mae import Mae
from mlmjax.nn.attention import Visibility
from mlmjax.training.folder import Run


@dataclass(frozen=True)
class Input:
    """An array that is given.

    Attributes:
        name: of the argument.
        shape: sizes; a name is of a size that each call chooses.
        dtype: numpy's name of its type.
        meaning: what it holds.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str
    meaning: str


@dataclass(frozen=True)
class Program:
    """What is computed.

    Attributes:
        title: what the model is.
        config: of the module, with nothing in it that is of one platform or of training alone.
        inputs: in the order of the arguments.
        limits: of the sizes that have names, as ``jax.export.symbolic_shape`` takes them.
        outputs: their meanings, by name.
        compute: of the module and the arrays, the outputs by name.
    """

    title: str
    config: ModelConfig
    inputs: tuple[Input, ...]
    limits: tuple[str, ...]
    outputs: dict[str, str]
    compute: Callable[..., dict[str, Array]]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the inputs."""
        return tuple(each.name for each in self.inputs)


def program_of(run: Run) -> Program:
    """The program of a run's model.

    Raises:
        UserError: there is none for a model of its kind; or what it is for was never trained.
    """
    model = run.model
    if isinstance(model, BertClassifier | VitClassifier) and run.untrained:
        raise UserError(
            f"The classifier in {run.folder} needs {', '.join(run.untrained)}, which the imported weights did not "
            f"have: train it first, with `mlmjax train {run.folder}`."
        )
    if isinstance(model, Bert | BertClassifier):
        return _of_text(run, model)
    if isinstance(model, Mae | VitClassifier):
        return _of_images(run, model)
    raise UserError(
        f"A {type(model).__name__} cannot be exported as StableHLO: BERT, masked autoencoders and classifiers made "
        "of them can."
    )


HIDDEN = "hidden"
LOGITS = "logits"


def _of_text(run: Run, model: BertEncoder) -> Program:
    config, shape = model.config, ("batch", "length")
    inputs = (
        Input("tokens", shape, "int32", "token ids, the start token first"),
        Input("segments", shape, "int32", "0, and 1 in the second text of a pair"),
        Input("valid", shape, "bool", "False where a row is padding, at its end"),
    )
    plain = config.updated(attention="xla", remat="none")
    limits = (f"length <= {config.positions}",)
    last = {HIDDEN: "last hidden state of each token, [batch, length, hidden]"}
    if isinstance(model, BertClassifier):
        meanings = {LOGITS: "score of each class, [batch, classes]"}
        return Program("text classifier", plain, inputs, limits, meanings, _classes_of_text)
    if "mlm" in run.untrained:
        return Program("text encoder", plain, inputs, limits, last, _hidden_of_text)
    meanings = {LOGITS: "score of each token of the vocabulary at each place", **last}
    return Program("masked language model", plain, inputs, limits, meanings, _tokens_of_text)


def _of_images(run: Run, model: Mae | VitClassifier) -> Program:
    sizes = model.config.encoder
    dtype = np.dtype(run.config.data.spec()["pixels"].dtype).name
    pixels = Input(
        "pixels",
        ("batch", *sizes.image, sizes.channels),
        dtype,
        "raw pixels, not scaled: height, width, channels",
    )
    plain = model.config.updated(encoder=sizes.updated(attention="xla", remat="none"))
    if isinstance(model, VitClassifier):
        meanings = {LOGITS: "score of each class, [batch, classes]"}
        return Program("image classifier", plain, (pixels,), (), meanings, _classes_of_images)
    places = "the class token first, then the" if sizes.class_token else "the"
    meanings = {HIDDEN: f"last hidden states, nothing hidden: {places} patches row by row"}
    return Program("image encoder", plain, (pixels,), (), meanings, _hidden_of_images)


def _states(model: Any, tokens: Array, segments: Array, valid: Array) -> Array:
    # A tokenizer tells the texts of a pair apart, also for a model that has one type of token.
    segments = jnp.minimum(segments, model.config.segments - 1)
    return model.encode(tokens, segments, Visibility(valid)).hidden


def _hidden_of_text(model: Any, tokens: Array, segments: Array, valid: Array) -> dict[str, Array]:
    return {HIDDEN: _states(model, tokens, segments, valid).astype(jnp.float32)}


def _tokens_of_text(model: Any, tokens: Array, segments: Array, valid: Array) -> dict[str, Array]:
    hidden = _states(model, tokens, segments, valid)
    return {LOGITS: model.mlm_logits(hidden), HIDDEN: hidden.astype(jnp.float32)}


def _classes_of_text(model: Any, tokens: Array, segments: Array, valid: Array) -> dict[str, Array]:
    return {LOGITS: model.logits(tokens, segments, Visibility(valid))}


def _hidden_of_images(model: Any, pixels: Array) -> dict[str, Array]:
    return {HIDDEN: model.encode(model.patches(pixels)).hidden.astype(jnp.float32)}


def _classes_of_images(model: Any, pixels: Array) -> dict[str, Array]:
    return {LOGITS: model.logits(pixels)}


def flat_parameters(model: nnx.Module) -> dict[str, np.ndarray]:
    """The parameters of a module as ``encoder/layers/up/kernel`` and so on, on the host."""
    return {
        "/".join(map(str, path)): np.asarray(jax.device_get(variable[...]))
        for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param))
    }
