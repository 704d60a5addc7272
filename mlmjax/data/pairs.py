"""The second text of a pair, drawn anew every epoch, for next-sentence prediction."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Int, Shaped

from mlmjax.data.draws import draws

CANDIDATES = 16
"""Rows of other documents that are tried for a text that is long enough."""


def draw_seconds(
    table: Shaped[np.ndarray, " batch"],
    *,
    index: Int[np.ndarray, " batch"],
    epoch: Int[np.ndarray, " batch"],
    seed: int,
    read: Callable[[list[int]], np.ndarray],
    count: int,
    padding: int,
) -> tuple[Shaped[np.ndarray, " batch"], Int[np.ndarray, " batch"]]:
    """Pairs of which half, in expectation, have a second text from another document.

    The other text is that of a row drawn uniformly among the rows of other documents, cut to
    exactly the length of the text that it replaces, so neither length nor padding gives it away.
    If it is too short, its row's first text is put before it; if that is too short as well, the
    next of 16 drawn rows is taken, and after those the longest of them.

    Args:
        table: true pairs, as stored.
        index: the row of each, its example id.
        epoch: the epoch of each.
        seed: the run's seed. The outcome is a pure function of (seed, epoch, id).
        read: gives the rows at some indices, with other documents' texts.
        count: how many rows there are.
        padding: the token that fills what a row does not use.

    Returns:
        The pairs, and 1 for each that is a true continuation, 0 for the others.
    """
    keys = zip(epoch.tolist(), index.tolist(), strict=True)
    numbers = [draws("pair", seed, *key, count=1 + CANDIDATES) for key in keys]
    is_next = np.array([drawn[0] & 1 for drawn in numbers], np.int32)
    table = table.copy()
    pending = np.flatnonzero(is_next == 0).tolist()
    best: dict[int, dict[str, np.ndarray]] = {}
    for attempt in range(CANDIDATES):
        others = read([_other(table[i], count, numbers[i][1 + attempt]) for i in pending])
        for i, other in zip(pending, others, strict=True):
            found = _text(other, _second_length(table[i]))
            if i not in best or len(found["tokens"]) > len(best[i]["tokens"]):
                best[i] = found
        pending = [i for i in pending if len(best[i]["tokens"]) < _second_length(table[i])]
        if not pending:
            break
    for i, text in best.items():
        _replace(table[i], text, padding=padding)
    return table, is_next


def _other(row: np.void, count: int, number: int) -> int:
    """A row of another document; those of one document lie together."""
    siblings = int(row["siblings"])
    place = number % (count - siblings)
    return place + siblings if place >= row["first"] else place


def _second_length(row: np.void) -> int:
    return int(row["segments"].sum()) - 1


def _text(row: np.void, size: int) -> dict[str, np.ndarray]:
    """At most ``size`` tokens of a row: of its second text or, if that is short, of both."""
    second = _second_length(row)
    first = int(row["used"]) - 3 - second
    places = np.arange(first + 2, first + 2 + second)
    if second < size:
        places = np.concatenate([np.arange(1, first + 1), places])
    return {name: row[name][places[:size]] for name in ("tokens", "word_starts", "sentence_starts")}


def _replace(row: np.void, text: dict[str, np.ndarray], *, padding: int) -> None:
    end = int(row["used"])
    begin = end - 1 - _second_length(row)
    separator = row["tokens"][end - 1]
    used = begin + len(text["tokens"]) + 1
    for name, values in text.items():
        row[name][begin:end] = padding if name == "tokens" else False
        row[name][begin : used - 1] = values
    row["tokens"][used - 1] = separator
    row["word_starts"][begin] = row["sentence_starts"][begin] = True
    row["segments"][begin:end] = 0
    row["segments"][begin:used] = 1
    row["used"] = used
