"""What the data of every modality has in common."""

from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from mlmjax.core.config import Config

Report = Callable[[str, int, int], None]
"""``report(stage, done, total)``: how far a preparation is; a total of 0 is not known yet."""


class Data(Config):
    """Where examples come from and how many make a batch."""

    root: str | None = None
    """A file, a folder or a pattern; none means the sample that every install carries."""
    batch: Annotated[int, Field(gt=0)] = 32
    """Rows in a global batch, over all hosts."""
    cache: str | None = None
    """Folder of prepared rows; by default ``mlmjax`` in the user's cache folder (XDG)."""
