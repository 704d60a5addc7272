"""Small texts that tests make on the spot."""

import random

_WORDS = (
    *("array", "axis", "value", "return", "the", "a", "of", "new", "list", "sorted", "function"),
    *("given", "matrix", "shape", "file", "path", "open", "read", "write", "object", "class"),
    *("method", "call", "raise", "error", "when", "input", "output", "sample", "mean", "variance"),
)


class Documents:
    """A source of documents that a test wrote down."""

    def __init__(self, documents):
        self.documents = documents

    def __iter__(self):
        return iter(self.documents)

    def __str__(self):
        return "the test's text"

    def digest(self):
        return str(hash(tuple(self.documents)))


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
