"""Sources read in parallel: parts to tasks, and a task's documents, clean, to blocks."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

from mlmjax.core.errors import UserError
from mlmjax.data.documents import Part, Source, normalise
from mlmjax.data.preparation.cleaning import Cleaning
from mlmjax.data.preparation.document_rows import PAIR

OnError = Literal["stop", "skip"]
Sized = TypeVar("Sized", bound=Any)
"""A part of a source, of a ``size`` in bytes."""

TASK = 1 << 23
"""Bytes that a task reads, or more: a part is not divided, and large sources have large tasks."""
BLOCK = 1 << 23
"""Characters after which a block ends, or more; it is what is tokenised as one."""
MOST = 1024
"""About as many tasks are made of large sources."""
_SHOWN = 5


@dataclass(frozen=True)
class Task:
    """Parts that are read one after the other.

    Attributes:
        number: the task's place among all; ascending over the sources.
        source: the source's place among all.
        parts: of that source.
        block: characters after which a block ends.
    """

    number: int
    source: int
    parts: tuple[Part, ...]
    block: int

    @property
    def size(self) -> int:
        """Bytes to read."""
        return sum(part.size for part in self.parts)


@dataclass(frozen=True)
class Reading:
    """How documents are read.

    Attributes:
        cleaning: what is dropped.
        on_error: whether a document that cannot be read ends it all, or is left out and counted.
        labels: whether each document must have a class.
    """

    cleaning: Cleaning
    on_error: OnError
    labels: bool = False


class Record(NamedTuple):
    """A document that was read, normalised and kept.

    Attributes:
        text: normalised.
        group: what it is split by; empty where it is its own group.
        id: the source's own.
        place: where it stands, for messages.
        label: its class; empty where classes are not asked for.
    """

    text: str
    group: str
    id: str
    place: str
    label: str = ""


@dataclass
class Tally:
    """What became of the documents that were read.

    Attributes:
        counts: by reason; ``read`` counts all.
        broken: the first few messages of what could not be read.
    """

    counts: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def add(self, counts: dict[str, int], broken: list[str]) -> None:
        """Add what another task found."""
        self.counts.update(counts)
        self.broken = (self.broken + broken)[:_SHOWN]


def plan(sources: Sequence[Source]) -> list[Task]:
    """All parts of all sources as tasks, whatever the number of processes that will do them."""
    planned = [source.parts() for source in sources]
    share = sum(part.size for parts in planned for part in parts) // MOST
    least, block = max(TASK, share), max(BLOCK, share)
    tasks: list[Task] = []
    for number, every in enumerate(planned):
        for parts in grouped(every, least):
            tasks.append(Task(len(tasks), number, parts, block))
    return tasks


def grouped(parts: Iterable[Sized], least: int) -> Iterator[tuple[Sized, ...]]:
    """Parts in groups of at least so many bytes; the last may have fewer."""
    some: list[Sized] = []
    size = 0
    for part in parts:
        some.append(part)
        size += part.size
        if size >= least:
            yield tuple(some)
            some, size = [], 0
    if some:
        yield tuple(some)


def read(
    task: Task,
    reading: Reading,
    tally: Tally,
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[int, Record]]:
    """The documents of a task that are kept, each with the number of its block.

    Args:
        task: what to read.
        reading: how.
        tally: is added to.
        progress: called now and then with the number of documents read so far.

    Raises:
        UserError: something cannot be read.
    """

    def broken(message: str) -> None:
        if reading.on_error == "stop":
            raise UserError(
                f"{message} Mend it, or leave such documents out: --data.on-error skip."
            )
        tally.add({"read": 1, "broken": 1}, [message])

    block = characters = 0
    for part in task.parts:
        for document in part.read(broken):
            tally.counts["read"] += 1
            if progress and tally.counts["read"] % 200 == 0:
                progress(tally.counts["read"])
            if document.text is None or document.second is None:
                tally.counts["null"] += 1
                continue
            text = _writable(normalise(document.text))
            if document.second:
                text = f"{text}{PAIR}{_writable(normalise(document.second))}"
            reason = "empty" if text.strip(PAIR) == "" else None
            reason = reason or reading.cleaning.drop_reason(document.text, text)
            if reason:
                tally.counts[reason] += 1
                continue
            if reading.labels and not document.label:
                tally.counts["read"] -= 1
                broken(f"{document.place}: the document has no class (--data.label-field).")
                continue
            if characters >= task.block:
                block, characters = block + 1, 0
            characters += len(text)
            label = document.label if reading.labels else ""
            yield block, Record(text, document.group, document.id, document.place, label)


def _writable(text: str) -> str:
    """The text; what no encoding can write, such as half of a surrogate pair, is replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
