"""Records with named fields: which field is the text, which the id, which the group."""

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mlmjax.data.documents import Document
from mlmjax.data.sources.lines import UnreadableError

_LISTED = 20


@dataclass(frozen=True)
class Fields:
    """The fields of a record that are read.

    Attributes:
        text: the text.
        id: the record's own id, a string or an integer; none if it has none.
        group: what the record is split by, a string or an integer; none: it is its own group.
        label: the record's class, a string or an integer; none: it is not read.
        pair: the second text of a record that is a pair of texts; none: a record is one text.
    """

    text: str = "text"
    id: str | None = None
    group: str | None = None
    label: str | None = None
    pair: str | None = None

    def __repr__(self) -> str:
        # Fingerprints of prepared text hold it: what is not read leaves them as they were before there was such.
        also = [f", {name}={getattr(self, name)!r}" for name in ("label", "pair")]
        also = [text for text in also if not text.endswith("=None")]
        return f"Fields(text={self.text!r}, id={self.id!r}, group={self.group!r}{''.join(also)})"

    def texts(self) -> list[tuple[str, str]]:
        """The fields that hold texts, each with its option."""
        return [(self.text, "field"), *([(self.pair, "pair-field")] if self.pair else ())]

    def marks(self) -> list[tuple[str, str]]:
        """The fields that hold strings or integers, each with its option."""
        given = ((self.id, "id-field"), (self.group, "group-field"), (self.label, "label-field"))
        return [(name, option) for name, option in given if name is not None]

    def names(self) -> list[str]:
        """All that are read, each once."""
        every = (name for name, _ in (*self.texts(), *self.marks()))
        return list(dict.fromkeys(name for name in every if name))

    def document(self, record: Mapping[str, object], place: str = "") -> Document:
        """The document of a record.

        Args:
            record: values by field; None is a null.
            place: of the record, for messages.

        Raises:
            UnreadableError: a field is not there, or holds something else, or a class is empty.
        """
        texts = [_text(record, name, option) for name, option in self.texts()]
        label = _key(record, self.label, "label-field")
        if self.label is not None and not label:
            raise UnreadableError(
                f"the field {self.label!r} is empty, so there is no class (--data.label-field)."
            )
        return Document(
            texts[0],
            group=_key(record, self.group, "group-field"),
            label=label,
            id=_key(record, self.id, "id-field"),
            place=place,
            second=texts[1] if self.pair else "",
        )


def parsed(text: str) -> dict[str, object]:
    """The object that a text is in JSON.

    Raises:
        UnreadableError: it is none.
    """
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")
        raise UnreadableError(f"not JSON: {what} at column {error.colno}.") from error
    except RecursionError as error:
        raise UnreadableError("JSON that is nested too deeply.") from error
    except ValueError as error:
        most = sys.get_int_max_str_digits()
        raise UnreadableError(f"a whole number of more than {most} digits.") from error
    if not isinstance(found, dict):
        raise UnreadableError(f"{_kind(found)}, not an object with fields.")
    return found


def listed(names: Iterable[object]) -> str:
    """Names for a message, the first twenty."""
    shown = [str(name) for name in names]
    return ", ".join([*shown[:_LISTED], *(["..."] if len(shown) > _LISTED else [])]) or "none"


def _value(record: Mapping[str, object], name: str, option: str) -> object:
    if name not in record:
        raise UnreadableError(
            f"there is no field {name!r} (--data.{option}), only {listed(record)}."
        )
    return record[name]


def _text(record: Mapping[str, object], name: str, option: str) -> str | None:
    text = _value(record, name, option)
    if not (text is None or isinstance(text, str)):
        raise UnreadableError(
            f"the field {name!r} holds {_kind(text)}, not a string (--data.{option})."
        )
    return None if text is None else _writable(text)


def _key(record: Mapping[str, object], name: str | None, option: str) -> str:
    if name is None:
        return ""
    value = _value(record, name, option)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UnreadableError(
            f"the field {name!r} holds {_kind(value)}, not a string or an integer (--data.{option})."
        )
    return _writable(str(value))


def _kind(value: object) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", list: "a list"}
    kinds |= {str: "a string", type(None): "null", dict: "an object"}
    return kinds.get(type(value), type(value).__name__)


def _writable(text: str) -> str:
    """The text; halves of surrogate pairs, which UTF-8 cannot write, are replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
