"""Folders that are complete or absent: built beside their place, then renamed into it."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlmjax.core.errors import UserError

_MANIFEST = "manifest.json"


def default() -> Path:
    """``mlmjax`` in the user's cache folder, by the XDG base directory specification."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "mlmjax"


def manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a complete folder; none if a file is missing or has another size."""
    try:
        found = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        files: dict[str, int] = found["files"]
        whole = all((folder / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if whole else None


@contextmanager
def building(folder: Path) -> Iterator[Path]:
    """A temporary folder that takes the place of ``folder`` at the end of the block.

    If the block raises, nothing is left. Two processes may build the same folder at once: the
    first one to end wins, and the other's work is dropped.

    Raises:
        UserError: the cache cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        why = error.strerror or error
        raise UserError(
            f"The cache {folder.parent} cannot be written: {why}. Choose another folder with "
            "--data.cache."
        ) from error
    try:
        yield work
        _rename(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def finish(work: Path, content: dict[str, Any]) -> None:
    """Write the manifest, with the size of every file, once all of them are on the disk."""
    names = sorted(path.name for path in work.iterdir())
    files = {name: (work / name).stat().st_size for name in names}
    text = json.dumps({**content, "files": files}, indent=2) + "\n"
    (work / _MANIFEST).write_text(text, encoding="utf-8")
    for path in [*(work / name for name in names), work / _MANIFEST, work]:
        _sync(path)


def _rename(work: Path, folder: Path) -> None:
    try:
        work.rename(folder)
    except OSError:
        if manifest(folder) is not None:
            return
        # What lies there is damaged. Moving it aside first keeps the place complete or absent.
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
        work.rename(folder)
    _sync(folder.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
