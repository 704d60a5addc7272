"""Rows and masks made by numpy alone, for tests that count them."""

import numpy as np

from mlmjax.corruption import Kind
from mlmjax.evaluation.audit.counters import Drawn

SIZE, SPECIAL = 9, (0, 1, 2)


def drawn_of(seed, *, rows=5, length=12):
    """Rows of random tokens, padded, with random masks that leave special tokens alone."""
    draw = np.random.default_rng(seed)
    tokens = draw.integers(1, SIZE, (rows, length))
    valid = np.arange(length) < draw.integers(0, length + 1, (rows, 1))
    eligible = valid & ~np.isin(tokens, SPECIAL)
    selected = eligible & (draw.random((rows, length)) < 0.4)
    kind = np.where(selected, draw.integers(0, 3, (rows, length)), -1)
    seen = np.where(kind == Kind.MASK, 2, tokens)
    seen = np.where(kind == Kind.RANDOM, draw.integers(3, SIZE, (rows, length)), seen)
    document = np.sort(draw.integers(0, 3, (rows, length)), axis=1)
    return Drawn(
        tokens=tokens,
        valid=valid,
        eligible=eligible,
        word_starts=draw.random((rows, length)) < 0.5,
        times=selected.astype(np.int32),
        outside=0,
        seen=seen,
        kind=kind,
        document=np.where(valid, document, -1),
        packed=True,
        capacity=length,
    )
