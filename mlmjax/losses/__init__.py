"""The loss and its denominator: which errors count, and over how many they are averaged."""

from mlmjax.losses.cross_entropy import (
    TokenLoss,
    chunked_cross_entropy,
    cross_entropy,
    full_cross_entropy,
)
from mlmjax.losses.denominator import Total, sequence_mean, token_mean
from mlmjax.losses.regression import Reduce, patch_error

__all__ = [
    "Reduce",
    "TokenLoss",
    "Total",
    "chunked_cross_entropy",
    "cross_entropy",
    "full_cross_entropy",
    "patch_error",
    "sequence_mean",
    "token_mean",
]
