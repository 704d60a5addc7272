"""The handwritten digits that scikit-learn carries: 1,797 of 8 by 8 pixels, in 17 grey values."""

import hashlib
from functools import cache

import numpy as np

from mlmjax.data.image_sources.arrays import Array


class Digits:
    """The digits of ``sklearn.datasets.load_digits`` (Alpaydin and Kaynak 1998, test part)."""

    classes = tuple("0123456789")
    ignored = 0

    def __str__(self) -> str:
        return "the digits that scikit-learn carries"

    def parts(self) -> list[Array]:
        """All of them; 0 to 16 become 0 to 255."""
        images, labels = _digits()
        return [Array(images, labels, str(self))]

    def digest(self) -> str:
        """Hash of the pixels and labels."""
        found = hashlib.blake2b(digest_size=16)
        for array in _digits():
            found.update(array.tobytes())
        return found.hexdigest()


@cache
def _digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits  # slow to import

    found = load_digits()
    grey = np.rint(found.images * (255 / 16)).astype(np.uint8)
    return grey[..., None], found.target.astype(np.int64)
