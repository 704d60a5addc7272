"""The loss and its denominator: which errors count, and over how many they are averaged."""

from mlmjax.losses.cross_entropy import (
    TokenLoss,
    chunked_cross_entropy,
    cross_entropy,
    full_cross_entropy,
)
from mlmjax.losses.denominator import Total, sequence_mean, token_mean

__all__ = [
    "TokenLoss",
    "Total",
    "chunked_cross_entropy",
    "cross_entropy",
    "full_cross_entropy",
    "sequence_mean",
    "token_mean",
]
