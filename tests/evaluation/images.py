"""What the tests of this room share: small masked autoencoders, and images for them."""

from functools import cache

import numpy as np
from flax import nnx

from mlmjax.models.mae import DecoderConfig, Mae, MaeConfig
from mlmjax.models.vit import VitConfig

HEIGHT, WIDTH = 12, 8
PATCH = (3, 2)
GRID = (4, 4)

SIZES = {"layers": 2, "hidden": 16, "heads": 2, "mlp": 32}
ENCODER = VitConfig(image=(HEIGHT, WIDTH), patch=PATCH, channels=3, masked_vector=True, **SIZES)
DECODER = DecoderConfig(**SIZES | {"layers": 1})


@cache
def model(*, class_token: bool = True, dropout: float = 0.0) -> Mae:
    """A model of those sizes, built once for all tests."""
    encoder = ENCODER.updated(class_token=class_token, dropout=dropout)
    config = MaeConfig(encoder=encoder, decoder=DECODER)
    return nnx.jit(lambda: config.build(nnx.Rngs(params=3)))()


def batch(rows: int = 5, *, valid: int | None = None, seed: int = 0) -> dict[str, np.ndarray]:
    """Images of random pixels, of which only the first are there."""
    draw = np.random.default_rng(seed)
    return {
        "pixels": draw.integers(0, 256, size=(rows, HEIGHT, WIDTH, 3), dtype=np.uint8),
        "valid": np.arange(rows) < (rows if valid is None else valid),
        "id": np.stack([np.zeros(rows), np.arange(rows)], axis=1).astype(np.uint32),
        "epoch": np.zeros(rows, np.int32),
    }
