"""Images: where they come from, and how they are shown."""

from pathlib import Path
from typing import Annotated, Literal, Self

import jax
import jax.numpy as jnp
from pydantic import Field, model_validator

from mlmjax.data.base import Data
from mlmjax.data.image_rows import View
from mlmjax.data.image_sources import Digits, ImageFormat, ImageSource, open_images
from mlmjax.data.preparation import cache
from mlmjax.data.preparation.image_records import ImageRecipe, Mixed
from mlmjax.data.preparation.images import prepare_images
from mlmjax.data.preparation.progress import Report
from mlmjax.data.preparation.reading import OnError
from mlmjax.data.prepared_images import PreparedImages
from mlmjax.data.sources import Name

Pixels = Annotated[int, Field(gt=0, lt=2**15)]
Share = Annotated[float, Field(gt=0, le=1)]


class ImageData(Data):
    """Images with raw pixels; without a root, the digits that scikit-learn carries.

    A batch holds ``pixels`` [batch, height, width, channels], ``valid``, ``id`` and ``epoch``, and ``labels``
    [batch] where these are asked for. Pretraining never sees them: evaluation asks the prepared images for them.
    """

    format: ImageFormat = "auto"
    """Of what lies at ``root``; by default the files' names tell."""
    field: str = "image"
    """What holds the image, where images have fields (npz, Parquet, ArrayRecord, TFDS); empty where a record of
    ArrayRecord is the file itself."""
    label_field: Name | None = "label"
    """What holds the class; any other than the default must be there. Of a folder, folders in it are classes."""
    labels: bool = False
    """Whether batches hold the classes, for fine-tuning; images without one are then left out."""
    split: Name = "train"
    """Which split of a TFDS dataset is read; this is not the split for training."""
    size: tuple[Pixels, Pixels] = (224, 224)
    """Height and width of what the model sees; images are scaled to it, by bicubic interpolation."""
    channels: Annotated[int, Field(ge=1, le=64)] = 3
    """1 is grey, 2 grey and alpha, 3 RGB, 4 RGB and alpha; more are for arrays that have as many."""
    bits: Literal[8, 16] = 8
    """Of a channel: pixels are 0 to 255, or 0 to 65535."""
    mixed: Mixed = "refuse"
    """Where some images have other channels than others: ``refuse`` them, or ``convert`` all of them to
    ``channels``. Images that are alike are converted in any case."""
    background: Annotated[int, Field(ge=0, le=255)] = 255
    """Grey value behind transparent parts where no alpha is asked for."""
    crop: tuple[Share, Share] | None = None
    """Show a random part in every epoch, of an area from the first to the second share of the image's and an
    aspect between 3/4 and 4/3; by default the largest part in the middle with the aspect of ``size``."""
    flip: bool = False
    """Mirror half of the images, drawn anew in every epoch."""
    heldout: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Share of the images that training does not see. Where the source has a part for that (``t10k`` in idx,
    folders or arrays named ``val`` or, if there is none, ``test``), that part is held out instead."""
    smallest: tuple[Pixels, Pixels] = (1, 1)
    """The least height and width of an image before it is scaled."""
    on_error: OnError = "stop"
    """At an image that is damaged or too small, stop, or skip and count it."""
    workers: Annotated[int, Field(ge=0)] = 0
    """Processes that prepare; 0 for one a core. What they make does not depend on it."""

    @model_validator(mode="after")
    def _crops(self) -> Self:
        if self.crop is not None and self.crop[0] > self.crop[1]:
            raise ValueError(
                f"crop is from {self.crop[0]:g} to {self.crop[1]:g}: give the smaller share first"
            )
        return self

    def source(self) -> ImageSource:
        """Where the images come from.

        Raises:
            UserError: there is no image at the root.
        """
        return open_images(
            self.root,
            self.format,
            field=self.field,
            label_field=self.label_field,
            split=self.split,
        )

    def view(self) -> View:
        """How images are shown in training."""
        return View(
            self.size, self.channels, self.bits, self.background, crop=self.crop, flip=self.flip
        )

    def recipe(self) -> ImageRecipe:
        """What is made of the images."""
        return ImageRecipe(self.view(), self.heldout, self.smallest, self.mixed, self.on_error)

    def prepare(self, report: Report | None = None) -> PreparedImages:
        """Records, from the cache or made now; see :func:`mlmjax.data.preparation.images.prepare_images`."""
        recipe = self.recipe()
        folder = prepare_images(
            self.source(),
            recipe,
            folder=cache.local(self.cache),
            workers=self.workers,
            report=report,
        )
        return PreparedImages.open(folder, recipe, labels=self.labels)

    def abstract_classes(self) -> int | None:
        return len(Digits.classes) if self.labels and self.root is None else None

    def like(self, other: Data, folder: Path) -> Self:
        if not isinstance(other, ImageData):
            return super().like(other, folder)
        return self.updated(size=other.size, channels=other.channels, bits=other.bits)

    def resized(self, image: tuple[int, int]) -> Self:
        return self.updated(size=image)

    def spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and types of a global batch, without any data."""
        depth = jnp.uint8 if self.bits == 8 else jnp.uint16
        shapes = {
            "pixels": ((self.batch, *self.size, self.channels), depth),
            "valid": ((self.batch,), jnp.bool_),
            "id": ((self.batch, 2), jnp.uint32),
            "epoch": ((self.batch,), jnp.int32),
        }
        if self.labels:
            shapes["labels"] = ((self.batch,), jnp.int32)
        return {name: jax.ShapeDtypeStruct(*one) for name, one in shapes.items()}
