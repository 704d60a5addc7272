"""Plain text: a file, a folder or a pattern."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

from etils import epath

from mlmjax.core.errors import UserError
from mlmjax.data.documents import Document

AnyPath: TypeAlias = Path | epath.Path

_BREAK = re.compile(r"\n(?:[ \t]*\n){2,}")
_MAGIC = re.compile(r"[*?\[]")


class TextFiles:
    """The documents of plain-text files in UTF-8, in the order of their names.

    A file is a group, so it lies on one side of a split. Two or more blank lines in a file separate
    documents; a file without them is one document.
    """

    def __init__(self, root: str) -> None:
        """Find the files.

        Args:
            root: a file, a folder (all ``*.txt`` in it, at any depth) or a pattern such as
                ``books/**/*.txt``; local, or remote where ``etils.epath`` reads it.

        Raises:
            UserError: there is nothing, or no ``*.txt``.
        """
        self.root = root
        self._files = _find(root)

    def __str__(self) -> str:
        return self.root

    def __iter__(self) -> Iterator[Document]:
        """The documents.

        Raises:
            UserError: a file cannot be read, or is not UTF-8, or none holds any text.
        """
        nothing = True
        for name, path in self._files:
            for text in _BREAK.split(_decode(_read(path), path)):
                if text.strip():
                    nothing = False
                    yield Document(text, name)
        if nothing:
            raise UserError(f"{self.root} holds no text (--data.root): every file in it is empty.")

    def digest(self) -> str:
        """Hash of the files' names and bytes."""
        found = hashlib.blake2b(digest_size=16)
        for name, path in self._files:
            content = _read(path)
            found.update(f"{name}\n{len(content)}\n".encode())
            found.update(content)
        return found.hexdigest()


def _find(root: str) -> list[tuple[str, AnyPath]]:
    """(name relative to the root, file), sorted by name."""
    path = _path(root)
    found: Iterable[AnyPath]
    if path.is_dir():
        base, found = path, _walk(path)
    elif path.exists():
        return [(path.name, path)]
    elif magic := _MAGIC.search(root):
        folder = root[: root.rfind("/", 0, magic.start()) + 1]
        base = _path(folder or ".")
        found = _matching(base, root[len(folder) :])
    else:
        raise UserError(
            f"There is no file or folder {root} (--data.root). Give a .txt file, a folder of them, "
            "or a pattern in quotes."
        )
    files = sorted((file.relative_to(base).as_posix(), file) for file in found)
    if not files:
        what = "The folder holds no .txt file" if base == path else "No file matches the pattern"
        raise UserError(f"{what}: {root} (--data.root).")
    return files


def _path(name: str) -> AnyPath:
    # The plain class knows recursive patterns, which etils' own does not.
    return epath.Path(name) if "://" in name else Path(name).expanduser()


def _walk(folder: AnyPath) -> Iterator[AnyPath]:
    for path in folder.iterdir():
        if path.is_dir():
            yield from _walk(path)
        elif path.suffix == ".txt":
            yield path


def _matching(base: AnyPath, pattern: str) -> list[AnyPath]:
    try:
        return [file for file in base.glob(pattern) if file.is_file()] if base.exists() else []
    except (NotImplementedError, ValueError) as error:
        raise UserError(
            f"The pattern {pattern} cannot be used in {base} (--data.root): {error}"
        ) from error


def _read(path: AnyPath) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"{path} cannot be read (--data.root): {why}.") from error


def _decode(content: bytes, path: AnyPath) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 (--data.root): byte {error.start} is "
            f"0x{content[error.start]:02x}. Convert it, for example with iconv -t UTF-8."
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")
