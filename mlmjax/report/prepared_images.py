"""What images were prepared, as tables."""

from collections.abc import Mapping
from typing import Any

from mlmjax.report.terminal import Terminal

LEFT_OUT = {
    "broken": "cannot be read",
    "small": "smaller than --data.smallest",
    "in_both": "to train on, but equal to one that is held out",
}
"""Why an image was left out, and how that is called in the table."""

_CLASSES = 20


def show_prepared_images(manifest: Mapping[str, Any], folder: str, terminal: Terminal) -> None:
    """Print what was read and left out, what the files held, and the images of each split."""
    images = manifest["images"]
    rows = [("read", images["read"])]
    rows += [(name, images[kind]) for kind, name in LEFT_OUT.items() if images.get(kind)]
    rows.append(("kept", images["kept"]))
    if images["copies"]:
        rows.append(("equal to an earlier one", images["copies"]))
    if manifest["ignored_files"]:
        rows.append(("other files", manifest["ignored_files"]))
    terminal.table("Images", ("", "count"), [(name, f"{count:,}") for name, count in rows])
    for message in manifest["broken"]:
        terminal.say(f"left out: {message}")
    modes = sorted(manifest["modes"].items(), key=lambda one: -one[1])
    terminal.table("Kinds", ("", "images"), [(name, f"{count:,}") for name, count in modes])
    terminal.table("Splits", ("", "training", "held out"), _splits(manifest))
    settings = manifest["settings"]
    size = settings["size"]
    shown = f"{size[0]}×{size[1]} pixels" if size else "files and pixels as they came"
    terminal.say(f"Written as {shown}, {settings['bits']} bits, {settings['channels']} channels.")
    terminal.say(f"Prepared in {folder}")


def _splits(manifest: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Lines of figures for both splits."""
    train, heldout = (manifest["splits"][side] for side in ("train", "heldout"))

    def line(name: str, figure: Any) -> tuple[str, str, str]:
        return name, figure(train), figure(heldout)

    rows = [
        line("images", lambda one: f"{one['images']:,}"),
        line("height, smallest to largest", lambda one: _range(one["height"])),
        line("width, smallest to largest", lambda one: _range(one["width"])),
    ]
    classes = manifest["classes"]
    if not classes:
        return rows
    rows.append(line("with a class", lambda one: f"{one['labelled']:,}"))
    if len(classes) > _CLASSES:
        return [
            *rows,
            line(
                f"images a class, of {len(classes):,}", lambda one: _range(_spread(one["classes"]))
            ),
        ]
    counts = zip(classes, train["classes"], heldout["classes"], strict=True)
    return rows + [(f"class {name}", f"{a:,}", f"{b:,}") for name, a, b in counts]


def _spread(counts: list[int]) -> list[int]:
    ordered = sorted(counts)
    return [ordered[0], ordered[len(ordered) // 2], ordered[-1]]


def _range(three: list[int]) -> str:
    """The least, the median and the largest number, or the only one."""
    least, middle, most = three
    return f"{least:,}" if least == most else f"{least:,} to {most:,} (median {middle:,})"
