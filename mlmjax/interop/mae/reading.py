"""From a checkpoint of MAE's own code to a run."""

from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from mlmjax.core.errors import UserError
from mlmjax.data.images import ImageData
from mlmjax.experiment import Experiment, validation_message
from mlmjax.interop.huggingface.reading import Imported, assemble
from mlmjax.interop.mae.archive import Checkpoint
from mlmjax.interop.mae.layout import sizes, table
from mlmjax.masking import RandomPatches
from mlmjax.objectives.mae import MaskedAutoencoder
from mlmjax.optim import AdamW
from mlmjax.sharding import AnyMesh
from mlmjax.targets import PixelTarget
from mlmjax.training.folder import Run

_ASSUMED = (
    "The file does not say whether it predicts pixels as they are or normalised in each patch; normalised is "
    "assumed, as in the paper's recipe. Import it with --norm-pix-loss false if it was trained without."
)


def from_mae(
    path: str | Path,
    *,
    heads: int | None = None,
    decoder_heads: int | None = None,
    norm_pix_loss: bool | None = None,
    mesh: AnyMesh | None = None,
) -> Run:
    """The model of a ``.pth`` file that MAE's code wrote (He et al. 2022): its training's or a published one.

    Nothing in the file is run. Sizes come from the tensors' shapes; activation, epsilon and the scale of pixels are
    those of MAE's code.

    Args:
        path: a file of ``torch.save`` that holds the state dict, alone or as its entry ``model``.
        heads: of the encoder's attention; by default those of ViT-B, L or H, whichever has the width.
        decoder_heads: of the decoder's; by default those of the paper's.
        norm_pix_loss: does it predict pixels normalised in each patch? By default what the training's arguments in
            the file say and, where there are none, yes, as in the paper's recipe (section 4.1).
        mesh: devices over which the parameters are laid; by default one.

    Returns:
        the model with its config, at step 0. A decoder that the file does not have is drawn, and named in
        ``untrained``.

    Raises:
        UserError: the file cannot be used; it says why.
    """
    return read(
        Path(path),
        heads=heads,
        decoder_heads=decoder_heads,
        norm_pix_loss=norm_pix_loss,
        mesh=mesh,
    ).run


def read(
    file: Path,
    *,
    heads: int | None = None,
    decoder_heads: int | None = None,
    norm_pix_loss: bool | None = None,
    mesh: AnyMesh | None = None,
) -> Imported:
    """See :func:`from_mae`."""
    if not file.is_file():
        raise UserError(f"There is no file {file}: give a .pth file of MAE's code.")
    weights = Checkpoint(file)
    told = weights.arguments
    normalise = told.get("norm_pix_loss", True) if norm_pix_loss is None else norm_pix_loss
    try:
        model = sizes(weights, heads=heads, decoder_heads=decoder_heads)
        experiment = Experiment(
            model=model,
            objective=MaskedAutoencoder(
                selection=RandomPatches(ratio=told.get("mask_ratio", 0.75)),
                target=PixelTarget(normalise=normalise),
            ),
            data=ImageData(size=model.encoder.image, channels=model.encoder.channels),
            optimizer=AdamW(),
        )
    except ValidationError as error:
        raise UserError(f"{file}: {validation_message(error)}") from error
    imported = assemble(
        weights, table(model), experiment, architecture="MAE", told_by="other tensors", mesh=mesh
    )
    known = norm_pix_loss is not None or "norm_pix_loss" in told or "decoder" in imported.untrained
    return imported if known else replace(imported, assumed=_ASSUMED)
