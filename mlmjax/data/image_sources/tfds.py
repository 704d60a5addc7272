"""TensorFlow Datasets: images of a prepared dataset in ArrayRecord files, read without TensorFlow."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from mlmjax.core.errors import UserError
from mlmjax.data.image_sources.array_record import ImageFields, ImageRecords
from mlmjax.data.sources.array_record import spans
from mlmjax.data.sources.fields import listed
from mlmjax.data.sources.files import digest
from mlmjax.data.sources.finding import Found
from mlmjax.data.sources.tfds import dataset, library, shards


class TfdsImages:
    """An image an example, in the order of the shards; classes have the names that the dataset gives them."""

    ignored = 0

    def __init__(
        self,
        found: Found,
        *,
        field: str = "image",
        label_field: str | None = "label",
        split: str = "train",
    ) -> None:
        """Find the dataset.

        Args:
            found: what there is under the root: a dataset's version, or a folder that holds exactly one; local.
            field: the feature that is the image; one within another as ``outer/inner``.
            label_field: that of the class; any but ``label`` must be there; none for no classes.
            split: a split, or a part of one such as ``train[:80%]``.

        Raises:
            UserError: there is no finished dataset, or it has no such split or feature.
        """
        self.root, self._split = found.root, split
        builder = dataset(found)
        features = _by_name(builder)
        _check_image(features, field, found.root)
        if label_field == "label" and label_field not in features:
            label_field = None
        self.classes = _classes(features, label_field, found.root)
        self._fields = ImageFields(field, label_field)
        self._shards = [
            (found.file(path), where) for path, where in shards(builder, split, found.root)
        ]

    def __str__(self) -> str:
        return self.root

    def parts(self) -> list[ImageRecords]:
        """Ranges of the shards' examples."""
        return [
            ImageRecords(file, *span, self._fields)
            for file, (start, stop, total) in self._shards
            for span in spans(file, start, stop, total=total)
        ]

    def digest(self) -> str:
        """Hash of the shards' names and bytes, of the split and of the features."""
        where = [where for _, where in self._shards]
        return digest((file for file, _ in self._shards), "tfds", where, self._fields)


def _by_name(builder: Any) -> dict[str, Any]:
    """All features, those within others too."""
    found = dict(_leaves(builder.info.features, library().features.FeaturesDict))
    return {name: found[name] for name in sorted(found)}


def _leaves(features: Any, nested: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Name and kind of each feature."""
    for name, feature in features.items():
        if isinstance(feature, nested):
            yield from _leaves(feature, nested, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", feature


def _check_image(features: dict[str, Any], field: str, root: str) -> None:
    """Refuse a feature that is not there, or no image of whole numbers."""
    kind = library().features.Image
    # Of other types a file's pixels are no brightness: their bits are those of real numbers.
    fit = [
        name
        for name, each in features.items()
        if isinstance(each, kind) and np.dtype(each.np_dtype) in (np.uint8, np.uint16)
    ]
    if field not in fit:
        missing = "has no feature" if field not in features else "has no image in the feature"
        raise UserError(
            f"{root} {missing} {field!r} (--data.field); features with images: {listed(fit)}."
        )


def _classes(features: dict[str, Any], label: str | None, root: str) -> tuple[str, ...]:
    """Names of the classes; none where the dataset gives none."""
    if label is None:
        return ()
    found = features.get(label)
    dtype = None if found is None or found.shape != () else np.dtype(found.np_dtype)
    if dtype is None or dtype.kind not in "iuOUS":
        missing = "has no feature" if found is None else "has no string or integer in the feature"
        raise UserError(
            f"{root} {missing} {label!r} (--data.label-field); there are {listed(features)}."
        )
    # Where nobody gave names, they are the numbers.
    return tuple(found.names) if isinstance(found, library().features.ClassLabel) else ()
