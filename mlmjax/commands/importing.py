"""``mlmjax import``."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mlmjax.commands.asking import parsed
from mlmjax.core.errors import UserError

if TYPE_CHECKING:
    from mlmjax.interop.huggingface.reading import Imported

DESCRIPTION = """A Hugging Face model folder, or a .pth file of MAE's own code, becomes a run folder.

The folder holds config.json, model.safetensors (or several, with their index), and a tokenizer. Of the file only
the tensors are read, and no code in it is run. Nothing is downloaded."""

_FILES = (".pth", ".pt")


def run(arguments: list[str]) -> None:
    """Import weights."""
    parser = argparse.ArgumentParser(
        "mlmjax import",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="a model folder, or a .pth file")
    parser.add_argument("--out", type=Path, required=True, help="the run folder, to be made")
    of_file = parser.add_argument_group("of a .pth file, which does not tell them")
    of_file.add_argument(
        "--heads", type=int, help="of the encoder's attention (those of ViT-B, L or H by its width)"
    )
    of_file.add_argument(
        "--decoder-heads", type=int, help="of the decoder's (16 at a width of 512)"
    )
    of_file.add_argument(
        "--norm-pix-loss",
        choices=("true", "false"),
        help="are pixels normalised in each patch predicted (as the training's arguments in the file say, or true)",
    )
    asked = parsed(parser, "import", arguments)

    from mlmjax.interop.huggingface.importing import import_run

    imported = import_run(asked.model, asked.out, _reader(asked))
    print(f"{imported.architecture} is in {asked.out}.")
    if imported.assumed:
        print(imported.assumed)
    if imported.untrained:
        print(
            f"It has no {', no '.join(imported.untrained)}: "
            f"{'this part was' if len(imported.untrained) == 1 else 'these parts were'} drawn at random, and "
            f"`mlmjax train {asked.out}` trains {'it' if len(imported.untrained) == 1 else 'them'}."
        )


def _reader(asked: argparse.Namespace) -> "Callable[[Path], Imported]":
    """What reads the weights that are asked for.

    Raises:
        UserError: an option is given that is of no use to it.
    """
    from mlmjax.interop.huggingface import reading
    from mlmjax.interop.mae.reading import read

    said, source = asked.norm_pix_loss, asked.model
    if source.is_file() or (source.suffix in _FILES and not source.is_dir()):
        return partial(
            read,
            heads=asked.heads,
            decoder_heads=asked.decoder_heads,
            norm_pix_loss=None if said is None else said == "true",
        )
    for option, given in (
        ("--heads", asked.heads),
        ("--decoder-heads", asked.decoder_heads),
        ("--norm-pix-loss", said),
    ):
        if given is not None:
            raise UserError(
                f"{option} {given}: it is for a .pth file of MAE's code, and the config.json of the folder "
                f"{source} tells it."
            )
    return reading.read
