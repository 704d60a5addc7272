"""Tokens replaced by [MASK], by a random token, or not at all (BERT, Devlin et al. 2019, section 3.1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key, UInt32
from pydantic import Field, model_validator

from mlmjax.core.config import Config
from mlmjax.core.errors import UserError
from mlmjax.core.types import Mask
from mlmjax.core.vocabulary import Vocabulary
from mlmjax.corruption.draws import bits_at
from mlmjax.corruption.runs import runs

Unit = Literal["token", "span"]
"""What has one fate: each selected token by itself, or each run of neighbouring ones."""

Share = Annotated[float, Field(ge=0, le=1)]


class Kind(IntEnum):
    """What the encoder sees at a selected position."""

    MASK = 0
    """[MASK]."""
    RANDOM = 1
    """A random token, now and then the right one."""
    KEEP = 2
    """The token itself, which is predicted all the same."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Corrupted:
    """What the encoder sees.

    Attributes:
        tokens: the row with its replacements.
        kind: the :class:`Kind` of each place of the mask; KEEP where the place is unused.
    """

    tokens: Int[Array, "*batch length"]
    kind: Int[Array, "*batch capacity"]


class TokenCorruption(Config):
    """Shares of the selected tokens that are replaced by [MASK], by a random token, and kept."""

    mask: Share = 0.8
    """Share replaced by [MASK]."""
    random: Share = 0.1
    """Share replaced by a token drawn uniformly from those that are not special."""
    keep: Share = 0.1
    """Share left as it is, and still predicted."""
    unit: Unit = "token"
    """What has one fate: each ``token`` by itself, or each ``span``, a run of neighbouring selected tokens
    (SpanBERT, Joshi et al. 2020, section 3.1); random tokens are drawn one by one in either case."""

    @model_validator(mode="after")
    def _whole(self) -> "TokenCorruption":
        _cuts((self.mask, self.random, self.keep))
        return self

    def __call__(
        self,
        key: Key[Array, ""],
        tokens: Int[Array, " length"],
        mask: Mask,
        vocabulary: Vocabulary,
    ) -> Corrupted:
        """What the encoder sees of one example (:func:`corrupt_tokens`)."""
        return corrupt_tokens(
            key,
            tokens,
            mask=mask,
            mask_id=vocabulary.mask,
            size=vocabulary.size,
            special=vocabulary.special,
            shares=(self.mask, self.random, self.keep),
            unit=self.unit,
        )


def corrupt_tokens(
    key: Key[Array, ""],
    tokens: Int[Array, " length"],
    *,
    mask: Mask,
    mask_id: int,
    size: int,
    special: Sequence[int],
    shares: tuple[float, float, float] = (0.8, 0.1, 0.1),
    unit: Unit = "token",
) -> Corrupted:
    """Replace selected tokens of one row; each by itself, or each run of them, meets one of three fates.

    The fate of a token follows from the key and its position alone, that of a run from the key and the position
    at which it starts: it does not depend on what else is selected, nor on the capacity of the mask.

    Args:
        key: the example's own.
        tokens: token ids.
        mask: the selected positions; places of weight 0 change nothing.
        mask_id: the id of [MASK].
        size: number of token ids.
        special: ids that are never drawn.
        shares: of [MASK], random and kept tokens; they sum to 1.
        unit: what has one fate, a ``token`` or a ``span`` (a run of neighbouring selected tokens).

    Raises:
        UserError: the shares do not sum to 1, or every id is special.
    """
    try:
        cuts = _cuts(shares)
    except ValueError as error:
        raise UserError(str(error)) from error
    decides = mask.positions if unit == "token" else runs(mask).start
    # Each position has two words: its fate's, and behind those of the whole row, its random token's.
    index = jnp.concatenate([decides, tokens.size + mask.positions])
    fate, draw = jnp.split(bits_at(key, index), 2)
    kind = (fate[:, None] >> 8 >= cuts).sum(axis=1, dtype=jnp.int32)
    kind = jnp.where(mask.weight > 0, kind, Kind.KEEP)
    drawn = _ordinary_tokens(draw, size=size, special=special)
    seen = jnp.where(kind == Kind.MASK, mask_id, drawn).astype(tokens.dtype)
    # Unused places hold position 0, which is not theirs: they write beyond the row instead.
    places = jnp.where(kind == Kind.KEEP, tokens.size, mask.positions)
    return Corrupted(tokens=tokens.at[places].set(seen, mode="drop"), kind=kind)


def _ordinary_tokens(
    bits: UInt32[Array, " places"], *, size: int, special: Sequence[int]
) -> Int[Array, " places"]:
    """Ids of tokens that are not special, uniform up to a share of size / 2^32."""
    ids = np.unique(np.asarray(special, np.int32))
    if ids.size >= size:
        raise UserError(f"All {size} token ids are special, so no random token can be drawn.")
    rank = (bits % np.uint32(size - ids.size)).astype(jnp.int32)
    # A rank passes over the j-th special id if it is at least the number of ordinary ids below.
    below = jnp.asarray(ids - np.arange(ids.size, dtype=np.int32))
    return rank + jnp.searchsorted(below, rank, side="right").astype(jnp.int32)


def _cuts(shares: tuple[float, float, float]) -> np.ndarray:
    """Where a draw of 24 bits goes from [MASK] to random, and from random to kept.

    In whole numbers, so that a share of 0 never happens and a share of 1 always does.
    """
    if not (abs(sum(shares) - 1) <= 1e-6 and min(shares) >= 0):
        raise ValueError(
            "the shares of mask, random and keep must sum to 1 and none be negative, but they are "
            f"{shares[0]:g}, {shares[1]:g} and {shares[2]:g} (sum {sum(shares):g})"
        )
    upto = np.cumsum(shares)
    return np.round(upto[:2] / upto[2] * 2**24).astype(np.uint32)
