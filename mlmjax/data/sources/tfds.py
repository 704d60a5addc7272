"""TensorFlow Datasets: a prepared dataset in ArrayRecord files, read without TensorFlow."""

import posixpath
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from mlmjax.core.errors import UserError
from mlmjax.data.sources.array_record import ArrayRecordPart, check_local, ranges
from mlmjax.data.sources.fields import Fields, listed
from mlmjax.data.sources.files import digest
from mlmjax.data.sources.finding import Found, find

INFO = "dataset_info.json"
"""The file that TFDS writes last: a folder with it holds a finished dataset."""


class TfdsDataset:
    """A document an example, in the order of the shards.

    ``tensorflow_datasets`` says where the examples of a split lie and of what types they are; they are
    read from there as serialised ``tf.train.Example``.
    """

    def __init__(self, root: str | Found, fields: Fields, split: str = "train") -> None:
        """Find the dataset.

        Args:
            root: the folder of a version (with its ``dataset_info.json``), or a folder that holds
                exactly one; local.
            fields: the features to read; one within another as ``outer/inner``.
            split: a split, or a part of one such as ``train[:80%]``.

        Raises:
            UserError: there is no finished dataset, or it is in another format, or has no such split or
                feature, or ``tensorflow_datasets`` is not installed.
        """
        found = root if isinstance(root, Found) else find(root)
        self.root = found.root
        self.fields = fields
        self.split = split
        builder = dataset(found)
        _check_features(builder, fields, found.root)
        self._shards = [
            (found.file(path), where) for path, where in shards(builder, split, found.root)
        ]

    def __str__(self) -> str:
        return self.root

    def parts(self) -> list[ArrayRecordPart]:
        """Ranges of the shards' examples."""
        return [
            part
            for file, (start, stop, total) in self._shards
            for part in ranges(file, start, stop, total=total, fields=self.fields, absent=True)
        ]

    def digest(self) -> str:
        """Hash of the shards' names and bytes, of the split and of the features."""
        where = [where for _, where in self._shards]
        return digest((file for file, _ in self._shards), "tfds", where, self.fields)


def finished(found: Found) -> list[str]:
    """The folders, relative to the root, that hold a finished dataset."""
    folders = [name.removesuffix(INFO) for name, _ in found.paths if _is_info(name)]
    return [folder for folder in folders if "incomplete." not in folder]


def _is_info(name: str) -> bool:
    return posixpath.basename(name) == INFO


def _folder(found: Found) -> str:
    """The one folder with a finished dataset."""
    folders = finished(found) if found.folder else []
    if len(folders) > 1:
        raise UserError(
            f"{found.root} holds several TFDS datasets (--data.root): {listed(folders)}. Choose one."
        )
    if not folders:
        begun = any("incomplete." in name for name, _ in found.paths)
        raise UserError(
            f"{found.root} holds no finished TFDS dataset (--data.root): "
            + (
                "its preparation was not brought to an end; do that again with tfds build or "
                "download_and_prepare."
                if begun
                else f"give the folder of a version, in which {INFO} lies."
            )
        )
    paths = dict(found.paths)
    return posixpath.dirname(paths[folders[0] + INFO])


def dataset(found: Found) -> Any:
    """The builder of the one finished dataset in a folder, in ArrayRecord files.

    Raises:
        UserError: there is none, or several, or in another format, or ``tensorflow_datasets`` is missing.
    """
    check_local(found, "TFDS datasets are")
    return _builder(_folder(found), found.root)


def library() -> Any:
    """``tensorflow_datasets``.

    Raises:
        UserError: it is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import tensorflow_datasets
    except ImportError as error:
        raise UserError(
            "Reading TFDS datasets needs tensorflow_datasets, without TensorFlow: pip install "
            "'mlmjax[tfds]' (--data.format)."
        ) from error
    return tensorflow_datasets


def _builder(folder: str, root: str) -> Any:
    tfds = library()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it uses what newer protobuf will not have
            builder = tfds.builder_from_directory(folder)
            formats = {found.value for found in builder.info.available_file_formats()}
            features = builder.info.features
    except Exception as error:  # of many kinds: what is damaged comes up anywhere
        why = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise UserError(f"{root} cannot be read as a TFDS dataset (--data.root): {why}.") from error
    if "array_record" not in formats:
        raise UserError(
            f"{root} is a TFDS dataset in {listed(sorted(formats))} files (--data.root), which only "
            "TensorFlow reads; prepare it again with file_format='array_record'."
        )
    if not isinstance(features, tfds.features.FeaturesDict):
        raise UserError(f"{root} is a TFDS dataset without named features (--data.root).")
    return builder


def _check_features(builder: Any, fields: Fields, root: str) -> None:
    """Refuse features that are not there, or of the wrong type."""
    types = dict(sorted(_leaves(builder.info.features, library().features.FeaturesDict)))
    texts = [name for name, type in types.items() if type == "text"]
    keys = [name for name, type in types.items() if type]
    asked = [(*each, texts, "text") for each in fields.texts()]
    asked += [(*each, keys, "text or an integer") for each in fields.marks()]
    for name, option, fit, what in asked:
        if name not in fit:
            missing = "has no feature" if name not in types else f"has no {what} in the feature"
            raise UserError(
                f"{root} {missing} {name!r} (--data.{option}); features with {what}: {listed(fit)}."
            )


def _leaves(features: Any, nested: type, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(name, ``text`` or ``integer`` or nothing) of each feature."""
    for name, feature in features.items():
        if isinstance(feature, nested):
            yield from _leaves(feature, nested, f"{prefix}{name}/")
            continue
        type = np.dtype(feature.np_dtype) if feature.shape == () else None
        integer = "integer" if type is not None and type.kind in "iu" else ""
        yield f"{prefix}{name}", "text" if type is not None and type.kind in "OUS" else integer


def shards(builder: Any, split: str, root: str) -> list[tuple[str, tuple[int, int, int]]]:
    """(file, (first example, example before which to stop, examples in the file)) of a split.

    Raises:
        UserError: there is no such split.
    """
    info = builder.info
    if info.file_format.value != "array_record":
        info.set_file_format("array_record", override=True, override_if_initialized=True)
    try:
        found = info.splits[split].file_instructions
    except Exception as error:  # a name that is unknown, or a slice that cannot be understood
        raise UserError(
            f"{root} has no split {split!r} (--data.split); there are {listed(info.splits)}."
        ) from error
    return [
        (str(each.filename), (each.skip, each.skip + each.take, each.examples_in_shard))
        for each in found
    ]
