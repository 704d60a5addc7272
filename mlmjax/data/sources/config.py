"""A source of text as an option."""

import re
from typing import Annotated, Literal

import tyro
from pydantic import Field, ValidationError

from mlmjax.core.config import Config
from mlmjax.core.errors import UserError
from mlmjax.data.documents import Source
from mlmjax.data.sources import tfds
from mlmjax.data.sources.array_record import ArrayRecordFiles
from mlmjax.data.sources.fields import Fields
from mlmjax.data.sources.finding import find
from mlmjax.data.sources.jsonl import JsonLines
from mlmjax.data.sources.parquet import ParquetFiles
from mlmjax.data.sources.text_files import Documents, TextFiles

Format = Literal["auto", "text", "jsonl", "parquet", "array_record", "tfds"]
Name = Annotated[str, Field(min_length=1)]


class TextSource(Config):
    """Where documents come from, and how they are read."""

    root: Annotated[str, Field(min_length=1)]
    """A file, a folder (read at any depth) or a pattern in quotes; local, or remote where fsspec reads
    it."""
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Share in a mixture, relative to the other sources' weights."""
    format: Format = "auto"
    """What the files hold; ``auto`` goes by their names: ``.txt``, ``.jsonl`` and ``.ndjson`` (also with
    ``.gz`` or ``.zst``), ``.parquet``, ``.array_record``, and a folder with a dataset of TFDS."""
    field: str = "text"
    """Field, column or feature that is the text; empty where an ArrayRecord is plain text."""
    id_field: Name | None = None
    """Field of an id that no two documents share; two that do are an error."""
    group_field: Name | None = None
    """Field that documents are held out by: those with the same value all or none; by default each
    document by itself."""
    label_field: Name | None = None
    """Field of a document's class, a string or an integer; by default it is not read."""
    pair_field: Name | None = None
    """Field of the second text, where a document is a pair of texts."""
    documents: Documents = "blank_lines"
    """What separates documents in plain text: two or more ``blank_lines``, one ``blank_line`` or more,
    each ``line`` end, or nothing, so that a ``file`` is one."""
    split: Name = "train"
    """Split of a dataset of TFDS, or a part of one, such as ``train[:10%]``."""

    def open(self) -> Source:
        """The source.

        Raises:
            UserError: there is nothing at ``root``, or not what ``format`` says, or it cannot be read.
        """
        found = find(self.root)
        fields = Fields(
            self.field, self.id_field, self.group_field, self.label_field, self.pair_field
        )
        kind: str = self.format
        if kind == "auto":
            kind = "tfds" if found.folder and tfds.finished(found) else found.kind()
        if kind == "tfds":
            return tfds.TfdsDataset(found, fields, self.split)
        if kind == "jsonl":
            return JsonLines(found, fields)
        if kind == "parquet":
            return ParquetFiles(found, fields)
        if kind == "array_record":
            return ArrayRecordFiles(found, fields)
        for option, name in (("label-field", self.label_field), ("pair-field", self.pair_field)):
            if name is not None:
                raise UserError(
                    f"{self.root} is plain text, which has no field {name!r} (--data.{option}): give JSON lines, "
                    "Parquet, ArrayRecord or TFDS (--data.root)."
                )
        return TextFiles(found, self.documents)


_HOW = (
    "Write ROOT=WEIGHT, such as 'wiki/*.jsonl=0.7', or with options of a source "
    "'wiki/*.jsonl=0.7,field=body'."
)
_OPTIONS = tuple(name for name in TextSource.model_fields if name not in ("root", "weight"))
_NUMBER = r"[-+]?[\d.]+(?:[eE][-+]?\d+)?"
_WRITTEN = re.compile(rf"(.+?)=({_NUMBER})((?:,(?:{'|'.join(_OPTIONS)})=[^=,]*)*)", re.DOTALL)
_MEANT = re.compile(r"(.+?)=([^=,]*)((?:,\w+=[^=,]*)*)", re.DOTALL)


def written(source: TextSource) -> str:
    """A source as one word of the command line: ``ROOT=WEIGHT[,OPTION=VALUE...]``."""
    others = {
        name: getattr(source, name)
        for name in _OPTIONS
        if getattr(source, name) != TextSource.model_fields[name].default
    }
    return f"{source.root}={source.weight:.12g}" + "".join(f",{k}={v}" for k, v in others.items())


def parse(text: str) -> TextSource:
    """The source that :func:`written` wrote.

    Raises:
        UserError: says what is wrong and how it is written. (A ValueError would not be shown: a command
            line of several words is tried in several ways.)
    """
    # A root may hold signs of equality and commas; where nothing fits, what is wrong is to be told.
    match = _WRITTEN.fullmatch(text) or _MEANT.fullmatch(text)
    if match is None:
        raise UserError(f"{text!r} is no source (--data.mixture). {_HOW}")
    root, weight, others = match.groups()
    options = dict(option.split("=") for option in others.split(",")[1:])
    try:
        return TextSource.model_validate({"root": root, "weight": weight, **options})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(
            f"{text!r} is no source (--data.mixture): {where}: {first['msg']}. {_HOW}"
        ) from error


MixturePart = Annotated[
    TextSource,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="ROOT=WEIGHT[,OPTION=VALUE]",
        instance_from_str=lambda words: parse(words[0]),
        is_instance=lambda value: isinstance(value, TextSource),
        str_from_instance=lambda source: [written(source)],
    ),
]
"""A :class:`TextSource` that is one word on the command line."""
