"""What a compiled program moves: bytes to and from memory, and between devices.

XLA's own analysis counts the body of a loop once; here it counts as often as it is run, which the loop's condition
tells.
"""

import re
from dataclasses import dataclass, field

from mlmjax.planning.hlo import Computation, Instruction, read

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")
"""Kinds of operations between devices."""

_CHANNEL = re.compile(r"\bchannel_id=(\d+)")
_NO_TRAFFIC = {
    *(
        "parameter",
        "constant",
        "tuple",
        "get-tuple-element",
        "bitcast",
        "after-all",
        "partition-id",
    ),
    *("replica-id", "iota", "opt-barrier", "add-dependency", "get-dimension-size", "async-update"),
}
_RENAMED = ("bitcast", "copy", "reshape", "get-tuple-element")


@dataclass(frozen=True)
class Moved:
    """What was moved by one kind of operation between devices, by one device in one run.

    Attributes:
        kind: of :data:`COLLECTIVES`.
        count: how often.
        bytes: of the values that went in.
        sent: bytes that a device sends at least, in a ring.
    """

    kind: str
    count: int
    bytes: int
    sent: float


@dataclass
class Traffic:
    """Bytes that one device moves in one run of the program.

    Attributes:
        memory: to and from main memory.
        between: to other devices, by kind of operation.
        unknown_loops: loops of which the text does not tell how often they run; they count once.
    """

    memory: int = 0
    between: dict[str, Moved] = field(default_factory=dict)
    unknown_loops: int = 0

    @property
    def sent(self) -> float:
        """Bytes that a device sends to others at least."""
        return sum((each.sent for each in self.between.values()), 0.0)


def traffic(text: str) -> Traffic:
    """What a compiled program moves.

    Args:
        text: as ``compiled.as_text()`` gives it.
    """
    return _Count(text).run()


class _Count:
    def __init__(self, text: str):
        self.computations, self.entry = read(text)
        self.found = Traffic()

    def run(self) -> Traffic:
        self._computation(self.entry, 1)
        return self.found

    def _computation(self, name: str, times: int) -> None:
        computation = self.computations[name]
        fused: set[str] = set()
        for each in computation.instructions.values():
            if each.opcode == "while":
                turns = self._turns(each)
                if turns is None:
                    self.found.unknown_loops += 1
                for body in each.called("body"):
                    self._computation(body, times * (turns or 1))
            elif each.opcode == "conditional":
                branches = each.called("branch_computations") or each.called(
                    "true_computation"
                ) + each.called("false_computation")
                self._most(branches, times)
            elif each.opcode == "call":
                for callee in each.called("to_apply"):
                    self._computation(callee, times)
            else:
                self._collective(each, computation, times)
                self._fused(each, times, fused)
                self.found.memory += times * self._bytes(each, computation)

    def _fused(self, each: Instruction, times: int, counted: set[str]) -> None:
        """Count operations between devices within a fusion.

        One that is made while others compute is there in each fusion that it accompanies, on the same channel.
        """
        if each.opcode not in ("fusion", "async-start"):
            return
        for name in each.called("calls"):
            inner = self.computations[name]
            for one in inner.instructions.values():
                channel = _CHANNEL.search(one.rest)
                key = f"{one.opcode} {channel[1]}" if channel else ""
                if key not in counted:
                    self._collective(one, inner, times)
                if channel:
                    counted.add(key)
                self._fused(one, times, counted)

    def _most(self, branches: list[str], times: int) -> None:
        """Count the branch that moves most."""
        before, tried = self.found, []
        for name in branches:
            self.found = Traffic()
            self._computation(name, times)
            tried.append(self.found)
        self.found = before
        if tried:
            _add(before, max(tried, key=lambda each: each.memory + each.sent))

    def _turns(self, loop: Instruction) -> int | None:
        """How often a loop runs: its counter begins at 0, grows in its body, and must stay below a number."""
        known = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.rest)
        if known:
            return int(known[1])
        (condition,) = loop.called("condition")
        constants, places, compared = [], [], False
        names = [condition]
        while names:
            computation = self.computations[names.pop()]
            for each in computation.instructions.values():
                if each.opcode == "constant" and each.given.isdecimal():
                    constants.append(each.given)
                if each.opcode == "get-tuple-element":
                    places.append(each.index)
                compared |= each.opcode == "compare" and "direction=LT" in each.rest
                names += each.called("calls")
        if not compared or len(constants) != 1:
            return None
        steps = {self._step(loop.called("body")[0], place) for place in places}
        return -(-int(constants[0]) // (steps.pop() if len(steps) == 1 else 1))

    def _step(self, body: str, place: int) -> int:
        """By how much a loop's counter grows in a turn; 1 where the text does not tell."""
        computation = self.computations[body]
        names = computation.root.operands
        if computation.root.opcode != "tuple" or place >= len(names):
            return 1
        grown = computation.instructions[names[place]]
        if grown.opcode == "fusion" and grown.called("calls"):
            computation = self.computations[grown.called("calls")[0]]
            grown = computation.root
        if grown.opcode != "add":
            return 1
        added = [computation.instructions[name] for name in grown.operands]
        found = [
            int(one.given) for one in added if one.opcode == "constant" and one.given.isdecimal()
        ]
        return max(found[0], 1) if len(found) == 1 else 1

    def _bytes(self, each: Instruction, computation: Computation) -> int:
        """Bytes that an instruction reads from and writes to main memory."""
        opcode = each.opcode
        if opcode in _NO_TRAFFIC or opcode.endswith("-done") or "AllocateBuffer" in each.rest:
            return 0
        operands = [computation.instructions[name] for name in each.operands]
        if opcode in ("copy-start", "slice-start"):
            # What is copied is the first array of the result, or the second after the tuple of operands.
            moved = each.shapes[0] if opcode == "copy-start" else each.shapes[len(operands)]
            return moved.bytes * (1 + moved.in_memory)
        if opcode in ("dynamic-slice", "slice", "gather"):
            return each.bytes + sum(shape.bytes for shape in each.shapes if operands[0].bytes)
        if opcode in ("dynamic-update-slice", "scatter"):
            return 2 * operands[-1 if opcode == "scatter" else 1].bytes
        called = each.called("calls")
        if opcode == "fusion" and called:
            return self._fusion(each, operands, self.computations[called[0]])
        if opcode.endswith("-start") and len(each.shapes) > len(operands):
            return each.bytes  # the operands stand there too
        return each.bytes + sum(operand.bytes for operand in operands)

    def _fusion(self, each: Instruction, operands: list[Instruction], inner: Computation) -> int:
        """Bytes of a fusion: of an array that is cut or written in part, that part alone.

        What it only passes on of a gathering that was begun before was counted there.
        """
        total, in_place = 0, _carried(inner)
        roots, shapes = [inner.root] * len(each.shapes), each.shapes
        if inner.root.opcode == "tuple":
            roots = [inner.instructions[name] for name in inner.root.operands]
        elif "AsyncCollectiveStart" in inner.root.rest:  # what it gathers comes first, as it was
            shapes = shapes[len(inner.instructions[inner.root.operands[0]].operands) :]
        for root, shape in zip(roots, shapes, strict=False):
            if not shape.in_memory:
                continue
            root = _unwrapped(root, inner)
            if root.name in in_place:
                continue
            if root.opcode == "dynamic-update-slice":
                total += sum(s.bytes for s in inner.instructions[root.operands[1]].shapes)
                in_place.add(_unwrapped(inner.instructions[root.operands[0]], inner).name)
            else:
                total += shape.bytes
        for operand, parameter in zip(operands, inner.parameters, strict=False):
            if operand.bytes and parameter.name not in in_place:
                total += min(operand.bytes, self._read_of(parameter.name, inner, operand.bytes))
        return total

    def _read_of(self, name: str, inner: Computation, whole: int) -> int:
        """Bytes of a parameter that a fusion reads: the slices where it only takes slices of it."""
        total = 0
        for user in inner.users.get(name, []):
            if user.opcode in ("bitcast", "reshape", "copy"):
                total += self._read_of(user.name, inner, whole)
            elif user.opcode in ("dynamic-slice", "slice", "gather") and user.operands[0] == name:
                total += sum(shape.bytes for shape in user.shapes)
            elif user.opcode == "dynamic-update-slice" and user.operands[0] == name:
                continue
            elif user.opcode == "fusion" and user.called("calls"):
                nested = self.computations[user.called("calls")[0]]
                for operand, parameter in zip(user.operands, nested.parameters, strict=False):
                    if operand == name:
                        total += self._read_of(parameter.name, nested, whole)
            else:
                return whole
        return total

    def _collective(self, each: Instruction, computation: Computation, times: int) -> None:
        kind = each.opcode.removesuffix("-start")
        if kind not in COLLECTIVES:
            return
        if kind == "all-reduce" and _all_sliced(each.name, computation):
            kind = "reduce-scatter"
        size = sum(
            sum(shape.bytes for shape in computation.instructions[name].shapes)
            for name in each.operands
        )
        group = _group(each.rest)
        share = (group - 1) / group
        sent = {
            "all-reduce": 2 * share * size,
            "all-gather": (group - 1) * size,
            "collective-permute": size,
        }.get(kind, share * size)
        if group > 1 or kind == "collective-permute":
            _add_moved(self.found, Moved(kind, times, times * size, float(times * sent)))


def _all_sliced(name: str, inner: Computation) -> bool:
    """Whether of a sum over devices each keeps a part alone, which the compiler then sends alone."""
    users = inner.users.get(name, [])
    return bool(users) and all(
        user.opcode == "dynamic-slice"
        or (user.opcode in _RENAMED and _all_sliced(user.name, inner))
        for user in users
    )


def _carried(inner: Computation) -> set[str]:
    """Names within a fusion of what belongs to a gathering that another fusion began."""
    marks = {
        each.name: "AsyncCollectiveStart" in each.rest
        for each in inner.instructions.values()
        if '"AsyncCollective' in each.rest or "chain_id=" in each.rest
    }
    if any(marks.values()):
        return set()
    named = set(marks)
    for each in inner.parameters:
        if marks and all(
            user.name in marks or user.root for user in inner.users.get(each.name, [])
        ):
            named.add(each.name)
    return named


def _unwrapped(each: Instruction, inner: Computation) -> Instruction:
    """What a value is before its layout was changed."""
    while each.opcode in ("bitcast", "copy", "reshape") and each.operands:
        each = inner.instructions[each.operands[0]]
    return each


def _group(attributes: str) -> int:
    """How many devices take part in each instance of an operation between devices."""
    listed = re.search(r"replica_groups=\{\{([\d,]*)\}", attributes)
    if listed:
        return len(listed[1].split(","))
    tiled = re.search(r"replica_groups=\[(\d+),(\d+)\]", attributes)
    if tiled:
        return int(tiled[2])
    mesh = re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", attributes)
    if mesh:
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", mesh[1]))
        count = 1
        for name in re.findall(r"'([^']+)'", mesh[2]):
            count *= int(sizes[name])
        return count
    return 2


def _add_moved(into: Traffic, one: Moved) -> None:
    before = into.between.get(one.kind, Moved(one.kind, 0, 0, 0.0))
    into.between[one.kind] = Moved(
        one.kind, before.count + one.count, before.bytes + one.bytes, before.sent + one.sent
    )


def _add(into: Traffic, other: Traffic) -> None:
    into.memory += other.memory
    into.unknown_loops += other.unknown_loops
    for each in other.between.values():
        _add_moved(into, each)
