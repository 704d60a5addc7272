"""mlmjax: pretraining by masked prediction, in JAX.

Masking, corruption and losses are plain pure functions that need no config; experiments are values made of
the classes below; ``load`` gives a trained model back.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlmjax import corruption, losses, masking
    from mlmjax.core import prng
    from mlmjax.core.errors import UserError
    from mlmjax.core.types import Loss, Mask, Metric
    from mlmjax.core.vocabulary import Vocabulary

__version__ = "0.1.0"

_MODULES = {
    "corruption": "mlmjax.corruption",
    "losses": "mlmjax.losses",
    "masking": "mlmjax.masking",
    "prng": "mlmjax.core.prng",
}
_LAZY = {
    "UserError": "mlmjax.core.errors",
    "Loss": "mlmjax.core.types",
    "Mask": "mlmjax.core.types",
    "Metric": "mlmjax.core.types",
    "Vocabulary": "mlmjax.core.vocabulary",
    "Experiment": "mlmjax.experiment",
    "RunConfig": "mlmjax.experiment",
    "load_experiment": "mlmjax.experiment",
    "from_huggingface": "mlmjax.interop.huggingface.reading",
    "from_mae": "mlmjax.interop.mae.reading",
    "to_huggingface": "mlmjax.interop.huggingface.writing",
    "to_stablehlo": "mlmjax.interop.stablehlo.writing",
    "fill_mask": "mlmjax.evaluation.fill_mask",
    "load": "mlmjax.training.folder",
    "pretrain": "mlmjax.pretraining",
    "starting_from": "mlmjax.training.initial",
    "train_seeds": "mlmjax.seeds",
}

__all__ = [
    "Experiment",
    "Loss",
    "Mask",
    "Metric",
    "RunConfig",
    "UserError",
    "Vocabulary",
    "corruption",
    "fill_mask",
    "from_huggingface",
    "from_mae",
    "load",
    "load_experiment",
    "losses",
    "masking",
    "pretrain",
    "prng",
    "starting_from",
    "to_huggingface",
    "to_stablehlo",
    "train_seeds",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for: jax takes a second, and processes that prepare data do without."""
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _LAZY:
        raise AttributeError(f"module 'mlmjax' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
