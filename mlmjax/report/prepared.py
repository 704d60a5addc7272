"""What was prepared, as tables."""

from collections.abc import Mapping
from typing import Any

from mlmjax.report.terminal import Terminal

DROPPED = {
    "null": "null",
    "empty": "empty",
    "broken": "broken",
    "shortest": "shorter than --data.cleaning.shortest",
    "longest": "longer than --data.cleaning.longest",
    "repeated_lines": "repeated lines",
    "symbols": "too many symbols",
    "duplicates": "exact duplicates",
    "near_duplicates": "near-duplicates",
}
"""Why a document was dropped, and how that is called in the table."""

_BAR = 40


def show_prepared(manifest: Mapping[str, Any], folder: str, terminal: Terminal) -> None:
    """Print what was read and dropped, the rows of each split, and the lengths of the documents."""
    documents = manifest["documents"]
    dropped = [
        (name, f"{documents[kind]:,}") for kind, name in DROPPED.items() if documents.get(kind)
    ]
    rows = [("read", f"{documents['read']:,}"), *dropped, ("kept", f"{documents['kept']:,}")]
    terminal.table("Documents", ("", "count"), rows)
    for message in manifest["broken"]:
        terminal.say(f"broken: {message}")
    splits = manifest["splits"]
    figures = [
        ("documents", [f"{one['documents']:,}" for one in splits.values()]),
        ("rows", [f"{one['rows']:,}" for one in splits.values()]),
        ("tokens in rows", [f"{one['tokens']:,}" for one in splits.values()]),
        ("share of rows that is filled", [f"{one['fill']:.2%}" for one in splits.values()]),
        ("rows that cut a document", [f"{one['rows_cut']:,}" for one in splits.values()]),
        ("words", [f"{one['words']:,}" for one in splits.values()]),
        ("tokens a word", [f"{_each(one):.3f}" for one in splits.values()]),
    ]
    if any("documents_of_one_piece" in one for one in splits.values()):
        single = [f"{one['documents_of_one_piece']:,}" for one in splits.values()]
        figures.append(("documents too short for a pair", single))
    table = [(name, *values) for name, values in figures]
    terminal.table("Rows", ("", "training", "held out"), table)
    lengths = [split["lengths"] for split in splits.values()]
    terminal.table("Tokens a document", ("", "documents", ""), _histogram(lengths))
    for source, shards in _by_source(manifest).items():
        terminal.say(
            f"{source}: {shards['train']:,} rows to train on, {shards['heldout']:,} held out"
        )
    terminal.say(f"Prepared in {folder}")


def _each(split: Mapping[str, Any]) -> float:
    return split["text_tokens"] / max(split["words"], 1)


def _histogram(lengths: list[list[int]]) -> list[tuple[str, str, str]]:
    """Lines of (range, count, bar), from the first range that holds a document to the last."""
    size = max(map(len, lengths))
    counts = [sum(one[i] for one in lengths if i < len(one)) for i in range(size)]
    most = max(counts)
    lines = []
    for i, count in enumerate(counts):
        begin, end = (1 << i) >> 1, (1 << i) - 1
        bar = "█" * round(_BAR * count / most) or ("▏" if count else "")
        name = f"{begin:,}" if begin >= end else f"{begin:,} to {end:,}"
        lines.append((name, f"{count:,}", bar.ljust(_BAR)))
    while not counts[len(counts) - len(lines)]:
        lines.pop(0)
    return lines


def _by_source(manifest: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Rows of each source; none where there is one."""
    if len(manifest["sources"]) < 2:
        return {}
    found: dict[str, dict[str, int]] = {}
    for shard in manifest["shards"]:
        rows = found.setdefault(manifest["sources"][shard["source"]], {"train": 0, "heldout": 0})
        for split in rows:
            rows[split] += shard[split]
    return found
