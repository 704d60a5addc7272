"""A compiled program, read from XLA's text.

The format is described in XLA's documentation, "HLO semantics" and "Layouts and tiling".
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

_BITS = re.compile(r"\d+")
_SHAPE = re.compile(r"\b([a-z]+[0-9a-z]*)\[([\d,<=]*)\](?:\{([^{}]*)\})?")
_NAME = re.compile(r"%([\w.\-]+)")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%([\w.\-]+) = (.*)$")
_COMPUTATION = re.compile(r"^(ENTRY )?%([\w.\-]+) \(.*\{\s*$")


class Shape(NamedTuple):
    """An array.

    Attributes:
        bytes: of all its numbers, without padding.
        in_memory: whether it lies in the device's main memory, not in what is on the chip.
    """

    bytes: int
    in_memory: bool

    @classmethod
    def all(cls, text: str) -> list[Self]:
        """The arrays of a type, which may be a tuple."""
        found = []
        for kind, sizes, layout in _SHAPE.findall(text):
            count = 1
            for size in sizes.replace("<=", "").split(","):
                count *= int(size) if size else 1
            bits = 8 if kind == "pred" else int((_BITS.search(kind) or ["0"])[0])
            space = re.search(r"S\((\d+)\)", layout)
            found.append(cls(-(-count * bits // 8), space is None or space[1] == "0"))
        return found


@dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Attributes:
        name: of its value.
        opcode: what it does.
        shapes: of its value; several of a tuple.
        given: what stands in its brackets: the values that it takes, or its number.
        rest: attributes.
        root: whether its value is the computation's.
    """

    name: str
    opcode: str
    shapes: list[Shape]
    given: str
    rest: str
    root: bool

    @classmethod
    def of(cls, line: str) -> "Instruction | None":
        """The instruction of a line; None where there is none."""
        match = _INSTRUCTION.match(line)
        if match is None:
            return None
        kind, rest = _cut(match[3])
        opcode, _, rest = rest.strip().partition("(")
        given, rest = _cut("(" + rest)
        return cls(match[2], opcode, Shape.all(kind), given[1:-1], rest, match[1] is not None)

    @cached_property
    def operands(self) -> list[str]:
        """The values that it takes."""
        return _NAME.findall(self.given)

    @property
    def index(self) -> int:
        """Of a ``get-tuple-element``, which."""
        match = re.search(r"\bindex=(\d+)", self.rest)
        return int(match[1]) if match else 0

    def called(self, name: str) -> list[str]:
        """The computations that an attribute names."""
        match = re.search(rf"\b{name}=(\{{[^}}]*\}}|%[\w.\-]+)", self.rest)
        return _NAME.findall(match[1]) if match else []

    @property
    def bytes(self) -> int:
        """Of all its arrays that lie in main memory."""
        return sum(shape.bytes for shape in self.shapes if shape.in_memory)


def _cut(text: str) -> tuple[str, str]:
    """A type or a list of operands, which may hold brackets, and what comes after it."""
    depth = 0
    for place, letter in enumerate(text):
        if letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
            if depth == 0 and text[0] == "(":
                return text[: place + 1], text[place + 1 :]
        elif letter == " " and depth == 0:
            return text[:place], text[place:]
    return text, ""


@dataclass(frozen=True)
class Computation:
    """A function of the program."""

    instructions: dict[str, Instruction]

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """Who reads each value."""
        found: dict[str, list[Instruction]] = {}
        for each in self.instructions.values():
            for name in each.operands:
                found.setdefault(name, []).append(each)
        return found

    @cached_property
    def parameters(self) -> list[Instruction]:
        """In their order."""
        found = [each for each in self.instructions.values() if each.opcode == "parameter"]
        return sorted(found, key=lambda each: int(each.given))

    @property
    def root(self) -> Instruction:
        """Its result."""
        return next(each for each in self.instructions.values() if each.root)


def read(text: str) -> tuple[dict[str, Computation], str]:
    """The computations by name, and the name of the one that is run."""
    computations: dict[str, Computation] = {}
    entry, current = "", None
    for line in text.splitlines():
        begins = _COMPUTATION.match(line)
        if begins:
            current = computations[begins[2]] = Computation({})
            entry = begins[2] if begins[1] else entry
        elif current is not None:
            each = Instruction.of(line)
            if each is not None:
                current.instructions[each.name] = each
    return computations, entry
