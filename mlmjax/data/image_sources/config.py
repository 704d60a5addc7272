"""A source of images by its root and format."""

from typing import Literal

from mlmjax.core.errors import UserError
from mlmjax.data.image_sources import folder
from mlmjax.data.image_sources.array_record import ArrayRecordImages
from mlmjax.data.image_sources.base import ImageSource
from mlmjax.data.image_sources.digits import Digits
from mlmjax.data.image_sources.folder import ImageFolder
from mlmjax.data.image_sources.idx import IdxFiles, is_idx
from mlmjax.data.image_sources.npz import NpzFile
from mlmjax.data.image_sources.parquet import ParquetImages
from mlmjax.data.image_sources.tfds import TfdsImages
from mlmjax.data.sources import tfds
from mlmjax.data.sources.finding import Found, find, kind_of

ImageFormat = Literal["auto", "folder", "idx", "npz", "parquet", "array_record", "tfds"]


def open_images(
    root: str | None,
    format: ImageFormat = "auto",
    *,
    field: str = "image",
    label_field: str | None = "label",
    split: str = "train",
) -> ImageSource:
    """The images under a root.

    Args:
        root: a file, a folder or a pattern; none for the digits that scikit-learn carries.
        format: what is there; ``auto`` goes by names.
        field: array, column or feature that is the image.
        label_field: array, column or feature that is its class.
        split: of a dataset of TFDS.

    Raises:
        UserError: there is nothing at ``root``, or not what ``format`` says, or it cannot be read.
    """
    if root is None:
        return Digits()
    found = find(root)
    kind = _kind(found) if format == "auto" else format
    if kind == "folder":
        return ImageFolder(found)
    if kind == "idx":
        return IdxFiles(found)
    if kind == "npz":
        return NpzFile(found, field=field, label_field=label_field)
    if kind == "parquet":
        return ParquetImages(found, field=field, label_field=label_field)
    if kind == "array_record":
        return ArrayRecordImages(found, field=field, label_field=label_field)
    return TfdsImages(found, field=field, label_field=label_field, split=split)


def _kind(found: Found) -> ImageFormat:
    """What there is, by the files' names.

    Raises:
        UserError: it is of several kinds.
    """
    if found.folder and tfds.finished(found):
        return "tfds"
    first: dict[ImageFormat, str] = {}
    for name, _ in found.paths:
        if kind := _kind_of(name):
            first.setdefault(kind, name)
    if len(first) > 1:
        several = ", ".join(f"{name} ({kind})" for kind, name in first.items())
        raise UserError(
            f"{found.root} holds images of several kinds (--data.root): {several}. Choose one with "
            "--data.format."
        )
    return next(iter(first), "folder")


def _kind_of(name: str) -> ImageFormat | None:
    if is_idx(name):
        return "idx"
    if name.lower().endswith(".npz"):
        return "npz"
    if folder.is_image(name):
        return "folder"
    kind = kind_of(name)
    return kind if kind in ("parquet", "array_record") else None
