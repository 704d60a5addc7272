"""What is recorded of a preparation, and what is refused in it, wherever it runs."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from mlmjax.core.errors import UserError
from mlmjax.data.documents import Source
from mlmjax.data.preparation.reading import Tally
from mlmjax.data.preparation.shards import SPLITS
from mlmjax.data.preparation.tokenising import RowSettings, SplitCounts, summed
from mlmjax.data.tokenizer import Tokenizer

MadeOf = tuple[int, dict[str, Any]]
"""Of a block: its source's place among all, and what its shards hold, by split."""

_LIBRARIES = ("mlmjax", "numpy", "tokenizers", "array_record")


def count(
    tally: Tally,
    sources: Sequence[Source],
    *,
    duplicates: int,
    near_duplicates: int | None,
    kept: int,
) -> None:
    """Add to the tally what was chosen among the documents that were read.

    Args:
        tally: is added to.
        sources: where the documents come from.
        duplicates: documents that are copies of earlier ones.
        near_duplicates: those that nearly are; none if they are not looked for.
        kept: those that are left.

    Raises:
        UserError: nothing is left.
    """
    tally.counts["duplicates"] = duplicates
    if near_duplicates is not None:
        tally.counts["near_duplicates"] = near_duplicates
    tally.counts["kept"] = kept
    if not kept:
        raise UserError(f"There is no text in {named(sources)}{_dropped(tally)} (--data.root).")


def described(
    sources: Sequence[Source],
    rows: RowSettings,
    *,
    tally: Tally,
    split_by: str,
    tokenizer: Tokenizer,
    shards: Sequence[MadeOf],
    classes: Sequence[str] = (),
) -> dict[str, Any]:
    """What the manifest says of the documents and their rows.

    Args:
        sources: where the documents come from.
        rows: how they are laid in rows.
        tally: what became of them.
        split_by: what is never divided.
        tokenizer: what the rows are made with.
        shards: what was made of each block, in order.
        classes: names of the documents' classes, where these are asked for.

    Raises:
        UserError: a split has no row, or too few documents for pairs.
    """
    splits = summed(made for _, made in shards)
    _check(splits, named(sources), rows, tally)
    return {
        "versions": {"python": platform.python_version()} | {n: version(n) for n in _LIBRARIES},
        "sources": [str(source) for source in sources],
        "documents": dict(tally.counts),
        "broken": tally.broken,
        "split_by": split_by,
        "vocabulary": {"size": tokenizer.vocabulary.size, "hash": tokenizer.hash},
        "classes": list(classes),
        "splits": {split: _numbers(found, rows) for split, found in splits.items()},
        "tokens_per_word": sum(one.text_tokens for one in splits.values())
        / max(sum(one.words for one in splits.values()), 1),
        "shards": [
            {"source": source} | {split: made[split]["rows"] for split in SPLITS}
            for source, made in shards
        ],
    }


def named(sources: Sequence[Source]) -> str:
    """The sources, for messages."""
    return " and ".join(str(source) for source in sources)


def _check(splits: Mapping[str, SplitCounts], where: str, rows: RowSettings, tally: Tally) -> None:
    for split, part in zip(SPLITS, ("training", "held-out"), strict=True):
        found = splits[split]
        if not found.rows:
            raise UserError(
                f"There is no {part} row in {where}{_dropped(tally)}. Give more text "
                "(--data.root), shorter rows (--data.length), or another share of held-out text "
                "(--data.heldout)."
            )
        if rows.layout == "pairs" and found.paired < 2:
            raise UserError(
                f"The {part} part of {where} has one document, and pairs need two (see "
                "--data.documents for what is one). Give more (--data.root, --data.heldout), or "
                "choose --data.layout full."
            )


def _numbers(found: SplitCounts, rows: RowSettings) -> dict[str, Any]:
    """What the manifest says of a split."""
    numbers = asdict(found)
    last = max((i for i, count in enumerate(found.lengths) if count), default=0)
    numbers["lengths"] = found.lengths[: last + 1]
    if rows.layout != "pairs":
        del numbers["documents_of_one_piece"]
    if not found.classes:
        del numbers["classes"]
    return numbers | {"fill": found.tokens / (found.rows * rows.length)}


def _dropped(tally: Tally) -> str:
    """What was dropped, in brackets; nothing if nothing was."""
    kinds = {k: n for k, n in sorted(tally.counts.items()) if n and k not in ("read", "kept")}
    said = ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in kinds.items())
    return f" (of {tally.counts['read']} documents: {said})" if said else ""
