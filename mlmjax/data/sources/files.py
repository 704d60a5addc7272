"""Files that a source reads: local or remote, packed or not, and known again when they change."""

import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import IOBase
from pathlib import Path

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from mlmjax.core.errors import UserError

PART = 1 << 23
"""Bytes of a part, where a file can be divided; the last may be shorter, none is much longer."""
BLOCK = 1 << 20
"""Bytes that are read at once."""

_VERSIONS = ("ETag", "etag", "md5Hash", "md5", "checksum", "generation")
_TIMES = (
    "mtime",
    "LastModified",
    "Last-Modified",
    "last_modified",
    "updated",
    "modified",
    "created",
)


@dataclass(frozen=True)
class File:
    """A file as it was when it was found.

    Attributes:
        system: the file system, which goes along to other processes.
        path: the file, as the file system names it.
        name: relative to the source's root.
        shown: as the user would name it, for messages.
        size: bytes, packed where it is packed; 0 where a server does not say.
        stamp: changes when the file does: time of the last change, or what a server gives.
    """

    system: AbstractFileSystem
    path: str
    name: str
    shown: str
    size: int
    stamp: str

    @property
    def local(self) -> bool:
        """Whether the path is one of this machine."""
        return isinstance(self.system, LocalFileSystem)

    @property
    def packed(self) -> bool:
        """Whether it must be unpacked, and thus read from its beginning."""
        return self.path.lower().endswith((".gz", ".zst"))

    def check(self) -> None:
        """See whether the file still is what was found.

        Raises:
            UserError: it is gone, or another.
        """
        with telling(self.shown, self.system):
            self.system.invalidate_cache(self.path)
            found = state_of(self.system, self.path)
        if found != (self.size, self.stamp):
            raise UserError(f"{self.shown} changed while it was read; run the command again.")

    @contextmanager
    def opened(self) -> Iterator[IOBase]:
        """The file, for reading.

        Raises:
            UserError: it cannot be read, or changed meanwhile.
        """
        self.check()
        with telling(self.shown, self.system), self.system.open(self.path, "rb") as raw:
            yield raw
        self.check()

    def blocks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The content, a block at a time, unpacked.

        Args:
            start: first byte; 0 in a packed file.
            stop: byte before which to stop; none means the end.

        Raises:
            UserError: it cannot be read, or changed meanwhile.
        """
        with self.opened() as raw:
            if self.packed:
                yield from _unpacked(raw, self.path)
                return
            raw.seek(start) if start else None
            while block := raw.read(BLOCK if stop is None else min(BLOCK, stop - start)):
                start += len(block)
                yield block

    def ranges(self, begins: Callable[[int], int | None]) -> list[tuple[int, int | None]]:
        """(first byte, byte before which to stop or none) of the parts to read it in.

        Args:
            begins: the first place after a byte where a part may begin; none if there is no more.
        """
        borders: list[int] = [0]
        while not self.packed and borders[-1] + PART < self.size:
            border = begins(borders[-1] + PART)
            if border is None:
                break
            borders.append(border)
        return list(zip(borders, [*borders[1:], None], strict=True))


@dataclass(frozen=True)
class Piece:
    """Some bytes of a file, to be read as a part of a source.

    Attributes:
        file: the file.
        start: the first byte, where a document begins.
        stop: byte before which to stop; none means the end.
    """

    file: File
    start: int
    stop: int | None

    @property
    def name(self) -> str:
        """The file, and where in it."""
        return f"{self.file.shown}, from byte {self.start}" if self.start else self.file.shown

    @property
    def size(self) -> int:
        """Bytes."""
        return (self.file.size if self.stop is None else self.stop) - self.start


def digest(files: Iterable[File], *options: object) -> str:
    """Hash of files' names and contents, and of what decides how they are read.

    Of a remote file, size and what the server gives (a hash, or the time of the last change) stand for
    the content.

    Raises:
        UserError: a file cannot be read, or changed.
    """
    found = hashlib.blake2b(repr(options).encode(), digest_size=16)
    for file in files:
        found.update(f"\n{file.name}\n{file.size}\n".encode())
        if not file.local:
            found.update(file.stamp.encode())
            continue
        with file.opened() as raw:
            while block := raw.read(BLOCK):
                found.update(block)
    return found.hexdigest()


@contextmanager
def telling(name: str, system: AbstractFileSystem) -> Iterator[None]:
    """Turn what goes wrong in reading into a sentence.

    Raises:
        UserError: in place of an error of the operating system or of packed data; in place of any
            error of a remote file system, each of which has its own (credentials, network).
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        known = isinstance(error, (OSError, EOFError, zlib.error))
        if not known and isinstance(system, LocalFileSystem):
            raise
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UserError(f"{name} cannot be read (--data.root): {str(why).rstrip('.')}.") from error


def state_of(system: AbstractFileSystem, path: str) -> tuple[int, str]:
    """Size and stamp of a file; see :class:`File`."""
    if isinstance(system, LocalFileSystem):
        state = Path(path).stat()
        return state.st_size, str(state.st_mtime_ns)
    info = system.info(path)
    stamp = next((f"{key} {info[key]}" for key in (*_VERSIONS, *_TIMES) if info.get(key)), "")
    return info.get("size") or 0, stamp


def _unpacked(raw: IOBase, path: str) -> Iterator[bytes]:
    if path.lower().endswith(".zst"):
        yield from _zstd(raw)
        return
    with gzip.GzipFile(fileobj=raw) as file:
        while block := file.read(BLOCK):
            yield block


def _zstd(raw: IOBase) -> Iterator[bytes]:
    """The content of all frames. zstandard's own stream reader overlooks a file that was cut off."""
    try:
        import zstandard
    except ImportError as error:
        raise UserError("Reading .zst files needs zstandard: pip install zstandard.") from error
    # As much as any file may ask for; small portions, as one may unpack to a thousand times its size.
    unpack = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj
    frame = None
    while portion := raw.read(BLOCK >> 7):
        while portion:
            frame = frame or unpack()
            try:
                block = frame.decompress(portion)
            except zstandard.ZstdError as error:
                raise OSError(f"damaged zstd data: {error}") from error
            if block:
                yield block
            portion = frame.unused_data
            if frame.eof:
                frame = None
    if frame is not None:
        raise EOFError("Compressed file ended before the end of its last frame")
