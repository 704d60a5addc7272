"""Text: where it comes from, how it is tokenised and laid out in rows."""

from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
from pydantic import Field

from mlmjax.core.vocabulary import Vocabulary
from mlmjax.data.base import Data, Report
from mlmjax.data.documents import Source
from mlmjax.data.prepare import Layout, PreparedText, prepare
from mlmjax.data.samples import PyDocs
from mlmjax.data.sources import TextFiles
from mlmjax.data.tokenizer import TokenizerConfig
from mlmjax.data.tokenizer_training import SPECIAL


class TextData(Data):
    """Rows of text; without a root, documentation that every install carries."""

    length: Annotated[int, Field(ge=8)] = 128
    """Tokens in a row, special ones included."""
    layout: Layout = "full"
    """``full``: consecutive sentences up to the length. ``pairs``: two texts for next-sentence
    prediction, the second drawn anew every epoch."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """The tokenizer."""
    heldout: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Share of the groups (files, modules) that training does not see."""
    examples: tuple[str, ...] = ()
    """Sentences with a mask token that are filled when a run ends."""

    def source(self) -> Source:
        """The documents.

        Raises:
            UserError: there is no text at ``root``.
        """
        return PyDocs() if self.root is None else TextFiles(self.root)

    def prepare(self, report: Report | None = None) -> PreparedText:
        """Rows, from the cache or made now; see :func:`mlmjax.data.prepare.prepare`."""
        return prepare(
            self.source(),
            tokenizer=self.tokenizer,
            length=self.length,
            layout=self.layout,
            heldout=self.heldout,
            folder=Path(self.cache).expanduser() if self.cache else None,
            report=report,
        )

    def spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and types of a global batch, without any data; see ``pipeline.batches``."""
        row = (self.batch, self.length)
        shapes = {
            "tokens": (row, jnp.int32),
            "valid": (row, jnp.bool_),
            "word_starts": (row, jnp.bool_),
            "segments": (row, jnp.int32),
            "id": ((self.batch, 2), jnp.uint32),
            "epoch": ((self.batch,), jnp.int32),
        }
        if self.layout == "pairs":
            shapes["is_next"] = ((self.batch,), jnp.int32)
        return {name: jax.ShapeDtypeStruct(*one) for name, one in shapes.items()}

    def abstract_vocabulary(self) -> Vocabulary:
        """The vocabulary that a trained tokenizer of the asked size would have."""
        padding, unknown, start, separator, mask = special = range(len(SPECIAL))
        return Vocabulary(
            size=self.tokenizer.vocabulary,
            padding=padding,
            unknown=unknown,
            start=start,
            separator=separator,
            mask=mask,
            special=tuple(special),
        )
