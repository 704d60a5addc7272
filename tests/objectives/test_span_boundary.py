"""The span boundary objective: its formula, and that no run is read from within."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from mlmjax.core.errors import UserError
from mlmjax.core.types import Batch, Context, Loss, Mask
from mlmjax.data.text import TextData
from mlmjax.masking import SpanSelection
from mlmjax.models.bert import Bert
from mlmjax.objectives.mlm import MaskedLanguageModel
from mlmjax.objectives.span_boundary import boundary
from tests.objectives.examples import LENGTH, MODEL, VOCABULARY, model, packed

OBJECTIVE = MaskedLanguageModel(
    selection=SpanSelection(ratio=0.4), span_boundary=True, chunk=32
).fitted(VOCABULARY)


def runs_of(positions: np.ndarray) -> dict[int, tuple[int, int]]:
    """The first and the last position of the run of each position."""
    runs = np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1)
    return {int(at): (int(run[0]), int(run[-1])) for run in runs for at in run}


def test_the_loss_is_that_of_the_head_at_each_runs_boundaries() -> None:
    """In packed rows too, where [CLS] and [SEP] bound the runs at a document's ends."""
    batch, context = packed([[9], [8, 7], [6, 5, 4], [3, 2, 1, 0]]), Context.of(0)

    @nnx.jit
    def compute(model: Bert, batch: Batch) -> tuple[Loss, jax.Array, Mask]:
        masked = OBJECTIVE.mask(batch, context)
        hidden = OBJECTIVE.encode(model, masked, batch, context)
        return OBJECTIVE(model, batch, context), hidden, masked.mask

    loss, hidden, mask = compute(model(), batch)
    left, right, place, target = [], [], [], []
    for row in range(4):
        positions = np.asarray(mask.positions[row])[np.asarray(mask.weight[row]) > 0]
        for at, (start, end) in runs_of(positions).items():
            left.append(hidden[row, start - 1])
            right.append(hidden[row, end + 1])
            place.append(at - start)
            target.append(batch["tokens"][row, at])
    assert max(place) > 2  # beyond the last place that the head tells apart
    head, table = model().span_boundary, model().token.embedding[...]
    features = head(jnp.stack(left), jnp.stack(right), jnp.stack(place))
    logits = features @ table.T + head.bias[...]
    log_probabilities = np.asarray(jax.nn.log_softmax(logits))[np.arange(len(target)), target]
    found = loss.terms["span_boundary_loss"]
    assert float(found.value()) == pytest.approx(-log_probabilities.mean(), rel=1e-5)
    whole = found.value() + loss.terms["mask_loss"].value()
    assert float(loss.value()) == pytest.approx(float(whole), rel=1e-6)


def test_a_target_is_predicted_from_its_boundaries_and_nothing_else() -> None:
    """Its gradient reaches the two states beside its run; beyond the ends of a row there is none."""
    positions = np.array([0, 1, 4, 6, 7, 8, 11, 0])
    weight = np.array([1, 1, 1, 1, 1, 1, 1, 0])
    mask = Mask(jnp.asarray(positions)[None], jnp.asarray(weight, jnp.float32)[None])
    hidden = jax.random.normal(jax.random.key(0), (1, 12, 16))

    def predicted(hidden: jax.Array) -> jax.Array:
        return (model().span_boundary(*boundary(hidden, mask))[0] ** 3).sum(axis=1)

    gradient = np.asarray(jax.jit(jax.jacrev(predicted))(hidden))[:, 0]
    for place, (start, end) in enumerate(runs_of(positions[:7]).values()):
        read = np.flatnonzero(abs(gradient[place]).max(axis=1))
        assert read.tolist() == [at for at in (start - 1, end + 1) if 0 <= at < 12]


def test_the_head_must_be_there() -> None:
    spec = TextData(length=LENGTH).spec()
    OBJECTIVE.check(MODEL, spec)
    with pytest.raises(UserError, match=r"set --model.span-boundary 20"):
        OBJECTIVE.check(MODEL.updated(span_boundary=None), spec)
