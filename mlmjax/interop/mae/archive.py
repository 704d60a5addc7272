"""Files of ``torch.save`` (PyTorch 1.6 and later), read without PyTorch and without running what they contain.

Such a file is a zip archive: a pickle, ``data.pkl``, says which tensors there are, and each ``data/N`` holds the
numbers of one storage, uncompressed. A pickle is a program that may call any function by its name. Here a few names
have stand-ins that only note what they are given, and all others end the reading.
"""

import io
import pickle
import struct
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZIP_STORED, ZipFile

import ml_dtypes
import numpy as np

from mlmjax.core.errors import UserError
from mlmjax.interop.huggingface.tensors import Tensor, Weights

_PICKLE = "data.pkl"
_ZIP, _OLD, _TAR = b"PK\x03\x04", b"\x80", b"ustar"
_LOCAL = struct.Struct("<4s22xHH")
"""Before an entry: a signature, and at last the lengths of its name and of an extra field."""

_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}


# A pickle may set attributes of what it is given, so the stand-ins have none that can be set.


class _Type(NamedTuple):
    """Stands for a class of storages or a dtype."""

    name: str

    @property
    def numpy(self) -> np.dtype:
        return np.dtype(getattr(ml_dtypes, self.name, self.name))


class _Storage(NamedTuple):
    """Numbers of one type, by the name of their entry."""

    type: _Type
    key: str
    numbers: int


class _View(NamedTuple):
    """A tensor: where in a storage its numbers are, in numbers and not in bytes."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def end(self) -> int:
        """One past the last number."""
        if 0 in self.shape:
            return self.offset
        steps = zip(self.shape, self.strides, strict=True)
        return self.offset + 1 + sum((size - 1) * stride for size, stride in steps)


class _Tensor:
    """Stands for ``torch._utils._rebuild_tensor_v2``."""

    __slots__ = ()

    def __call__(self, storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> _View:
        shape, strides = tuple(shape), tuple(strides)
        numbers = (offset, *shape, *strides)
        whole = all(type(each) is int and each >= 0 for each in numbers)
        if not (isinstance(storage, _Storage) and whole and len(shape) == len(strides)):
            raise ValueError("a tensor is not described as torch.save does")
        return _View(storage, offset, shape, strides)


class _Parameter:
    """Stands for ``torch._utils._rebuild_parameter``."""

    __slots__ = ()

    def __call__(self, tensor: Any, *rest: Any) -> Any:
        return tensor


_KNOWN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _Tensor(),
    ("torch._utils", "_rebuild_parameter"): _Parameter(),
    **{("torch", storage): _Type(name) for storage, name in _STORAGES.items()},
    **{("torch", name): _Type(name) for name in _STORAGES.values()},
}


class _Reader(pickle.Unpickler):
    """An unpickler that can make tensors, plain values and a record of arguments, and nothing else."""

    def __init__(self, data: bytes, path: Path):
        super().__init__(io.BytesIO(data))
        self.path = path
        # Of this file alone, since a pickle may set what it likes on a class.
        self.arguments = type("Arguments", (), {})

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in of a name.

        Raises:
            UserError: it has none.
        """
        if (module, name) == ("argparse", "Namespace"):
            return self.arguments
        if (module, name) not in _KNOWN:
            raise UserError(
                f"{self.path} would call {module}.{name}, which could run code, and is not read. If you trust the "
                "file, load it with PyTorch and save the weights alone: "
                'torch.save({"model": model.state_dict()}, "new.pth").'
            )
        return _KNOWN[module, name]

    def persistent_load(self, pid: Any) -> _Storage:
        """A storage, which the pickle names and does not hold."""
        kind, type_, key, _, count = pid
        if kind != "storage" or not isinstance(type_, _Type) or type(count) is not int:
            raise ValueError("a storage is not described as torch.save does")
        return _Storage(type_, str(key), count)


@dataclass(frozen=True)
class _Entry:
    """Where in the file the bytes of an entry are."""

    start: int
    size: int


class Checkpoint(Weights):
    """The tensors of a file of ``torch.save``: its state dict, alone or as the entry ``model``.

    Attributes:
        path: of the file.
        arguments: numbers and texts of an ``argparse.Namespace`` that was saved as ``args``.
    """

    arguments: Mapping[str, Any]

    def __init__(self, path: Path):
        """Read what the file says of its tensors.

        Raises:
            UserError: the file is missing, damaged, in another format, or would call a function that tensors do not
                need.
        """
        self.path = path
        self._entries, data = _opened(path)
        reader = _Reader(data, path)
        try:
            whole = reader.load()
        except UserError:
            raise
        except Exception as error:  # a damaged pickle may end in any
            raise UserError(f"{path} is damaged: its {_PICKLE} cannot be read: {error}.") from error
        state = whole.get("model", whole) if isinstance(whole, dict) else whole
        args = whole.get("args") if isinstance(whole, dict) else None
        told = vars(args) if isinstance(args, reader.arguments) else {}
        self.arguments = {k: v for k, v in told.items() if isinstance(v, (bool, int, float, str))}
        self._views = dict(self._checked(state))

    def __getitem__(self, name: str) -> Tensor:
        view = self._views[name]
        kind = view.storage.type
        start = self._entries[view.storage.key].start + view.offset * kind.numpy.itemsize
        return Tensor(view.shape, kind.name, self.path, start)

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def read(self, name: str) -> np.ndarray:
        """See :meth:`Weights.read`.

        The storage is mapped for this tensor alone, so that what was read before does not stay in memory.
        """
        view = self._views[name]
        kind = view.storage.type.numpy
        if 0 in view.shape:
            return np.empty(view.shape, kind)
        storage = np.memmap(self.path, kind, "r", self[name].offset, view.end - view.offset)
        strides = [stride * kind.itemsize for stride in view.strides]
        return np.lib.stride_tricks.as_strided(storage, view.shape, strides, writeable=False)

    def _checked(self, state: Any) -> Iterator[tuple[str, _View]]:
        """The tensors by name, whose numbers are seen to be in the file."""
        if not (isinstance(state, dict) and state and all(isinstance(each, str) for each in state)):
            raise UserError(
                f"{self.path} holds no state dict: it must be one, or have one as its entry model."
            )
        for name, view in state.items():
            if not isinstance(view, _View):
                raise UserError(
                    f"{self.path}: {name} is no tensor. The file must hold a state dict, or have one as its entry "
                    "model."
                )
            entry = self._entries.get(view.storage.key)
            size = view.storage.type.numpy.itemsize
            if entry is None or max(view.end, view.storage.numbers) * size > entry.size:
                raise UserError(f"{self.path} is damaged: the numbers of {name} are not all there.")
            yield name, view


def _opened(path: Path) -> tuple[dict[str, _Entry], bytes]:
    """The storages of a file by name, and its pickle."""
    try:
        with path.open("rb") as file:
            head = file.read(512)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not head.startswith(_ZIP):
        raise UserError(f"{path} {_other_format(head)}")
    try:
        with ZipFile(path) as archive, path.open("rb") as file:
            return _contents(path, archive, file)
    except UserError:
        raise
    except Exception as error:  # a damaged archive may end in any
        raise UserError(f"{path} is truncated or damaged: {error or 'it ends early'}.") from error


def _other_format(head: bytes) -> str:
    if head.startswith(_OLD) or head[257:262] == _TAR:
        return (
            "is in the format that PyTorch wrote before version 1.6, which is not read. Save it anew with PyTorch: "
            'torch.save(torch.load("old.pth", map_location="cpu", weights_only=True), "new.pth").'
        )
    return "is no checkpoint of PyTorch: torch.save writes a zip archive, and this is none."


def _contents(path: Path, archive: ZipFile, file: io.BufferedReader) -> tuple[dict, bytes]:
    """As :func:`_opened`, of an archive that was opened.

    Raises:
        UserError: it is not one of torch.save, or of a machine of another byte order.
        ValueError: it is damaged.
    """
    found = [name for name in archive.namelist() if name.endswith(f"/{_PICKLE}")]
    if len(found) != 1:
        raise UserError(
            f"{path} is no checkpoint of PyTorch: the archive holds {len(found)} {_PICKLE} and not one."
        )
    root = found[0].removesuffix(_PICKLE)
    order = root + "byteorder"
    if order in archive.namelist() and (said := archive.read(order)) != b"little":
        raise UserError(
            f"{path} is of a machine whose byte order is {said.decode(errors='replace')}; only little is read. "
            "Save it anew on another."
        )
    entries = {}
    for info in archive.infolist():
        if info.compress_type != ZIP_STORED or info.flag_bits & 1:
            raise ValueError(
                f"{info.filename} is compressed or encrypted, which torch.save does not do"
            )
        if not info.filename.startswith(root + "data/"):
            continue
        file.seek(info.header_offset)
        signature, name, extra = _LOCAL.unpack(file.read(_LOCAL.size))
        start = info.header_offset + _LOCAL.size + name + extra
        if signature != _ZIP or start + info.file_size > path.stat().st_size:
            raise ValueError(f"{info.filename} is not where it should be")
        entries[info.filename.removeprefix(root + "data/")] = _Entry(start, info.file_size)
    return entries, archive.read(found[0])
