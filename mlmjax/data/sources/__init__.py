"""Where documents come from."""

from mlmjax.data.sources.text_files import TextFiles

__all__ = ["TextFiles"]
