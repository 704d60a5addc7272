"""Filling [MASK] in a sentence: each mask on its own, given all that is visible.

With several masks the predictions are conditionals, one a mask; their product is not the probability of
the filled sentence.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from mlmjax.core.errors import UserError
from mlmjax.data.documents import normalise
from mlmjax.data.tokenizer import Tokenizer
from mlmjax.models.bert import Bert
from mlmjax.nn.attention import Visibility
from mlmjax.training.folder import Run


class Candidate(NamedTuple):
    """A token for a mask, as the vocabulary has it, and its probability."""

    token: str
    probability: float


class Filled(NamedTuple):
    """A sentence and its masks, in order, each with the most probable tokens first.

    Attributes:
        text: as given.
        masks: candidates of each mask.
        best: the text, normalised as the model reads it, with the most probable token in each mask's place.
    """

    text: str
    masks: list[list[Candidate]]
    best: str


def fill_mask(run: Run, text: str, *, top: int = 5) -> Filled:
    """Fill each mask token of a text.

    Raises:
        UserError: the run is not of text, its model fills no masks, or its head was never trained; or the text
            has no mask, or is longer than the model's rows.
    """
    tokenizer = run.tokenizer
    if tokenizer is None:
        raise UserError(f"The run in {run.folder} is not of text, so it fills no masks in one.")
    if not isinstance(run.model, Bert):
        raise UserError(
            f"The model in {run.folder} is a {type(run.model).__name__}, which has no head that fills masks."
        )
    if "mlm" in run.untrained:
        raise UserError(
            f"The weights that were imported into {run.folder} have no masked-token head (mlm), so it cannot fill "
            f"masks yet. Train it first: mlmjax train {run.folder}"
        )
    vocabulary = tokenizer.vocabulary
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"The text is not UTF-8: {text!r}") from error
    encoded = tokenizer.encode_with_masks(text).ids
    ids = np.concatenate([[vocabulary.start], encoded, [vocabulary.separator]])
    places = np.flatnonzero(ids == vocabulary.mask)
    if not places.size:
        raise UserError(f"There is no {tokenizer.mask_token} in the text: {text!r}")
    longest = run.model.config.positions
    if len(ids) > longest:
        raise UserError(f"The text has {len(ids)} tokens, the model {longest} positions: {text!r}")

    row = np.full((1, min(_rounded(len(ids)), longest)), vocabulary.padding, np.int32)
    row[0, : len(ids)] = ids
    valid = np.arange(row.size)[None] < len(ids)
    graph, parameters = nnx.split(run.model)
    logits = np.array(_logits(graph, parameters, row, valid, places[None]))[0]
    logits[:, list(vocabulary.special)] = -np.inf
    masks = [_candidates(tokenizer, each, top) for each in logits]
    return Filled(text, masks, _best(tokenizer, text, masks))


@partial(jax.jit, static_argnums=0)
def _logits(
    graph: nnx.GraphDef,
    parameters: nnx.State,
    tokens: Int[Array, "batch length"],
    valid: Bool[Array, "batch length"],
    places: Int[Array, "batch masks"],
) -> Float[Array, "batch masks vocabulary"]:
    model = nnx.merge(graph, parameters)
    hidden = model.encode(tokens, jnp.zeros_like(tokens), Visibility(valid)).hidden
    return model.mlm_logits(jnp.take_along_axis(hidden, places[..., None], axis=1))


def _candidates(tokenizer: Tokenizer, logits: np.ndarray, top: int) -> list[Candidate]:
    probabilities = np.exp(logits - logits.max())
    probabilities /= probabilities.sum()
    best = np.argsort(-probabilities, kind="stable")[:top]
    return [Candidate(tokenizer.token(int(i)), float(probabilities[i])) for i in best]


def _best(tokenizer: Tokenizer, text: str, masks: list[list[Candidate]]) -> str:
    """The text, normalised as the model reads it, with each mask replaced by its first candidate."""
    pieces = normalise(text).split(tokenizer.mask_token)
    filled = pieces[0]
    for candidates, piece in zip(masks, pieces[1:], strict=True):
        filled += tokenizer.spelled(candidates[0].token) + piece
    return filled


def _rounded(length: int) -> int:
    """The next multiple of 32, so that few shapes are compiled."""
    return -(-length // 32) * 32
