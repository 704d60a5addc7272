"""``mlmjax reconstruct``."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from mlmjax.commands.asking import image_size, parsed, whole_number
from mlmjax.core.errors import UserError
from mlmjax.report.places import check_place

if TYPE_CHECKING:
    from mlmjax.objectives.mae import MaskedAutoencoder
    from mlmjax.training.folder import Run

DESCRIPTION = """Hide part of pictures, have the model of a run predict it, and draw both beside the original.

A model of normalised patches predicts texture; brightness and contrast of a patch are taken from the visible ones
around it, or (--statistics true) from the patch itself, which uses a part of the answer. The picture says which."""


def run(arguments: list[str]) -> None:
    """Draw what a model makes of pictures of which a part is hidden."""
    parser = argparse.ArgumentParser(
        "mlmjax reconstruct",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", help="a run folder")
    parser.add_argument("image", nargs="+", help="files of pictures, or folders of them")
    parser.add_argument("--ratio", type=float, help="share of patches to hide (the run's)")
    parser.add_argument("--seed", type=int, default=0, help="of the masks (0)")
    parser.add_argument("--statistics", choices=("visible", "true"), default="visible")
    parser.add_argument(
        "--size", type=int, nargs=2, metavar=("H", "W"), help="in pixels (as in training)"
    )
    parser.add_argument("--out", type=Path, default=Path("reconstructions.png"), help="a PNG file")
    parser.add_argument("--trust-code", action="store_true", help="run the folder's config.py")
    asked = parsed(parser, "reconstruct", arguments)
    seed = whole_number("--seed", asked.seed, least=0, below=2**32)
    size = image_size(asked.size)
    check_place(asked.out, option="--out")

    import numpy as np

    from mlmjax.core.types import Context
    from mlmjax.evaluation.given import picture_batches, picture_files
    from mlmjax.evaluation.reconstruct import Reconstruction, reconstruct, remark
    from mlmjax.report.images import grid, write_png
    from mlmjax.training.folder import load

    paths = picture_files(asked.image)
    trained = load(asked.run, size=size, trust_code=asked.trust_code)
    objective = _objective(trained, ratio=asked.ratio)
    context = Context.of(seed, step=trained.config.run.steps)
    found = [
        reconstruct(objective, trained.model, batch, context, statistics=asked.statistics)
        for batch in picture_batches(trained, paths, batch=8)
    ]
    whole = Reconstruction(*(np.concatenate(each) for each in zip(*found, strict=True)))
    said = remark(objective, trained.model, asked.statistics)
    picture = grid(whole._asdict(), caption=said, blocks=1 if len(paths) < 4 else 2)
    write_png(asked.out, picture)
    print(f"{said} The picture is in {asked.out}.")


def _objective(trained: "Run", *, ratio: float | None) -> "MaskedAutoencoder":
    """The objective of a run, with another ratio where one is asked for.

    Raises:
        UserError: it is none that predicts pixels, or the ratio leaves nothing masked or nothing visible.
    """
    from mlmjax.objectives.mae import MaskedAutoencoder

    objective = trained.config.objective
    if trained.tokenizer is not None:
        raise UserError(
            f"The run in {trained.folder} is of text, of which nothing can be drawn: see `mlmjax fill-mask`."
        )
    if not isinstance(objective, MaskedAutoencoder):
        raise UserError(
            f"The run in {trained.folder} was trained with {type(objective).__name__}, which predicts no pixels."
        )
    if ratio is not None:
        if not 0 < ratio < 1:
            raise UserError(f"--ratio {ratio:g}: it must lie between 0 and 1.")
        selection = objective.selection.updated(ratio=ratio)
        objective = objective.updated(selection=selection, ratio_schedule=None)
    try:
        objective.check(trained.config.model, trained.config.data.spec())
    except UserError as error:
        option = "--objective.selection.ratio"
        raise UserError(str(error).replace(option, "--ratio")) from error
    return objective
