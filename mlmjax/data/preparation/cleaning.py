"""Which documents are dropped, and by which step."""

import re
import unicodedata
from functools import cache
from typing import Annotated, Self

import numpy as np
from jaxtyping import Bool, UInt8, UInt32
from pydantic import Field, model_validator

from mlmjax.core.config import Config
from mlmjax.data.preparation import near_duplicates as minhash

_LINE = re.compile(r"[^\r\n]+")
_PIECE = 1 << 20
_SPACE, _WORD, _SYMBOL = range(3)


class Cleaning(Config):
    """Steps that drop documents, in this order; each is off unless asked for.

    Exact duplicates are dropped with or without them, after those that look at one document and before
    near-duplicates.
    """

    shortest: Annotated[int, Field(ge=1)] | None = None
    """Fewest characters of the normalised text."""
    longest: Annotated[int, Field(ge=1)] | None = None
    """Most characters of the normalised text; longer documents are dropped, not cut."""
    repeated_lines: Annotated[float, Field(ge=0, le=1)] | None = None
    """Largest share of the lines that repeat an earlier line of the document; empty lines, and spaces
    around a line, do not count. Gopher's corpus was cleaned with 0.3 (Rae et al. 2021, appendix A.1)."""
    symbols: Annotated[float, Field(ge=0, le=1)] | None = None
    """Largest share of symbols in the characters of the normalised text: of what is neither a letter, a
    mark nor a number, in any script. Spaces and invisible format characters do not count."""
    near_duplicates: Annotated[float, Field(gt=0, le=1)] | None = None
    """Jaccard similarity from which on a document is dropped that is like an earlier one, as MinHash
    estimates it; 0.8 in Lee et al. 2022. It needs ``pip install 'mlmjax[deduplicate]'``."""
    shingle: Annotated[int, Field(ge=1)] = 5
    """Words in a shingle, the unit of that similarity."""
    permutations: Annotated[int, Field(ge=16, le=4096)] = 128
    """Values in a MinHash signature, 4 bytes each; more estimate the similarity better."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.shortest and self.longest and self.shortest > self.longest:
            raise ValueError(
                f"shortest ({self.shortest}) must not exceed longest ({self.longest}), or every "
                "document is dropped"
            )
        return self

    def check(self) -> None:
        """Whether the steps can run here.

        Raises:
            UserError: near-duplicates are to be dropped and ``datasketch`` is not installed.
        """
        if self.near_duplicates is not None:
            minhash.require()

    def drop_reason(self, raw: str, normalised: str) -> str | None:
        """The first step that drops a document by itself, or none; near-duplicates come later.

        Args:
            raw: the text as the source holds it.
            normalised: the same through :func:`mlmjax.data.documents.normalise`.
        """
        if self.shortest is not None and len(normalised) < self.shortest:
            return "shortest"
        if self.longest is not None and len(normalised) > self.longest:
            return "longest"
        if self.repeated_lines is not None and repeated_lines(raw) > self.repeated_lines:
            return "repeated_lines"
        if self.symbols is not None and symbols(normalised) > self.symbols:
            return "symbols"
        return None

    def signature(self, normalised: str) -> UInt32[np.ndarray, " permutations"]:
        """The signature of a document; see :func:`mlmjax.data.preparation.near_duplicates.signature`."""
        return minhash.signature(normalised, shingle=self.shingle, permutations=self.permutations)

    def near_duplicate(
        self, signatures: UInt32[np.ndarray, "documents permutations"]
    ) -> Bool[np.ndarray, " documents"]:
        """Which documents are dropped, given the signatures of all in order; none if the step is off.

        See :func:`mlmjax.data.preparation.near_duplicates.near_duplicates`.
        """
        if self.near_duplicates is None:
            return np.zeros(len(signatures), bool)
        return minhash.near_duplicates(signatures, threshold=self.near_duplicates)


def repeated_lines(text: str) -> float:
    """Share of the lines that repeat an earlier one (Rae et al. 2021, appendix A.1).

    Lines are compared without the spaces around them; empty ones do not count.
    """
    lines = (match.group().strip() for match in _LINE.finditer(text))
    # Hashes, since the lines of a long document would take far more memory than the document.
    hashes = np.fromiter((hash(line) for line in lines if line), np.int64)
    return (len(hashes) - len(np.unique(hashes))) / max(len(hashes), 1)


def symbols(text: str) -> float:
    """Share of the characters that are neither letters, marks nor numbers (Unicode's L, M and N).

    Spaces, format characters (joiners, direction marks) and variation selectors do not count.
    """
    counts = np.zeros(3, np.int64)
    for begin in range(0, len(text), _PIECE):
        codes = text[begin : begin + _PIECE].encode("utf-32-le", "surrogatepass")
        kinds = _kinds()[np.frombuffer(codes, "<u4")]
        counts += np.bincount(kinds, minlength=3)
    return float(counts[_SYMBOL] / max(counts[_SYMBOL] + counts[_WORD], 1))


@cache
def _kinds() -> UInt8[np.ndarray, " characters"]:
    """Whether each character is a space (or format), a part of a word, or a symbol."""
    of_group = {"L": _WORD, "M": _WORD, "N": _WORD, "Z": _SPACE, "P": _SYMBOL, "S": _SYMBOL}
    of_other = {"Cc": _SPACE, "Cf": _SPACE, "Cs": _SYMBOL, "Co": _SYMBOL, "Cn": _SYMBOL}
    categories = map(unicodedata.category, map(chr, range(0x110000)))
    found = np.fromiter(
        (of_group[c[0]] if c[0] in of_group else of_other[c] for c in categories), np.uint8
    )
    found[[*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)]] = _SPACE
    return found
