"""Documents that are nearly the same as an earlier one, by MinHash and locality-sensitive hashing.

A document is the set of its word n-grams (shingles), and the similarity of two is Jaccard's: shared
shingles over all shingles of both. The share of equal values in two MinHash signatures estimates it
(Broder 1997, "On the resemblance and containment of documents"). Bands of the signature, hashed, tell
which pairs are compared at all (Leskovec, Rajaraman & Ullman, Mining of Massive Datasets, section 3.4).
Lee et al. 2022, "Deduplicating training data makes language models better", section 4.2, clean corpora
so.

Whether a document is dropped depends on the earlier documents alone, dropped or not, so it can be
computed in any order and in parallel.
"""

import math
import operator
import re
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any
from zlib import crc32

import numpy as np
from jaxtyping import Bool, Int, Integer, UInt32, UInt64

from mlmjax.core.errors import UserError

# Scripts without spaces between words: Thai, Lao, Myanmar, Khmer, kana, Han and its extensions.
_ALONE = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
)
_ALONE += "\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_ALONE}]|[^\s{_ALONE}]+")
_BOUNDARY = re.compile(rf"\s|(?=[{_ALONE}])")
_PIECE = 1 << 20
_SHINGLES = 1 << 12
_MULTIPLIER = np.uint32(0x9E3779B1)
# A candidate is checked against the whole signature, so one too many costs time, and one too few a
# near-duplicate that stays.
_WEIGHTS = (0.05, 0.95)
_BAND_BYTES = 1 << 28
_ROWS = 1 << 12
_EARLIER = 1 << 9


def require() -> ModuleType:
    """The package ``datasketch``.

    Raises:
        UserError: it is not installed.
    """
    try:
        import datasketch
    except ImportError as error:
        raise UserError(
            "Near-duplicates (--data.cleaning.near-duplicates) need the package datasketch: "
            "pip install 'mlmjax[deduplicate]'"
        ) from error
    return datasketch


def signature(
    text: str, *, shingle: int = 5, permutations: int = 128
) -> UInt32[np.ndarray, " permutations"]:
    """The MinHash signature of a text: the least hash of its shingles under each permutation.

    Words are what stands between spaces, in any case; a character of a script that writes none (Han,
    kana, Thai and so on) is a word of its own. The values are the same in every process.

    Args:
        text: the normalised text.
        shingle: words in a shingle; a shorter text is one shingle.
        permutations: values in the signature. The estimate of a similarity s has standard deviation
            ``sqrt(s (1 - s) / permutations)``.

    Raises:
        UserError: ``datasketch`` is not installed.
    """
    words = np.concatenate([np.zeros(0, np.uint32), *_word_hashes(text)])
    count = max(len(words) - shingle + 1, 1)
    hashes = np.zeros(count, np.uint32)
    for place in range(min(shingle, len(words))):
        hashes = hashes * _MULTIPLIER + words[place : place + count]
    sketch = _sketch(permutations)
    sketch.clear()
    for begin in range(0, count, _SHINGLES):
        sketch.update_batch(hashes[begin : begin + _SHINGLES].tolist())
    return sketch.digest()


def _word_hashes(text: str) -> Iterator[UInt32[np.ndarray, " words"]]:
    """Hashes of the words of one piece of the text after another."""
    begin = 0
    while begin < len(text):
        cut = _BOUNDARY.search(text, begin + _PIECE)
        end = cut.start() if cut else len(text)
        piece = text[begin:end].casefold()
        if not piece.isascii():
            piece = " ".join(_WORD.findall(piece))
        words = piece.encode("utf-8", "surrogatepass").split()
        yield np.array(list(map(crc32, words)), np.uint32)
        begin = end


@cache
def _sketch(permutations: int) -> Any:
    # The scheme is named, since a default may change with the version.
    return require().MinHash(permutations, seed=1, scheme="affine32", hashfunc=operator.index)


@cache
def bands(threshold: float, permutations: int) -> tuple[int, int]:
    """(bands, values in each) for a threshold of similarity; values that are left over are unused.

    ``datasketch`` minimises the area of false negatives above the threshold plus a twentieth of the
    false positives below. Two documents of similarity s share a band with probability
    ``1 - (1 - s**values)**bands``.

    Raises:
        UserError: ``datasketch`` is not installed.
    """
    try:
        found = require().MinHashLSH(threshold, permutations, weights=_WEIGHTS)
    except ValueError:  # it refuses the single band that is optimal near 1
        return 2, permutations // 2
    return found.b, found.r


def band_hashes(
    signatures: UInt32[np.ndarray, "*documents permutations"], *, threshold: float
) -> UInt64[np.ndarray, "*documents bands"]:
    """A hash of each band of signatures; see :func:`bands`."""
    number, rows = bands(threshold, signatures.shape[-1])
    return _band_hashes(signatures[..., : number * rows], rows)


def _band_hashes(
    values: UInt32[np.ndarray, "*documents values"], rows: int
) -> UInt64[np.ndarray, "*documents bands"]:
    found = np.zeros((*values.shape[:-1], values.shape[-1] // rows), np.uint64)
    for row in range(rows):
        found ^= values[..., row::rows]
        found *= np.uint64(0x9E3779B97F4A7C15)
        found ^= found >> np.uint64(29)
    return found


def near_duplicates(
    signatures: UInt32[np.ndarray, "documents permutations"], *, threshold: float
) -> Bool[np.ndarray, " documents"]:
    """Which documents share a band with an earlier one whose estimated similarity is high enough.

    Beside the signatures it takes 256 MiB, or some 40 bytes a document if that is more.

    Args:
        signatures: of the documents, in order; may be memory-mapped.
        threshold: least share of equal values in two signatures, in (0, 1].

    Raises:
        UserError: ``datasketch`` is not installed.
    """
    documents, permutations = signatures.shape
    number, rows = bands(threshold, permutations)
    found = np.zeros(documents, bool)
    at_once = max(1, _BAND_BYTES // (8 * max(documents, 1)))
    for first in range(0, number, at_once):
        last = min(first + at_once, number)
        hashes = np.empty((last - first, documents), np.uint64)
        for begin in range(0, documents, _ROWS):
            values = signatures[begin : begin + _ROWS, first * rows : last * rows]
            hashes[:, begin : begin + _ROWS] = _band_hashes(values, rows).T
        for band in hashes:
            _mark(found, signatures, band, threshold)
    return found


def _mark(
    found: Bool[np.ndarray, " documents"],
    signatures: UInt32[np.ndarray, "documents permutations"],
    band: UInt64[np.ndarray, " documents"],
    threshold: float,
) -> None:
    """Add to ``found`` what the buckets of one band show."""
    order = np.argsort(band, kind="stable")
    begins = np.ones(len(order), bool)
    begins[1:] = band[order[1:]] != band[order[:-1]]
    places = np.flatnonzero(begins)
    # Most have the first of their bucket as a copy: all buckets are compared with theirs at once.
    waiting = np.flatnonzero(~begins & ~found[order])
    firsts = places[np.searchsorted(places, waiting, side="right") - 1]
    for begin in range(0, len(waiting), _ROWS):
        rows, first = (order[one[begin : begin + _ROWS]] for one in (waiting, firsts))
        equal = (signatures[rows] == signatures[first]).sum(1)
        found[rows] = equal >= _least(threshold, signatures.shape[1])
    waiting = waiting[~found[order[waiting]]]
    ends = np.append(places[1:], len(order))
    for bucket in np.unique(np.searchsorted(places, waiting, side="right") - 1).tolist():
        members = order[places[bucket] : ends[bucket]]
        if len(members) > 2:
            found[members] = earlier_similar(
                signatures, members=members, known=found[members], threshold=threshold
            )


def earlier_similar(
    signatures: UInt32[np.ndarray, "documents permutations"],
    *,
    threshold: float,
    members: Int[np.ndarray, " members"] | None = None,
    known: Bool[np.ndarray, " members"] | None = None,
) -> Bool[np.ndarray, " members"]:
    """Which documents of one bucket have an earlier one in it that is similar enough.

    Each is compared with the earlier ones in turn until one is: m copies take m comparisons, and m
    documents that share a band but no more take m²/2, vectorised.

    Args:
        signatures: of the documents, in order.
        threshold: least share of equal values in two signatures, in (0, 1].
        members: the rows of the bucket, ascending; by default all.
        known: members of which it is already known; they are still compared with.
    """
    if members is None:
        members = np.arange(len(signatures))
    found = np.zeros(len(members), bool) if known is None else known.copy()
    least = _least(threshold, signatures.shape[1])
    begin, size = 0, 1
    while begin < len(members) - 1:
        end = min(begin + size, len(members) - 1)
        waiting = np.flatnonzero(~found[begin + 1 :]) + begin + 1
        if not len(waiting):
            break
        earlier = signatures[members[begin:end]]
        for part in np.split(waiting, range(_ROWS, len(waiting), _ROWS)):
            similar = _equal(signatures[members[part]], earlier) >= least
            similar &= part[:, None] > np.arange(begin, end)
            found[part] = similar.any(1)
        begin, size = end, min(4 * size, _EARLIER)
    return found


def _least(threshold: float, permutations: int) -> int:
    """Equal values that make a share of at least the threshold."""
    return math.ceil(threshold * permutations - 1e-9)


def _equal(
    first: UInt32[np.ndarray, "m permutations"], second: UInt32[np.ndarray, "n permutations"]
) -> Integer[np.ndarray, "m n"]:
    """How many values of each pair of signatures are equal."""
    if len(first) * len(second) < _ROWS:
        return (first[:, None] == second).sum(-1)
    if len(first) > len(second):  # the longer axis runs fastest
        return _equal(second, first).T
    found = np.zeros((len(first), len(second)), np.uint16)
    same = np.empty(found.shape, bool)
    for begin in range(0, first.shape[1], 255):  # as many as fit in a byte, which is the fastest
        block = np.zeros(found.shape, np.uint8)
        columns = (np.ascontiguousarray(one[:, begin : begin + 255].T) for one in (first, second))
        for one, other in zip(*columns, strict=True):
            block += np.equal(one[:, None], other, out=same).view(np.uint8)
        found += block
    return found
