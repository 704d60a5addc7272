"""Where images come from."""

from mlmjax.data.image_sources.array_record import ArrayRecordImages
from mlmjax.data.image_sources.arrays import Array
from mlmjax.data.image_sources.base import ImagePart, ImageSource, Picture
from mlmjax.data.image_sources.config import ImageFormat, open_images
from mlmjax.data.image_sources.digits import Digits
from mlmjax.data.image_sources.folder import ImageFolder
from mlmjax.data.image_sources.idx import IdxFiles
from mlmjax.data.image_sources.npz import NpzFile
from mlmjax.data.image_sources.parquet import ParquetImages
from mlmjax.data.image_sources.tfds import TfdsImages

__all__ = [
    "Array",
    "ArrayRecordImages",
    "Digits",
    "IdxFiles",
    "ImageFolder",
    "ImageFormat",
    "ImagePart",
    "ImageSource",
    "NpzFile",
    "ParquetImages",
    "Picture",
    "TfdsImages",
    "open_images",
]
