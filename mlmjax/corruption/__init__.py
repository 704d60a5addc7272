"""The corruption C(x, M): what the encoder sees at the selected positions."""

from mlmjax.corruption.tokens import Corrupted, Kind, TokenCorruption, corrupt_tokens

__all__ = ["Corrupted", "Kind", "TokenCorruption", "corrupt_tokens"]
