"""Random numbers of the host: a pure function of a name and numbers, as keys are on the device."""

import hashlib

import numpy as np


def draws(name: str, *numbers: int, count: int) -> list[int]:
    """Numbers of 64 bits that are a pure function of a name and numbers."""
    key = " ".join([name, *map(str, numbers)]).encode()
    return np.frombuffer(hashlib.shake_128(key).digest(8 * count), "<u8").tolist()


def words(numbers: np.ndarray) -> np.ndarray:
    """The high and the low word of each number: integers [...] to uint32 [..., 2]."""
    return np.stack([numbers >> 32, numbers & 0xFFFFFFFF], axis=-1).astype(np.uint32)
