"""Optimizers as configs: optax's, with decay masks, and per layer where layers are stacked.

Each is a chain: clip the gradient by its global norm, turn it into a direction, scale that by minus
the learning rate. Which parameters do not decay is decided by name, for a bias of stacked layers
has as many axes as a matrix.
"""

from abc import abstractmethod
from collections.abc import Collection
from typing import Annotated

import jax
import optax
from jax.tree_util import DictKey, KeyPath
from jaxtyping import PyTree
from pydantic import Field

from mlmjax.core.config import Config
from mlmjax.optim.layer_decay import layer_scales, scale_by_layer
from mlmjax.optim.layers import names, per_layer
from mlmjax.optim.schedules import Schedule, WarmupSchedule

Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def decay_mask(params: PyTree, undecayed: Collection[str] = ("bias", "scale")) -> PyTree:
    """A tree like ``params``: whether each parameter decays.

    Args:
        params: nested dicts of arrays (or of their shapes).
        undecayed: names of parameters that do not; a parameter's name is the last dict key on its
            path. The defaults are those of biases and of the scales of norms, as in BERT's
            published code: embeddings decay.
    """

    def decays(path: KeyPath, _: object) -> bool:
        keys = names(tuple(key for key in path if isinstance(key, DictKey)))
        return not keys or keys[-1] not in undecayed

    return jax.tree.map_with_path(decays, params)


class Optimizer(Config):
    """Base class of optimizers: a subclass gives the direction of a step."""

    learning_rate: Schedule = WarmupSchedule()
    """The size of a step over the run."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    """How much of each parameter a step takes away, times the learning rate (decoupled decay)."""
    undecayed: tuple[str, ...] = ("bias", "scale")
    """Names of the parameters that do not decay; LAMB does not adapt their rates either."""
    clip: Positive | None = 1.0
    """The gradient's largest global norm; longer ones are shortened to it. None: no clipping."""
    layer_decay: Annotated[float, Field(gt=0, le=1)] | None = None
    """Each layer's learning rate is that of the next one times this, for fine-tuning (Clark et al. 2020, "ELECTRA",
    table 7; He et al. 2022, "MAE", table 9; 0.65 to 0.8 are usual). None: all layers learn alike."""

    @abstractmethod
    def direction(self, decays: PyTree) -> optax.GradientTransformation:
        """From the clipped gradient to a step against its direction, at learning rate 1.

        Args:
            decays: which parameters decay, as from :func:`decay_mask`.
        """

    def schedule(self, steps: int) -> optax.Schedule:
        """The learning rate as a function of the step, for records; ``build`` uses the same."""
        return self.learning_rate.build(steps)

    def build(self, params: PyTree, steps: int) -> optax.GradientTransformation:
        """The whole chain, from gradient to update.

        The state is a tree of arrays; its moments have the structure of ``params``. ``update``
        needs the parameters as its third argument.

        Args:
            params: nested dicts of arrays (or of their shapes); arrays under a key ``layers`` have
                a leading layer axis.
            steps: updates of the whole run, for the schedule.

        Raises:
            UserError: the schedule does not fit the run, or the model has no layers whose rates could decay.
        """
        chain = [
            optax.identity() if self.clip is None else optax.clip_by_global_norm(self.clip),
            self.direction(decay_mask(params, self.undecayed)),
        ]
        if self.layer_decay is not None:
            chain.append(scale_by_layer(layer_scales(params, self.layer_decay)))
        return optax.chain(*chain, optax.scale_by_learning_rate(self.schedule(steps)))


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2).

    The defaults are BERT's (Devlin et al. 2019, appendix A.2; clipping and epsilon from its code).
    BERT's code leaves out the correction of the moments' bias, which optax makes; in a warm-up of
    10 000 steps the difference hardly matters.
    """

    betas: tuple[Share, Share] = (0.9, 0.999)
    """Decay rates of the first and second moment."""
    epsilon: Positive = 1e-6
    """Added to the square root of the second moment."""

    def direction(self, decays: PyTree) -> optax.GradientTransformation:
        """The corrected first moment over the root of the second, plus the decay."""
        return optax.chain(
            optax.scale_by_adam(*self.betas, eps=self.epsilon),
            optax.add_decayed_weights(self.weight_decay, mask=decays),
        )


class Lamb(AdamW):
    """LAMB, for large batches (You et al. 2020, algorithm 2): AdamW, tensor by tensor.

    A tensor's step is as long as the tensor itself, times the learning rate. Stacked layers count
    as separate tensors. As in its published code, parameters that do not decay keep Adam's step.
    """

    def direction(self, decays: PyTree) -> optax.GradientTransformation:
        """AdamW's direction, each tensor's scaled to the norm of the tensor."""
        return optax.chain(
            super().direction(decays),
            per_layer(optax.masked(optax.scale_by_trust_ratio(), decays)),
        )


class Adafactor(Optimizer):
    """Adafactor, whose second moment of a matrix is a row and a column (Shazeer and Stern 2018).

    Algorithm 4 with factoring (section 3), update clipping (section 6), increasing decay (section
    7.2) and relative step sizes (section 8), without momentum. Stacked layers count as separate
    matrices. Weight decay, which the paper has not, is scaled by the learning rate like AdamW's.
    """

    learning_rate: Schedule = WarmupSchedule(peak=1e-2, decay="rsqrt")
    """The size of a step over the run; with ``relative``, as a share of each tensor's size."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """How much of each parameter a step takes away, times the learning rate (decoupled decay)."""
    clip: Positive | None = None
    """The gradient's largest global norm; longer ones are shortened to it. None: no clipping."""
    decay: Share = 0.8
    """The second moment's decay rate at step t is 1 - t ** -decay."""
    epsilon: Positive = 1e-30
    """Added to the squared gradient."""
    update_clip: Annotated[float, Field(ge=1)] | None = 1.0
    """The largest root mean square of a tensor's step. None: no limit."""
    factor_from: Annotated[int, Field(ge=1)] = 128
    """Tensors with two axes at least this long are factored."""
    relative: bool = True
    """Whether a tensor's step is scaled by the root mean square of the tensor (at least 0.001)."""

    def direction(self, decays: PyTree) -> optax.GradientTransformation:
        """The gradient over the root of its second moment, clipped and scaled, plus the decay."""
        steps = [
            optax.scale_by_factored_rms(
                decay_rate=self.decay,
                min_dim_size_to_factor=self.factor_from,
                epsilon=self.epsilon,
            )
        ]
        if self.update_clip is not None:
            steps.append(optax.clip_by_block_rms(self.update_clip))
        if self.relative:
            steps.append(optax.scale_by_param_block_rms())
        return optax.chain(
            per_layer(optax.chain(*steps)),
            optax.add_decayed_weights(self.weight_decay, mask=decays),
        )
