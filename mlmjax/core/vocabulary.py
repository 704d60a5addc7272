"""What masking and corruption must know of a tokenizer: sizes and ids, no text."""

from typing import Annotated

from pydantic import Field, model_validator

from mlmjax.core.config import Config


class Vocabulary(Config):
    """The token ids that masked prediction treats specially.

    ``special`` holds every id that is never selected and never drawn as a random replacement; the
    named ids are among them.
    """

    size: Annotated[int, Field(gt=0)]
    """Number of token ids; ids are 0 .. size - 1."""
    padding: int
    unknown: int
    start: int
    """[CLS], the first token of a row."""
    separator: int
    """[SEP]."""
    mask: int
    """[MASK]."""
    special: tuple[int, ...]
    """All special ids, ascending."""

    @model_validator(mode="after")
    def _consistent(self) -> "Vocabulary":
        named = {self.padding, self.unknown, self.start, self.separator, self.mask}
        if not named <= set(self.special):
            raise ValueError("every named special id must be listed in 'special'")
        if list(self.special) != sorted(set(self.special)) or self.special[-1] >= self.size:
            raise ValueError("'special' must be ascending, without repeats, and below 'size'")
        if len(self.special) >= self.size:
            raise ValueError("a vocabulary needs at least one token that is not special")
        return self
