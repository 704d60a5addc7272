"""What an experiment asks of a model config."""

from typing import Self

from flax import nnx

from mlmjax.core.config import Config
from mlmjax.core.errors import UserError
from mlmjax.core.vocabulary import Vocabulary


class ModelConfig(Config):
    """Base class of model configs."""

    def build(self, rngs: nnx.Rngs) -> nnx.Module:
        """The module, its parameters drawn from ``rngs.params``."""
        raise TypeError(f"{type(self).__name__} does not say how it is built: define build()")

    def fitted(self, vocabulary: Vocabulary | None) -> Self:
        """The config with what it takes from the data filled in.

        Raises:
            UserError: the config contradicts the data.
        """
        return self

    def of_classes(self, classes: int) -> Self:
        """The config with the number of classes that the data has filled in; by default it has no use for it.

        Raises:
            UserError: the config contradicts the data.
        """
        return self

    def like(self, pretrained: "ModelConfig") -> Self:
        """The config with the encoder of a pretrained model, so that it can take its parameters.

        What is not the encoder's stays: heads of its own, dropout, how it is computed.

        Raises:
            UserError: the other has no such encoder.
        """
        raise UserError(f"{type(self).__name__} cannot start from a {type(pretrained).__name__}.")

    def resized(self, image: tuple[int, int]) -> Self:
        """The same model for images of another height and width; its parameters keep their shapes.

        Raises:
            UserError: it reads no images.
        """
        raise UserError(f"{type(self).__name__} is no model of images: leave the size away.")
