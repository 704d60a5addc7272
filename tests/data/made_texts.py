"""Small texts that tests make on the spot."""

import random
from dataclasses import dataclass

from mlmjax.data.preparation import reading

_WORDS = (
    *("array", "axis", "value", "return", "the", "a", "of", "new", "list", "sorted", "function"),
    *("given", "matrix", "shape", "file", "path", "open", "read", "write", "object", "class"),
    *("method", "call", "raise", "error", "when", "input", "output", "sample", "mean", "variance"),
)


@dataclass(frozen=True)
class Documents:
    """A source of documents that a test wrote down, in parts of some of them."""

    documents: tuple
    per_part: int = 10**6
    name: str = "the test's text"

    def __init__(self, documents, per_part=10**6, name="the test's text"):
        object.__setattr__(self, "documents", tuple(documents))
        object.__setattr__(self, "per_part", per_part)
        object.__setattr__(self, "name", name)

    def parts(self):
        documents, size = self.documents, self.per_part
        return [DocumentsPart(documents[at : at + size]) for at in range(0, len(documents), size)]

    def __str__(self):
        return self.name

    def digest(self):
        return str(self.documents)


@dataclass(frozen=True)
class DocumentsPart:
    """A part of :class:`Documents`, as large as a task, so that each is one."""

    documents: tuple
    name: str = "part"
    size: int = reading.TASK

    def read(self, broken):
        for document in self.documents:
            if isinstance(document, str):
                broken(document)
            else:
                yield document


def make_texts(count, *, seed=0, sentences=8):
    """English-like texts of a few sentences each, all different."""
    rng = random.Random(seed)

    def sentence():
        words = rng.choices(_WORDS, k=rng.randint(3, 14))
        return " ".join([words[0].capitalize(), *words[1:]]) + "."

    return [
        f"Text number {i}. " + " ".join(sentence() for _ in range(rng.randint(1, sentences)))
        for i in range(count)
    ]
