"""What a family of models says of itself, so that reading and writing know none of them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mlmjax.core.errors import UserError
from mlmjax.experiment import Experiment
from mlmjax.interop.huggingface.mapping import Row
from mlmjax.models.base import ModelConfig
from mlmjax.training.folder import Run

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""Their names of activations, and ours; the first that fits is written."""

_LEGACY = {".gamma": ".weight", ".beta": ".bias"}
"""Endings of the tensors of layer norms in files of before 2019."""


@dataclass(frozen=True)
class Table:
    """The tensors of a model.

    Attributes:
        rows: what its parameters are made of.
        copies: tensors that are others, by name; read only to see that they are.
        buffers: tensors that are no parameters, with their values; read only to see that they have them.
        kept: tensors that are no part of our models, such as a pooler's of images; they come back as they were.
        absent: parts of our model that none of the classes has.
        needed: those of the buffers that a part has in any file, by part.
        spellings: beginnings of names that some files have, and what they are here.
    """

    rows: list[Row]
    copies: dict[str, str] = field(default_factory=dict)
    buffers: dict[str, np.ndarray] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()
    needed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    spellings: dict[str, str] = field(default_factory=dict)

    def modern(self, name: str) -> str:
        """The name that the table has for a tensor of a file."""
        for old, new in self.spellings.items():
            if name.startswith(old):
                name = new + name.removeprefix(old)
        for old, new in _LEGACY.items():
            if name.endswith(old):
                return name.removesuffix(old) + new
        return name


class Family:
    """Base class of families."""

    architectures: ClassVar[dict[str, tuple[str, ...]]]
    """Their classes, and the parts of our model that each has; the first is for pretraining."""
    prefix: ClassVar[str]
    """Before the encoder's tensors, in classes that have a head."""
    encoder: ClassVar[str]
    """Their class of the encoder alone, whose tensors have no prefix."""

    def holds(self, model: ModelConfig) -> bool:
        """Can a class of the family hold a model of ours?"""
        raise NotImplementedError

    def experiment(self, config: "Given") -> Experiment:
        """An experiment that pretrains such a model further.

        Raises:
            UserError: the config is incomplete, or asks for what our model cannot do.
        """
        raise NotImplementedError

    def classes(self, config: "Given") -> tuple[str, ...]:
        """Names of the classes that a classifier tells apart."""
        return ()

    def config(self, run: Run) -> dict[str, Any]:
        """The content of config.json for a model of ours.

        Raises:
            UserError: their classes have no such model.
        """
        raise NotImplementedError

    def processor(self, experiment: Experiment) -> dict[str, Any] | None:
        """The content of preprocessor_config.json; None of models that read no images."""
        return None

    def table(self, experiment: Experiment, prefix: str) -> Table:
        """The tensors of a model of ours, with the prefix before the encoder's."""
        raise NotImplementedError


class Given:
    """A config.json, whose entries are asked for by name."""

    def __init__(self, entries: Mapping[str, Any], file: Path):
        self.entries, self.file = entries, file

    def beside(self, name: str) -> dict[str, Any]:
        """The content of another file of the folder; nothing where there is none.

        Raises:
            UserError: it cannot be read.
        """
        file = self.file.with_name(name)
        if not file.is_file():
            return {}
        try:
            return dict(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{file} cannot be read: {error}.") from error

    def __call__(self, name: str, default: Any = None) -> Any:
        """An entry; the default where it is missing or null.

        Raises:
            UserError: there is neither.
        """
        found = self.entries.get(name)
        found = default if found is None else found
        if found is None:
            raise UserError(f"{self.file} has no entry {name}.")
        return found

    def must_be(self, name: str, value: Any) -> None:
        """See that an entry has the one value that our models have, where it is given.

        Raises:
            UserError: it has another.
        """
        found = self.entries.get(name)
        if found is not None and found != value:
            raise UserError(f"{self.file}: {name} is {found!r}; only {value!r} is supported.")

    def activation(self) -> str:
        """Our name of the activation.

        Raises:
            UserError: we do not have it.
        """
        found = self("hidden_act", "gelu")
        if found not in ACTIVATIONS:
            raise UserError(
                f"{self.file}: hidden_act is {found!r}; supported are {', '.join(ACTIVATIONS)}."
            )
        return ACTIVATIONS[found]


def class_names(config: Given) -> tuple[str, ...]:
    """Names of the classes, by number.

    Raises:
        UserError: they are not numbered 0, 1, ...
    """
    named = config.entries.get("id2label")
    if named is None:
        return tuple(f"LABEL_{number}" for number in range(config("num_labels", 2)))
    try:
        return tuple(str(named[str(number)]) for number in range(len(named)))
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{config.file}: the entry id2label does not name classes 0, 1, ..."
        ) from error


def class_entries(run: Run) -> dict[str, Any]:
    """Entries of config.json that name the classes of a run's classifier."""
    return {
        "id2label": dict(enumerate(run.classes)),
        "label2id": {name: number for number, name in enumerate(run.classes)},
        "problem_type": "single_label_classification",
    }


def their_activation(ours: str) -> str:
    """Their name of an activation of ours."""
    return next(theirs for theirs, name in ACTIVATIONS.items() if name == ours)
