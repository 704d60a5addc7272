"""Folders that are complete or absent: built beside their place, then renamed into it.

What was built is kept if the process is killed, and the next one goes on with it.
"""

import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlmjax.core.errors import UserError

MANIFEST = "manifest.json"
LOCK = "lock"
WAITING = "waiting for another process that prepares the same"
_STALE = 7 * 24 * 3600
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def default() -> Path:
    """``mlmjax`` in the user's cache folder, by the XDG base directory specification."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "mlmjax"


def local(asked: str | None) -> Path:
    """The folder of prepared rows that are read from here.

    Args:
        asked: a path, or a URL of one (``file://``); by default the user's cache.

    Raises:
        UserError: it is remote.
    """
    if not asked:
        return default()
    scheme, url, path = asked.partition("://")
    if url and scheme not in ("file", "local"):
        raise UserError(
            f"{asked} (--data.cache) is remote, and rows are read from local disks: copy it, or mount "
            "it, and give that folder. Only `mlmjax prepare --runner` writes to a remote one."
        )
    return Path(path if url else asked).expanduser()


def manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a complete folder; none if a file is missing or has another size."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files: dict[str, int] = found["files"]
        whole = all((folder / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if whole else None


@contextmanager
def building(folder: Path, *, waiting: Callable[[], None]) -> Iterator[Path | None]:
    """A folder to build in, which takes the place of ``folder`` at the end of the block.

    It is always the same one, and what lies in it stays if the process is killed, or the block ends
    with anything but a ``UserError``; so the next process finds what was finished. One process at a
    time builds; another waits for it. What lies in the place already is damaged, and goes.

    Args:
        folder: the place.
        waiting: called once if another process is building.

    Returns:
        The folder, or none if another process has completed it in the meantime.

    Raises:
        UserError: the cache cannot be written.
    """
    work = folder.parent / f".{folder.name}.unfinished"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder.parent)
        lock = _locked(work, waiting)
    except OSError as error:
        why = error.strerror or error
        raise UserError(
            f"The cache {folder.parent} cannot be written: {why}. Choose another folder with "
            "--data.cache."
        ) from error
    try:
        if manifest(folder) is not None:
            shutil.rmtree(work, ignore_errors=True)
            yield None
            return
        if manifest(work) is not None:
            # Whoever finished it was killed before it could say so.
            _publish(work, folder)
            yield None
            return
        _tidy(work)
        if folder.exists():
            shutil.rmtree(folder)
        try:
            yield work
        except UserError:
            shutil.rmtree(work, ignore_errors=True)
            raise
        _publish(work, folder)
    finally:
        os.close(lock)


@contextmanager
def full_disk(folder: Path | str, then: str = "") -> Iterator[None]:
    """Say in a sentence that there is no room."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        text = str(error)
        if getattr(error, "errno", None) in _FULL or "No space" in text or "too large" in text:
            raise UserError(
                f"There is no room for the prepared rows in {folder}. Make some, or choose another "
                f"folder with --data.cache{then}."
            ) from error
        raise


def _locked(work: Path, waiting: Callable[[], None]) -> int:
    """Hold the lock of a work folder, which is made where it is not there."""
    told = False
    while True:
        try:
            work.mkdir(exist_ok=True)
            lock = os.open(work / LOCK, os.O_RDWR | os.O_CREAT)
        except (FileExistsError, FileNotFoundError):  # renamed or removed in between
            if work.exists() and not work.is_dir():
                raise
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not told:
                waiting()
                told = True
            fcntl.flock(lock, fcntl.LOCK_EX)
        # Whoever held it may have moved or removed the folder: then this is the lock of nothing.
        try:
            if os.path.samestat(os.fstat(lock), os.stat(work / LOCK)):  # noqa: PTH116
                os.utime(work / LOCK)
                return lock
        except FileNotFoundError:
            pass
        os.close(lock)


def finish(work: Path, content: dict[str, Any]) -> None:
    """Write the manifest, with the size of every file, once all of them are on the disk.

    Folders in the work folder are not part of what was built; they go when it takes its place.
    """
    _tidy(work)
    names = sorted(
        path.name for path in work.iterdir() if path.is_file() and path.name not in (LOCK, MANIFEST)
    )
    files = {name: (work / name).stat().st_size for name in names}
    for name in names:
        _sync(work / name)
    beside = work / f"{MANIFEST}.unfinished"
    beside.write_text(written(content, files), encoding="utf-8")
    _sync(beside)
    beside.rename(work / MANIFEST)
    _sync(work)


def _tidy(work: Path) -> None:
    """Remove the files that processes which were killed did not finish."""
    for path in work.rglob("*.unfinished"):
        path.unlink(missing_ok=True)


def written(content: dict[str, Any], files: dict[str, int]) -> str:
    """The text of a manifest that also tells the size of every file."""
    return json.dumps({**content, "files": files}, indent=2) + "\n"


def _publish(work: Path, folder: Path) -> None:
    """Put the files of a finished work folder in its place."""
    for path in work.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
    work.rename(folder)
    # Whoever waits for the lock looks for it in the work folder, and finds none there.
    (folder / LOCK).unlink()
    _sync(folder.parent)


def _sweep(parent: Path) -> None:
    """Remove what was left unfinished a week ago, and is not being worked on."""
    for work in parent.glob(".*.unfinished"):
        lock = work / LOCK
        try:
            if lock.stat().st_mtime > time.time() - _STALE:
                continue
            handle = os.open(lock, os.O_RDWR)
        except OSError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(work, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(handle)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
