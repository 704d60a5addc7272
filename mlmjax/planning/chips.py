"""Published figures of accelerators."""

import math
from dataclasses import dataclass

from mlmjax.core.errors import UserError

GIB = 2**30


@dataclass(frozen=True)
class Chip:
    """What one chip can do, as its maker publishes it.

    Attributes:
        name: as in a topology.
        memory: bytes.
        flops: multiplications and additions of bfloat16 a second.
        bandwidth: of the memory, bytes a second.
        interconnect: bytes a second that a chip sends over all its links together.
        axes: of the torus of chips.
        largest: chips in one slice.
        kind: ``tpu`` chips can be compiled for without one.
        source: the document.
    """

    name: str
    memory: int
    flops: float
    bandwidth: float
    interconnect: float
    axes: int
    largest: int
    kind: str
    source: str


_CLOUD = "Google Cloud documentation, TPU {}, system architecture"

CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", 32 * GIB, 275e12, 1.2e12, 300e9, 3, 4096, "tpu", _CLOUD.format("v4")),
        Chip("v5e", 16 * GIB, 197e12, 819e9, 200e9, 2, 256, "tpu", _CLOUD.format("v5e")),
        Chip("v5p", 95 * GIB, 459e12, 2.765e12, 600e9, 3, 6144, "tpu", _CLOUD.format("v5p")),
        Chip("v6e", 32 * GIB, 918e12, 1.638e12, 400e9, 2, 256, "tpu", _CLOUD.format("v6e")),
        Chip(
            "a100",
            80 * GIB,
            312e12,
            2.039e12,
            300e9,
            1,
            8,
            "gpu",
            "NVIDIA A100 data sheet, SXM, 80 GB",
        ),
        Chip(
            "h100",
            80 * GIB,
            989e12,
            3.35e12,
            450e9,
            1,
            8,
            "gpu",
            "NVIDIA H100 data sheet, SXM, without sparsity",
        ),
        Chip(
            "h200",
            141 * 10**9,
            989e12,
            4.8e12,
            450e9,
            1,
            8,
            "gpu",
            "NVIDIA H200 data sheet, SXM, without sparsity",
        ),
    )
}
"""Memory of Google's chips is published in GB and counted here in GiB, as their compiler does. Of links half of the
two-way bandwidth is counted, which is what a chip can send."""


@dataclass(frozen=True)
class Topology:
    """Chips and how they are laid out, such as ``v5e:16x16``."""

    chip: Chip
    shape: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> "Topology":
        """The topology of a name.

        Raises:
            UserError: the chip is not known, or the shape is none of its torus; it says which would do.
        """
        name, _, shape = text.partition(":")
        chip = CHIPS.get(name.lower())
        if chip is None:
            raise UserError(
                f"--topology {text}: the chips that are known are {', '.join(CHIPS)}, as in v5e:16x16, "
                "v5p:4x4x4 or h100:8."
            )
        parts = shape.split("x")
        would = f"{chip.name} is laid out as {_example(chip)}, of at most {chip.largest} chips"
        if not all(part.isdecimal() and int(part) for part in parts) or len(parts) != chip.axes:
            raise UserError(f"--topology {text}: {would}.")
        sizes = tuple(map(int, parts))
        if math.prod(sizes) > chip.largest:
            raise UserError(f"--topology {text}: these are {math.prod(sizes)} chips, and {would}.")
        return cls(chip, sizes)

    def __str__(self) -> str:
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"

    @property
    def devices(self) -> int:
        """Chips, each of which is one device."""
        return math.prod(self.shape)


def _example(chip: Chip) -> str:
    return {1: "{}:8", 2: "{0}:4x4 or {0}:16x16", 3: "{0}:2x2x1 or {0}:4x4x4"}[chip.axes].format(
        chip.name
    )
