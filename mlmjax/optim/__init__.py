"""Optimizers and learning-rate schedules: optax, chosen by config."""

from mlmjax.optim.layer_decay import layer_scales
from mlmjax.optim.layers import per_layer
from mlmjax.optim.optimizer import Adafactor, AdamW, Lamb, Optimizer, decay_mask
from mlmjax.optim.schedules import Schedule, WarmupSchedule, warmup_schedule

__all__ = [
    "Adafactor",
    "AdamW",
    "Lamb",
    "Optimizer",
    "Schedule",
    "WarmupSchedule",
    "decay_mask",
    "layer_scales",
    "per_layer",
    "warmup_schedule",
]
