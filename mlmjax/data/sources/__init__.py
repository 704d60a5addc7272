"""Where documents come from."""

from mlmjax.data.sources.array_record import ArrayRecordFiles
from mlmjax.data.sources.config import Format, MixturePart, Name, TextSource
from mlmjax.data.sources.fields import Fields
from mlmjax.data.sources.jsonl import JsonLines
from mlmjax.data.sources.parquet import ParquetFiles
from mlmjax.data.sources.text_files import Documents, TextFiles
from mlmjax.data.sources.tfds import TfdsDataset

__all__ = [
    "ArrayRecordFiles",
    "Documents",
    "Fields",
    "Format",
    "JsonLines",
    "MixturePart",
    "Name",
    "ParquetFiles",
    "TextFiles",
    "TextSource",
    "TfdsDataset",
]
