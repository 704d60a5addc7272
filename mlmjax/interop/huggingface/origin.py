"""What an imported model came with: its config, its tokenizer's files and the list of its tensors."""

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlmjax.core.errors import UserError
from mlmjax.interop.huggingface.tensors import INDEX, ONE, Tensors, write

CONFIG = "config.json"
LISTED = "tensors.json"
FOLDER = "origin"
"""Where in a run folder an origin is kept."""

SIDE = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "preprocessor_config.json",
)
"""Small files that belong to a model, beside its config and weights."""


@dataclass(frozen=True)
class Origin:
    """A model folder without its weights.

    Attributes:
        folder: where it is kept.
        config: the content of config.json.
        dtypes: the type of each tensor, by name.
    """

    folder: Path
    config: dict[str, Any]
    dtypes: dict[str, str]

    @classmethod
    def of(cls, folder: Path, tensors: Tensors) -> "Origin":
        """That of a model folder.

        Raises:
            UserError: its config cannot be read.
        """
        dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
        return cls(folder, read_config(folder), dtypes)

    @classmethod
    def behind(cls, folder: Path) -> "Origin | None":
        """That of a run: kept in its folder, or the model folder itself; None of a run that was begun here."""
        kept = folder / FOLDER
        if (kept / LISTED).is_file():
            return cls(kept, read_config(kept), json.loads((kept / LISTED).read_text()))
        whole = any((folder / name).is_file() for name in (ONE, INDEX))
        return cls.of(folder, Tensors(folder)) if whole else None

    @property
    def architecture(self) -> str:
        """The name of the class that wrote it."""
        return self.config["architectures"][0]

    def value(self, name: str) -> np.ndarray:
        """A tensor that is no parameter."""
        return Tensors(self.folder).read(name)

    def save(self, run: Path, buffers: Iterable[str]) -> None:
        """Keep it in a run folder, with those tensors that are no parameters."""
        to = run / FOLDER
        to.mkdir()
        if kept := {name: self.value(name) for name in buffers}:
            write(kept, to)
        self.copy_side_files(to)
        shutil.copyfile(self.folder / CONFIG, to / CONFIG)
        (to / LISTED).write_text(json.dumps(self.dtypes, indent=1) + "\n")

    def copy_side_files(self, to: Path) -> None:
        """Copy tokenizer and image processor."""
        for name in SIDE:
            if (self.folder / name).is_file():
                shutil.copyfile(self.folder / name, to / name)


def read_config(folder: Path) -> dict[str, Any]:
    """The content of a model folder's config.json, with its architecture.

    Raises:
        UserError: it is missing or damaged, or names no architecture.
    """
    file = folder / CONFIG
    if not file.is_file():
        raise UserError(f"{folder} is no model folder: it has no {CONFIG}.")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}.") from error
    if not isinstance(config, dict):
        raise UserError(f"{file} is not a JSON object.")
    named = config.get("architectures")
    if not (isinstance(named, list) and named and isinstance(named[0], str)):
        raise UserError(f"{file} names no architecture: it has no entry architectures.")
    return config
