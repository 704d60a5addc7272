"""The corruption C(x, M): what the encoder sees at the selected positions."""

from mlmjax.corruption.patches import PatchCorruption, PatchKind, corrupt_patches
from mlmjax.corruption.runs import Runs, runs
from mlmjax.corruption.tokens import Corrupted, Kind, TokenCorruption, Unit, corrupt_tokens

__all__ = [
    "Corrupted",
    "Kind",
    "PatchCorruption",
    "PatchKind",
    "Runs",
    "TokenCorruption",
    "Unit",
    "corrupt_patches",
    "corrupt_tokens",
    "runs",
]
