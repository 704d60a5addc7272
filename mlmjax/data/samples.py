"""English prose that every Python install with JAX carries: about 10 MB of documentation.

The topics of ``pydoc`` and the docstrings of the standard library, numpy, scipy and jax. The files
are found on disk and read with ``ast``; nothing is imported or run, and no network is needed.
"""

import ast
import gc
import hashlib
import importlib.util
import re
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import cleandoc
from pathlib import Path
from typing import TypeAlias

from mlmjax.data.documents import Broken, Document, raise_broken

Module: TypeAlias = tuple[str, str, Path]
"""Its name, its label and its file."""

PACKAGES = ("numpy", "scipy", "jax")
"""Beside the standard library, whose label is ``python``; one that is not installed is left out."""

PART = 1 << 25
"""Bytes of program text in a part, or a little more."""

_SKIPPED = {
    *("test", "tests", "idle_test", "internal_test_util"),
    *("site-packages", "dist-packages", "_vendor", "lib2to3", "encodings"),
}
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_TOPICS = "pydoc_data.topics"
_NESTS = frozenset({*_DEFINES, ast.If, ast.Try, ast.With, ast.For, ast.While, ast.ExceptHandler})
_BLOCKS = ("body", "orelse", "handlers", "finalbody")

_CLEANING = [
    # Examples that run: from the prompt to the blank line after the output.
    (">>>", r"^[ \t]*>>>.*(?:\n(?![ \t]*$).*)*", ""),
    # Blocks that are no prose.
    (
        ".. ",
        r"^([ \t]*)\.\. (?:math|code(?:-block)?|sourcecode|plot|image|figure|testcode|testsetup"
        r"|doctest|jupyter-execute|autosummary|currentmodule|module|index|_[^:\n]*):.*"
        r"(?:\n(?:\1[ \t]+\S.*|[ \t]*(?=\n|\Z)))*",
        "",
    ),
    (".. ", r"^([ \t]*)\.\. ([\w-]+)::", r"\1"),
    ("", r"^[ \t]*([-=~^*#\"'`+_.])\1{2,}[ \t]*$", ""),
    ("`", r":[\w:+-]+:`([^`<]*?)\s*<[^`]*>`", r"\1"),
    ("`", r":[\w:+-]+:`[~!]?([^`]*)`", r"\1"),
    ("`", r"`{1,2}([^`\n]*)`{1,2}_{0,2}", r"\1"),
    ("::", r"::[ \t]*$", ":"),
    ("Example", r"\n[ \t]*Examples?:?\s*\Z", ""),
]
"""What a text must hold for the pattern to be tried, the pattern, and what takes its place."""
_PATTERNS = [(mark, re.compile(pattern, re.M), new) for mark, pattern, new in _CLEANING]


def pydocs(packages: tuple[str, ...] = PACKAGES) -> Iterator[Document]:
    """Documentation of the standard library and of installed packages, always in the same order.

    A document is a docstring or a topic of ``pydoc``, cleaned of examples, rules and markup. Its
    group is the module, its label the package.
    """
    for part in PyDocs(packages).parts():
        yield from part.read(raise_broken)


class PyDocs:
    """:func:`pydocs` as a source that can be read in parts."""

    def __init__(self, packages: tuple[str, ...] = PACKAGES) -> None:
        self.packages = packages

    def parts(self) -> list["Modules"]:
        """Modules one after the other, some 32 MiB of program text in each part."""
        found: list[Modules] = []
        files: list[Module] = []
        size = 0
        for module in _files(self.packages):
            files.append(module)
            size += _size(module[2])
            if size >= PART:
                found.append(Modules(tuple(files), size))
                files, size = [], 0
        return [*found, Modules(tuple(files), size)] if files else found

    def __str__(self) -> str:
        return "the documentation of the installed packages"

    def digest(self) -> str:
        """Hash of the files that are read."""
        found = hashlib.blake2b(digest_size=16)
        for name, _, path in _files(self.packages):
            found.update(f"{name}\n".encode())
            found.update(_read(path))
        return found.hexdigest()


@dataclass(frozen=True)
class Modules:
    """The documentation of some modules.

    Attributes:
        files: the modules.
        size: bytes of all files.
    """

    files: tuple[Module, ...]
    size: int

    @property
    def name(self) -> str:
        """The first module."""
        return f"the documentation of {self.files[0][0]} and others"

    def read(self, broken: Broken) -> Iterator[Document]:
        """The documents; a file that this Python cannot read is passed over."""
        for name, label, path in self.files:
            for part, raw in _texts(path, topics=name == _TOPICS):
                if text := clean(raw):
                    yield Document(text, f"{name}.{part}" if part else name, label, place=str(path))


def clean(docstring: str) -> str:
    """A docstring as prose: without indentation, examples that run, rules and reST markup."""
    text = cleandoc(docstring)
    for mark, pattern, replacement in _PATTERNS:
        if mark in text:
            text = pattern.sub(replacement, text)
    return text.strip()


def _files(packages: tuple[str, ...]) -> Iterator[Module]:
    """Every module, in a fixed order."""
    library = Path(sysconfig.get_path("stdlib"))
    roots = [("python", "", library)]
    for package in packages:
        spec = importlib.util.find_spec(package)
        for place in (spec and spec.submodule_search_locations) or []:
            roots.append((package, f"{package}.", Path(place)))
    for label, prefix, root in roots:
        inside = ((path.relative_to(root), path) for path in root.rglob("*.py"))
        for relative, path in sorted(inside, key=lambda pair: pair[0].as_posix()):
            if not _SKIPPED.intersection(relative.parts):
                name = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
                yield prefix + name, label, path


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _texts(path: Path, *, topics: bool) -> list[tuple[str, str]]:
    """(part, text) of a file's topics and docstrings; none if this Python cannot read the file."""
    collecting = gc.isenabled()
    # A syntax tree is a host of new objects without cycles: looking for some takes a third longer.
    gc.disable()
    try:
        return _harvest(path, topics=topics)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    finally:
        if collecting:
            gc.enable()


def _harvest(path: Path, *, topics: bool) -> list[tuple[str, str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(_read(path))
    return [*(_topics(tree) if topics else ()), *(("", text) for text in _docstrings(tree))]


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Docstrings of the module and all that it defines, in the order of the file."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.Module, *_DEFINES)) and (text := ast.get_docstring(node, False)):
            yield text
        inside = [child for block in _BLOCKS for child in getattr(node, block, ())]
        pending.extend(child for child in reversed(inside) if type(child) in _NESTS)


def _topics(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(name, text) of the long texts of a module that is one dictionary; each is its own group."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                name, text = getattr(key, "value", None), getattr(value, "value", None)
                if isinstance(name, str) and isinstance(text, str):
                    yield name, text
