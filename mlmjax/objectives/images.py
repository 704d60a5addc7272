"""What objectives of images ask of the data."""

from mlmjax.core.errors import UserError
from mlmjax.models.vit import VitConfig
from mlmjax.objectives.base import Spec


def check_images(encoder: VitConfig, spec: Spec) -> None:
    """Refuse images of another size or with other channels than the encoder reads.

    Raises:
        UserError: naming the options to change.
    """
    height, width, channels = spec["pixels"].shape[1:]
    if (height, width) != encoder.image:
        sizes = "{} {}".format(*encoder.image)
        raise UserError(
            f"Images are {height} by {width} pixels and the model is for {encoder.image[0]} by "
            f"{encoder.image[1]}: set --data.size {sizes}, or --model.encoder.image {height} {width}."
        )
    if channels != encoder.channels:
        raise UserError(
            f"Images have {channels} channels and the model {encoder.channels}: set "
            f"--data.channels {encoder.channels}, or --model.encoder.channels {channels}."
        )
