"""Named tensors in safetensors files, one or several with an index, mapped into memory and read one at a time."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from mlmjax.core.errors import UserError

ONE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")

_TYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}


@dataclass(frozen=True)
class Tensor:
    """What a file says of a tensor before it is read.

    Attributes:
        shape: its sizes.
        dtype: numpy's name of its type; also ``bfloat16``.
        file: where it lies.
        offset: bytes of the file before it.
    """

    shape: tuple[int, ...]
    dtype: str
    file: Path
    offset: int


class Weights(Mapping[str, Tensor]):
    """Named tensors: what they are, and each when it is asked for.

    Attributes:
        path: of the folder or file that holds them.
    """

    path: Path

    def read(self, name: str) -> np.ndarray:
        """A tensor's values, in the type that the file has; best mapped into memory."""
        raise NotImplementedError


class Tensors(Weights):
    """The tensors of a model folder."""

    def __init__(self, folder: Path):
        """Read the headers.

        Raises:
            UserError: there are no safetensors, or they are damaged.
        """
        self.path = folder
        self._found = {name: tensor for file in _files(folder) for name, tensor in _header(file)}

    def __getitem__(self, name: str) -> Tensor:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def read(self, name: str) -> np.ndarray:
        """A tensor's values, in the type that the file has: read from it where they are looked at, and read-only.

        The file is mapped for this tensor alone, so that what was read before does not stay in memory.

        Raises:
            UserError: the file has changed since its header was read.
        """
        tensor = self[name]
        dtype = ml_dtypes.bfloat16 if tensor.dtype == "bfloat16" else np.dtype(tensor.dtype)
        try:
            return np.asarray(np.memmap(tensor.file, dtype, "r", tensor.offset, tensor.shape))
        except (OSError, ValueError) as error:
            raise UserError(f"{tensor.file} cannot be read any more: {error}.") from error


def write(tensors: Mapping[str, np.ndarray], folder: Path) -> None:
    """Write the tensors into a folder's one file."""
    whole = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    save_file(whole, folder / ONE, metadata={"format": "pt"})


def _files(folder: Path) -> list[Path]:
    """The files of weights of a folder, each once."""
    if (folder / ONE).is_file():
        return [folder / ONE]
    index = folder / INDEX
    if not index.is_file():
        pickled = [name for name in PICKLED if (folder / name).is_file()]
        if pickled:
            raise UserError(
                f"{folder / pickled[0]} is a pickle, which could run code and is not read. Load the model with "
                "transformers and save it anew: it then writes model.safetensors."
            )
        raise UserError(f"{folder} holds no {ONE} and no {INDEX}.")
    try:
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = sorted({folder / str(name) for name in names.values()})
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(f"{index} is damaged: it has no weight_map of file names.") from error
    for file in files:
        if not file.is_file():
            raise UserError(f"{file} is missing; {index.name} names it.")
    _check_index(index, names, files)
    return files


def _check_index(index: Path, names: Mapping[str, str], files: list[Path]) -> None:
    """See that the files hold what the index says."""
    for file in files:
        wanted = {name for name, at in names.items() if index.parent / at == file}
        absent = sorted(wanted - {name for name, _ in _header(file)})
        if absent:
            raise UserError(
                f"{file} lacks {', '.join(absent[:5])}, which {index.name} says it holds."
            )


def _header(file: Path) -> Iterator[tuple[str, Tensor]]:
    _check(file)
    # The library that has checked the header does not tell where a tensor lies.
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(length))
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        kind = entry["dtype"]
        if kind not in _TYPES:
            raise UserError(f"{file}: {name} is of the type {kind}; read are {', '.join(_TYPES)}.")
        start, _ = entry["data_offsets"]
        yield name, Tensor(tuple(entry["shape"]), _TYPES[kind], file, 8 + length + start)


def _check(file: Path) -> None:
    """See that a file's header is sound and all of its tensors are there."""
    try:
        with safe_open(file, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file} is truncated or no safetensors file: {error}.") from error
