"""Files found by one name: a file, a folder or a pattern, and what they hold."""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from mlmjax.core.errors import UserError
from mlmjax.data.sources.files import File, state_of, telling

Kind = Literal["text", "jsonl", "parquet", "array_record"]
"""What a file holds, by its suffix."""

_KINDS: dict[str, Kind] = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".array_record": "array_record",
    ".arrayrecord": "array_record",
}
_MAGIC = re.compile(r"[*?\[]")
_SHARD = re.compile(r"-\d+-of-\d+$")
_PACKAGES = {
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), "adlfs"),
    **dict.fromkeys(("http", "https"), "aiohttp requests"),
    **dict.fromkeys(("sftp", "ssh"), "paramiko"),
    "hf": "huggingface_hub",
}


@dataclass(frozen=True)
class Found:
    """What there is under a root.

    Attributes:
        root: as the user gave it.
        system: where it lies.
        paths: (name relative to the root, path), sorted by name.
        base: how the user would name what the names are relative to; none where the root is a file.
        folder: whether the root is a folder, of which some files may be meant and others not.
    """

    root: str
    system: AbstractFileSystem
    paths: tuple[tuple[str, str], ...]
    base: str | None
    folder: bool

    @property
    def local(self) -> bool:
        """Whether the paths are ones of this machine."""
        return isinstance(self.system, LocalFileSystem)

    def kind(self) -> Kind:
        """The one kind of all files.

        Raises:
            UserError: there are several, or none.
        """
        first: dict[Kind, str] = {}
        for name, _ in self.paths:
            if found := _kind_inside(name) if self.folder else kind_of(name) or "text":
                first.setdefault(found, name)
        if len(first) > 1:
            several = ", ".join(f"{name} ({kind})" for kind, name in first.items())
            raise UserError(
                f"{self.root} holds files of several kinds (--data.root): {several}. Choose one with "
                "--data.format."
            )
        if not first:
            raise UserError(
                f"The folder holds no .txt, .jsonl, .parquet or .array_record file: {self.root} "
                "(--data.root). Files with other names can be given by a pattern in quotes."
            )
        return next(iter(first))

    def files(self, kind: Kind) -> tuple[File, ...]:
        """The files of a kind in a folder; all files of a pattern.

        Raises:
            UserError: there are none, or one cannot be read.
        """
        chosen = [
            (name, path)
            for name, path in self.paths
            if not self.folder or _kind_inside(name) == kind
        ]
        if not chosen:
            raise UserError(
                f"The folder holds no {_listed(kind)} file: {self.root} (--data.root). Files with other "
                "names can be given by a pattern in quotes."
            )
        return tuple(self._file(name, path) for name, path in chosen)

    def those(self, wanted: Callable[[str], bool]) -> list[File]:
        """The files whose names relative to the root are wanted, in order.

        Raises:
            UserError: one cannot be read.
        """
        return [self._file(name, path) for name, path in self.paths if wanted(name)]

    def file(self, path: str) -> File:
        """The file of a path.

        Raises:
            UserError: it cannot be read.
        """
        names = {path: name for name, path in self.paths}
        return self._file(names.get(path, path), path)

    def _file(self, name: str, path: str) -> File:
        # A name that is not UTF-8 could not be written down.
        name = os.fsencode(name).decode(errors="replace")
        shown = self.root if self.base is None else f"{self.base}{name}"
        if self.local and Path(path).is_symlink() and not Path(path).exists():
            raise UserError(
                f"{shown} is a link to nothing (--data.root): remove it, or bring back what it links to."
            )
        with telling(shown, self.system):
            return File(self.system, path, name, shown, *state_of(self.system, path))


def find(root: str) -> Found:
    """The files of a root.

    Args:
        root: a file, a folder (all files in it, at any depth) or a pattern such as
            ``books/**/*.txt``; local, or remote where ``fsspec`` reads it.

    Raises:
        UserError: there is nothing, or it cannot be read.
    """
    system, path = _system(root)
    with telling(root, system):
        try:
            is_folder = system.info(path)["type"] == "directory"
        except (FileNotFoundError, NotADirectoryError):
            if not _MAGIC.search(root):
                raise UserError(
                    f"There is no file or folder {root} (--data.root). Give a file, a folder of "
                    "them, or a pattern in quotes."
                ) from None
            return _matching(root, system, path)
        if not is_folder:
            name = path.rsplit("/", 1)[-1]
            return Found(root, system, ((name, path),), None, folder=False)
        prefix = path.rstrip("/") + "/"
        inside = sorted((file.removeprefix(prefix), file) for file in _walk(system, path))
        return Found(root, system, tuple(inside), root.rstrip("/") + "/", folder=True)


def kind_of(name: str) -> Kind | None:
    """What a file holds, by its suffix, or none; one that is only packed is text."""
    stem, packed = re.subn(r"\.(gz|zst)$", "", _SHARD.sub("", name.lower()))
    suffix = Path(_SHARD.sub("", stem)).suffix
    kind = _KINDS.get(suffix, "text" if packed and not suffix else None)
    return None if packed and kind in ("parquet", "array_record") else kind


def _kind_inside(name: str) -> Kind | None:
    """What a file in a folder holds; plain ``.json`` there tells of the others, and is not meant."""
    return None if name.lower().endswith(".json") else kind_of(name)


def _listed(kind: Kind) -> str:
    suffixes = [suffix for suffix in _KINDS if _kind_inside(f"a{suffix}") == kind]
    return " or ".join(suffixes)


def _system(root: str) -> tuple[AbstractFileSystem, str]:
    scheme = root.partition("://")[0]
    try:
        return url_to_fs(root)
    except ImportError as error:
        package = _PACKAGES.get(scheme)
        install = f" Install it: pip install {package}." if package else ""
        raise UserError(f"{root} cannot be read (--data.root): {error}.{install}") from error
    except Exception as error:  # each file system has its own, such as for missing credentials
        raise UserError(f"{root} cannot be read (--data.root): {error}.") from error


def _walk(system: AbstractFileSystem, folder: str) -> Iterator[str]:
    """All files in a folder, at any depth; links are followed, a folder is entered once."""
    if not isinstance(system, LocalFileSystem):
        for base, _, names in system.walk(folder, on_error="raise"):
            yield from (f"{base.rstrip('/')}/{name}" for name in names if name)
        return
    entered = {os.path.realpath(folder)}
    for base, folders, names in os.walk(folder, followlinks=True, onerror=_raise):
        yield from (f"{base.rstrip('/')}/{name}" for name in names)
        inside = [Path(base, name) for name in folders]
        folders.clear()
        for path in sorted(inside, key=lambda path: (path.is_symlink(), path)):
            if (real := os.path.realpath(path)) not in entered:
                entered.add(real)
                folders.append(path.name)


def _raise(error: OSError) -> None:
    raise error


def _matching(root: str, system: AbstractFileSystem, path: str) -> Found:
    """What a pattern matches."""
    if isinstance(system, LocalFileSystem):
        pattern = path if "://" in root else root
        base, rest = _divided(pattern)
        # Alone, it would match folders only.
        rest += "/*" if rest.endswith("**") else ""
        folder = Path(base or ".").expanduser()
        try:
            inside = (
                [file for file in folder.glob(rest) if file.is_file()] if folder.exists() else []
            )
        except (NotImplementedError, ValueError) as error:
            raise _unusable(root, error) from error
        pairs = [
            (file.relative_to(folder).as_posix(), file.absolute().as_posix()) for file in inside
        ]
    else:
        base = _divided(root)[0]
        start = _divided(path)[0]
        try:
            found = system.glob(path, detail=True)
        except ValueError as error:
            raise _unusable(root, error) from error
        pairs = [(p.removeprefix(start), p) for p, i in found.items() if i["type"] == "file"]
    if not pairs:
        raise UserError(f"No file matches the pattern: {root} (--data.root).")
    return Found(root, system, tuple(sorted(pairs)), base, folder=False)


def _divided(pattern: str) -> tuple[str, str]:
    """The folder before the first sign of a pattern, with its slash, and the rest."""
    magic = _MAGIC.search(pattern)
    cut = pattern.rfind("/", 0, magic.start() if magic else None) + 1
    return pattern[:cut], pattern[cut:]


def _unusable(root: str, error: Exception) -> UserError:
    return UserError(f"The pattern {root} cannot be used (--data.root): {error}.")
