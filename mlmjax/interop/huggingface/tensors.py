"""Named tensors in safetensors files, one or several with an index, mapped into memory and read one at a time."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    """

    shape: tuple[int, ...]
    dtype: str
    file: Path


class Weights(Mapping[str, Tensor]):
    """Named tensors: what they are, and each when it is asked for.

    Attributes:
        path: of the folder or file that holds them.
    """

    path: Path

    def read(self, name: str) -> np.ndarray:
        """A tensor's values, in the type that the file has."""
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
        """See :meth:`Weights.read`.

        The file is mapped for this tensor alone, so that what was read before does not stay in memory.
        """
        with _opened(self[name].file) as file:
            return file.get_tensor(name)


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
    with _opened(file) as opened:
        for name in opened.keys():  # noqa: SIM118  # it is no mapping
            one = opened.get_slice(name)
            kind = one.get_dtype()
            if kind not in _TYPES:
                raise UserError(
                    f"{file}: {name} is of the type {kind}; read are {', '.join(_TYPES)}."
                )
            yield name, Tensor(tuple(one.get_shape()), _TYPES[kind], file)


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="numpy") as opened:
            yield opened
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file} is truncated or no safetensors file: {error}.") from error
