"""What is to be predicted, where it is not the token itself."""

from mlmjax.targets.pixels import (
    PatchStatistics,
    PixelScale,
    PixelTarget,
    denormalise_patches,
    normalise_patches,
    patch_statistics,
    patchify,
    unpatchify,
)

__all__ = [
    "PatchStatistics",
    "PixelScale",
    "PixelTarget",
    "denormalise_patches",
    "normalise_patches",
    "patch_statistics",
    "patchify",
    "unpatchify",
]
