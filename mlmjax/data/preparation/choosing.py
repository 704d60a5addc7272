"""Which documents are kept, and on which side of the split: decided over all of them at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from jaxtyping import Bool, Int, Shaped, UInt64

from mlmjax.core.errors import UserError

ENTRY = np.dtype([("text", "<u8", (2,)), ("group", "<u8"), ("id", "<u8"), ("characters", "<i8")])
"""What is known of a document without its text: 128 bits of the text's hash, and 64 of the group's
and of the source's own id (0 where there is none)."""

Entries = Shaped[np.ndarray, "_"]


class Fate(IntEnum):
    """What becomes of a document."""

    DUPLICATE = 0
    """Its text is that of an earlier one."""
    NEAR_DUPLICATE = 1
    """It is nearly that of an earlier one."""
    TRAIN = 2
    HELDOUT = 3
    BOTH = 4
    """The only document: its first part is trained on, the rest is held out."""


@dataclass(frozen=True)
class Choice:
    """The fates of all documents, in order.

    Attributes:
        fates: a :class:`Fate` each.
        split_by: what is never divided: a ``group``; a ``document`` if all are of one group; a
            ``position`` if there is one document.
    """

    fates: Int[np.ndarray, " documents"]
    split_by: str

    def count(self, *fates: Fate) -> int:
        """Documents of some fates."""
        return int(np.isin(self.fates, fates).sum())


def choose(entries: Entries, near: Bool[np.ndarray, " documents"], *, heldout: float) -> Choice:
    """Drop copies, and split what is left.

    Args:
        entries: all documents, in order.
        near: those that are nearly an earlier one.
        heldout: share of the units to hold out.

    Returns:
        The first of equal texts is kept. Units are on one side of the split: groups, or documents if
        there is one group.
    """
    copies = repeats(entries["text"])
    fates = np.where(copies, Fate.DUPLICATE, np.where(near, Fate.NEAR_DUPLICATE, Fate.TRAIN))
    kept = np.flatnonzero(fates == Fate.TRAIN)
    if len(kept) == 1:
        fates[kept] = Fate.BOTH
        return Choice(fates, "position")
    units, split_by = entries["group"][kept], "group"
    if len(np.unique(units)) == 1:
        units, split_by = entries["text"][kept, 0], "document"
    if len(kept):
        fates[kept[held_out(units, heldout)]] = Fate.HELDOUT
    return Choice(fates, split_by)


def repeats(keys: UInt64[np.ndarray, "documents 2"]) -> Bool[np.ndarray, " documents"]:
    """Whether an earlier key is the same."""
    order = np.lexsort((keys[:, 1], keys[:, 0]))  # stable: of equal ones the first comes first
    again = np.zeros(len(keys), bool)
    again[order[1:]] = (keys[order[1:]] == keys[order[:-1]]).all(axis=1)
    return again


def held_out(
    units: UInt64[np.ndarray, " documents"],
    share: float,
    *,
    ends: tuple[int, int] | None = None,
) -> Bool[np.ndarray, " documents"]:
    """Whether each unit is held out: its hash lies in the first ``share`` of all hashes.

    A choice that other units do not change, but for this: the lowest is held out in any case, and
    the highest is not.

    Args:
        units: hashes of the units of some documents.
        share: of the units to hold out.
        ends: the lowest and the highest of all units; by default of those.
    """
    lowest, highest = map(np.uint64, ends or (units.min(), units.max()))
    below = units.astype(np.float64) < share * 2.0**64
    return (below | (units == lowest)) & (units != highest)


def repeated_id(entries: Entries) -> tuple[int, int] | None:
    """Two documents of which both have the same id of their source; none if all ids differ."""
    known = np.flatnonzero(entries["id"])
    order = known[np.argsort(entries["id"][known], kind="stable")]
    same = np.flatnonzero(entries["id"][order[1:]] == entries["id"][order[:-1]])
    return (int(order[same[0]]), int(order[same[0] + 1])) if len(same) else None


def repeated(id: str, first: str, second: str) -> UserError:
    """The error of an id that two documents have, at two places."""
    return UserError(
        f"The document id {id!r} occurs twice, at {first} and at {second}. Ids must differ "
        "over all sources: mend them, or choose another field (--data.id-field), or none."
    )


def concatenated(tables: Sequence[Entries]) -> Entries:
    """One table of many; also of none."""
    return np.concatenate([np.zeros(0, ENTRY), *tables])
