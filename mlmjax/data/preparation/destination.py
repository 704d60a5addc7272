"""Where many machines write: a folder, local or remote, that is complete or not there.

On this machine's disks it is built beside its place, as the local preparation does
(:mod:`mlmjax.data.preparation.cache`). A remote folder cannot be renamed as a whole: it is built in its place, and
its manifest, which is written last, makes it complete.
"""

import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from mlmjax.core.errors import UserError
from mlmjax.data.preparation import cache


@dataclass(frozen=True)
class Folder:
    """A folder that any process can write to; picklable.

    Attributes:
        system: where it lies.
        path: as the system names it; absolute.
    """

    system: AbstractFileSystem
    path: str

    @property
    def local(self) -> bool:
        """Whether it lies on this machine's disks."""
        return isinstance(self.system, LocalFileSystem)

    def __str__(self) -> str:
        return self.path if self.local else str(self.system.unstrip_protocol(self.path))

    def put(self, file: Path, name: str) -> None:
        """Copy a file of this machine into the folder. Of two processes that do so at once with the same
        content, neither harms the other.

        Raises:
            UserError: it is remote, and cannot be reached.
        """
        target = f"{self.path}/{name}"
        if not self.local:
            with _reaching(self):
                self.system.put_file(str(file), target)
            return
        beside = Path(f"{target}.{uuid.uuid4().hex}")
        shutil.copyfile(file, beside)
        beside.replace(target)

    def get(self, name: str, file: Path) -> None:
        """Copy a file of the folder to this machine.

        Raises:
            UserError: it is remote, and cannot be reached.
        """
        with _reaching(self):
            self.system.get_file(f"{self.path}/{name}", str(file))

    def remove(self, name: str) -> None:
        """Remove a file of the folder."""
        self.system.rm_file(f"{self.path}/{name}")

    def sizes(self) -> dict[str, int]:
        """The files in the folder, by name, and their bytes; empty if it is not there."""
        return {name: one["size"] for name, one in self._inside().items() if one["type"] == "file"}

    def clear(self) -> None:
        """Remove all that is in the folder, but for a lock that is held."""
        for name, one in self._inside().items():
            if name != cache.LOCK:
                self.system.rm(one["name"], recursive=True)

    def _inside(self) -> dict[str, dict[str, Any]]:
        self.system.invalidate_cache()
        try:
            found = self.system.ls(self.path, detail=True)
        except FileNotFoundError:
            return {}
        named = {one["name"].rstrip("/").rsplit("/", 1)[-1]: one for one in found}
        return dict(sorted(named.items()))


def find(asked: str | None, name: str) -> Folder:
    """The folder of that name in a cache.

    Args:
        asked: the cache: a path, or a URL that ``fsspec`` knows; by default the user's.
        name: the folder's name.

    Raises:
        UserError: there is no such file system here.
    """
    try:
        system, path = url_to_fs(asked or str(cache.default()))
    except Exception as error:  # each file system has its own, such as for missing credentials
        raise UserError(_unusable(asked, error)) from error
    return Folder(system, f"{path.rstrip('/')}/{name}")


def manifest(place: Folder) -> dict[str, Any] | None:
    """The manifest of a complete folder; none if a file is missing or has another size.

    Raises:
        UserError: a remote folder cannot be reached.
    """
    if place.local:
        return cache.manifest(Path(place.path))
    with _reaching(place):
        there = place.sizes()
        if cache.MANIFEST not in there:
            return None
        content = place.system.cat_file(f"{place.path}/{cache.MANIFEST}")
    try:
        found = json.loads(content)
        whole = all(there.get(name) == size for name, size in found["files"].items())
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if whole else None


@contextmanager
def building(place: Folder, *, waiting: Callable[[], None]) -> Iterator[Folder | None]:
    """An empty folder to build in, which is at ``place`` after the block if it ends without an error;
    what was written is removed if it ends with one.

    Args:
        place: the place.
        waiting: called once if another process is building (which is only known of local folders).

    Returns:
        The folder, or none if another process has completed it in the meantime.

    Raises:
        UserError: the cache cannot be written.
    """
    if not place.local:
        with _reaching(place):
            place.clear()
            place.system.makedirs(place.path, exist_ok=True)
        with _cleared_on_error(place):
            yield place
        return
    with cache.building(Path(place.path), waiting=waiting) as work:
        if work is None:
            yield None
            return
        folder = Folder(place.system, str(work))
        folder.clear()
        with _cleared_on_error(folder):
            yield folder


def finish(work: Folder, content: dict[str, Any]) -> None:
    """Write the manifest, with the size of every file, once all of them are there."""
    if work.local:
        cache.finish(Path(work.path), content)
        return
    text = cache.written(content, work.sizes())
    work.system.pipe_file(f"{work.path}/{cache.MANIFEST}", text.encode())


@contextmanager
def _cleared_on_error(folder: Folder) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(Exception):  # what went wrong first is told
            folder.clear()
        raise


@contextmanager
def _reaching(place: Folder) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if place.local:
            raise
        raise UserError(_unusable(str(place), error)) from error


def _unusable(cache: str | None, error: Exception) -> str:
    why = str(error) or type(error).__name__
    return f"{cache} cannot be written (--data.cache): {why.rstrip('.')}."
