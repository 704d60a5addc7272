"""Configs are values: frozen pydantic models that validate, hash, and round-trip through JSON.

Behaviour hangs on a config as a method; underneath lies a plain function of arrays and numbers.
Configs are open: a field may be annotated with a base class and hold any subclass, also one from a
researcher's own file. JSON therefore names each class by its path, under the key ``class``.
"""

import importlib
import json
from collections.abc import Callable
from typing import Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    model_serializer,
    model_validator,
)

from mlmjax.core.errors import UserError

Resolve = Callable[[str], type]
"""Finds the class that a path of the form ``module:name`` stands for."""


class Config(BaseModel):
    """Base class of everything that is configured."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @model_serializer(mode="wrap")
    def _with_class(self, handler: Callable[[Any], Any]) -> dict[str, Any]:
        return {"class": class_path(type(self)), **handler(self)}

    @model_validator(mode="wrap")
    @classmethod
    def _of_class(cls, data: Any, handler: Callable[[Any], Any], info: Any) -> Self:
        if not isinstance(data, dict) or "class" not in data:
            return handler(data)
        if not isinstance(data["class"], str):
            raise ValueError(f"a class is named by its path, module:name, not by {data['class']!r}")
        resolve: Resolve = (info.context or {}).get("resolve", resolve_class)
        named = resolve(data["class"])
        if not issubclass(named, cls):
            raise ValueError(f"{data['class']} is not a {cls.__name__}")
        fields = {key: value for key, value in data.items() if key != "class"}
        if named is cls:
            return handler(fields)
        return named.model_validate(fields, context=info.context)

    def to_json(self) -> str:
        """The config as JSON, each class named by its path."""
        return json.dumps(self.model_dump(mode="json", serialize_as_any=True), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, resolve: Resolve | None = None) -> Self:
        """The config that :meth:`to_json` wrote.

        Args:
            text: the JSON.
            resolve: finds the classes; by default those of the package, and no others.

        Raises:
            UserError: a class lies outside the package and no ``resolve`` was given.
            pydantic.ValidationError: the values do not fit the classes.
        """
        context = {"resolve": resolve or resolve_class}
        return cls.model_validate(json.loads(text), context=context)

    def updated(self, **changes: Any) -> Self:
        """A copy with other values, validated."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**fields, **changes})


def class_path(cls: type) -> str:
    """``module:name`` of a class."""
    return f"{cls.__module__}:{cls.__qualname__}"


def resolve_class(path: str) -> type:
    """The class of the package that a path names; nothing outside the package is imported."""
    module, _, name = path.partition(":")
    if module.split(".")[0] != "mlmjax":
        raise UserError(
            f"The class {path} comes from a config file outside mlmjax. Loading it runs that file's "
            "code; if you trust it, say so with --trust-code."
        )
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        found = None
    if not isinstance(found, type):
        raise UserError(f"mlmjax has no class {path}; was the run made with another version?")
    return found


def differences(first: Config, second: Config, prefix: str = "") -> list[str]:
    """One line ``option: old -> new`` for each leaf in which two configs differ."""
    if class_path(type(first)) != class_path(type(second)):
        return [f"{prefix or 'config'}: {class_path(type(first))} -> {class_path(type(second))}"]
    lines = []
    for name in type(first).model_fields:
        old, new, path = getattr(first, name), getattr(second, name), f"{prefix}.{name}".lstrip(".")
        if isinstance(old, Config) and isinstance(new, Config):
            lines += differences(old, new, path)
        elif old != new:
            lines.append(f"{path}: {old!r} -> {new!r}")
    return lines


def leaves(config: Config) -> dict[str, Any]:
    """The values of all options by their dotted names, as JSON."""
    found: dict[str, Any] = {}

    def collect(value: Any, name: str) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                collect(inner, f"{name}.{key}".lstrip("."))
        else:
            found[name] = value

    collect(config.model_dump(mode="json", serialize_as_any=True), "")
    return found
