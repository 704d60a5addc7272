"""A run folder's model, of any modality."""

from dataclasses import dataclass
from typing import Any

import jax
from etils import epath
from flax import nnx
from jax.sharding import SingleDeviceSharding
from pydantic import ValidationError

from mlmjax.core.errors import UserError
from mlmjax.data.images import ImageData
from mlmjax.data.tokenizer import Tokenizer
from mlmjax.experiment import Experiment, validation_message
from mlmjax.models.mae import MaeConfig
from mlmjax.training.checkpoint import Checkpoints
from mlmjax.training.folder import RunFolder, load
from mlmjax.training.state import module_graph, shapes


@dataclass(frozen=True)
class Trained:
    """A trained model with what belongs to it.

    Attributes:
        model: the module.
        config: the experiment, fitted.
        step: of the checkpoint.
        tokenizer: where examples are texts.
    """

    model: Any
    config: Experiment
    step: int
    tokenizer: Tokenizer | None = None


def load_trained(
    folder: epath.PathLike, *, size: tuple[int, int] | None = None, trust_code: bool = False
) -> Trained:
    """The newest model of a run folder.

    Args:
        folder: a local path, or any that ``etils.epath`` reads.
        size: height and width of the images that it is to read, if not those that it was trained on: its
            positions are then interpolated.
        trust_code: run the config file that is kept in the folder, if the run was made with one.

    Raises:
        UserError: the folder holds no run or no checkpoint; or a size is given, and the model reads text, or its
            patches do not divide it.
    """
    files = RunFolder(folder)
    if files.tokenizer.exists():
        if size is not None:
            raise UserError(f"--size is for images, and the run in {folder} is of text.")
        run = load(folder, trust_code=trust_code)
        return Trained(run.model, run.config, run.step, run.tokenizer)
    config = files.read_config(trust_code=trust_code)
    if size is not None:
        config = _resized(config, size)
    config = config.fitted(None)
    step = files.latest_step()
    if step is None:
        raise UserError(
            f"There is no checkpoint in {files.path}: train it first, with `mlmjax train {files.path}`."
        )
    graph, model = module_graph(config.model)
    here = SingleDeviceSharding(jax.local_devices()[0])
    wanted = jax.tree.map(
        lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=here), shapes(model)
    )
    with Checkpoints(files.checkpoints) as checkpoints:
        parameters = checkpoints.restore_parameters(wanted, step)
    return Trained(nnx.merge(graph, parameters), config, step)


def _resized(config: Experiment, size: tuple[int, int]) -> Experiment:
    """The experiment for images of another size.

    Raises:
        UserError: it is none of a masked autoencoder, or the patch does not divide the size.
    """
    if not isinstance(config.model, MaeConfig) or not isinstance(config.data, ImageData):
        raise UserError(
            f"--size is for masked autoencoders of images, not for {type(config.model).__name__}."
        )
    try:
        return config.updated(model=config.model.resized(size), data=config.data.updated(size=size))
    except ValidationError as error:
        shown = "{} {}".format(*size)
        raise UserError(f"--size {shown}: {validation_message(error)}") from error
