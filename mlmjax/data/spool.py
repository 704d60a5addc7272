"""A source's documents on disk: normalised, each text once, each on its side of the split."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mlmjax.core.errors import UserError
from mlmjax.data.base import Report
from mlmjax.data.documents import Source, hash64, normalise
from mlmjax.data.sentences import sentence_starts


@dataclass(frozen=True)
class Spool:
    """Documents that wait to be tokenised.

    Attributes:
        path: one JSON list a line: text and unit.
        heldout: units that are held out.
        counts: documents read, empty, duplicate and kept.
        sizes: documents of each split.
        characters: all text.
        split_by: what a unit is: a ``group``; a ``document`` if there is one group; a ``position``
            if there is one document, whose last part is held out.
    """

    path: Path
    heldout: frozenset[str]
    counts: dict[str, int]
    sizes: dict[str, int]
    characters: int
    split_by: str

    @classmethod
    def fill(cls, path: Path, source: Source, share: float, report: Report) -> "Spool":
        """Read a source to its end.

        Args:
            path: the file to write.
            source: the documents.
            share: share of the units to hold out; at least one on either side.
            report: called now and then with the number of documents read.

        Raises:
            UserError: there is no text, or a single sentence, which cannot be split.
        """
        counts = {"read": 0, "empty": 0, "duplicates": 0, "kept": 0}
        seen: set[bytes] = set()
        groups: dict[str, int] = {}
        characters = 0
        with path.open("w", encoding="utf-8") as file:
            for document in source:
                counts["read"] += 1
                if counts["read"] % 200 == 0:
                    report("reading", counts["read"], 0)
                text = normalise(document.text)
                key = hashlib.blake2b(text.encode(), digest_size=16).digest()
                if not text or key in seen:
                    counts["duplicates" if text else "empty"] += 1
                    continue
                seen.add(key)
                groups[document.group] = groups.get(document.group, 0) + 1
                characters += len(text)
                file.write(json.dumps([text, document.group]) + "\n")
        counts["kept"] = len(seen)
        report("reading", counts["read"], counts["read"])
        if len(seen) < 2:
            return cls._of_one(path, source, share, counts)
        if len(groups) == 1:
            groups = {str(id): 1 for _, _, id in _records(path)}
            split_by = "document"
        else:
            split_by = "group"
        heldout = heldout_units(list(groups), share)
        held = sum(groups[unit] for unit in heldout)
        sizes = {"train": len(seen) - held, "heldout": held}
        return cls(path, heldout, counts, sizes, characters, split_by)

    @classmethod
    def _of_one(cls, path: Path, source: Source, share: float, counts: dict[str, int]) -> "Spool":
        """The first part of the only document, for training, and its last sentences."""
        text = next((text for text, _, _ in _records(path)), "")
        places = sentence_starts(text)[1:]
        if not places:
            raise UserError(
                f"{source} holds {'a single sentence' if text else 'no text'}, which cannot be "
                "split into a training and a held-out part. Give more text (--data.root)."
            )
        cut = min(places, key=lambda place: abs(place - (1 - share) * len(text)))
        parts = [text[:cut].strip(), text[cut:].strip()]
        if parts[0] == parts[1]:
            raise UserError(f"{source} repeats one text; give more (--data.root).")
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps([part, part]) + "\n" for part in parts)
        sizes = {"train": 1, "heldout": 1}
        return cls(path, frozenset(parts[1:]), counts, sizes, len(text), "position")

    def read(self, split: str) -> Iterator[tuple[str, int]]:
        """(text, id) of each document of a split; the id is the hash of the text."""
        for text, group, id in _records(self.path):
            unit = str(id) if self.split_by == "document" else group
            if (unit in self.heldout) == (split == "heldout"):
                yield text, id


def heldout_units(units: list[str], share: float) -> frozenset[str]:
    """The units whose hash lies in the first ``share`` of all hashes: a choice that adding other
    units does not change; at least one unit, and not all of them."""
    ranked = sorted(units, key=lambda unit: (hash64(unit), unit))
    below = sum(hash64(unit) < share * 2**64 for unit in units)
    return frozenset(ranked[: min(max(below, 1), len(units) - 1)])


def _records(path: Path) -> Iterator[tuple[str, str, int]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            text, group = json.loads(line)
            yield text, group, hash64(text)
