"""``mlmjax embed``."""

import argparse
import sys
import zipfile
from pathlib import Path

import numpy as np

from mlmjax.commands.asking import image_size, parsed
from mlmjax.core.errors import UserError
from mlmjax.report.places import check_place

DESCRIPTION = """Features of pictures or texts from the encoder of a run: nothing is hidden, nothing is random.

The file holds `features`, float32, a row each, and `names` of the pictures' files, or the `texts`."""


def run(arguments: list[str]) -> None:
    """Write features of pictures or texts."""
    parser = argparse.ArgumentParser(
        "mlmjax embed",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", help="a run folder")
    parser.add_argument(
        "given",
        nargs="*",
        metavar="IMAGE or TEXT",
        help="files of pictures or folders of them; or texts, without any the lines of standard input",
    )
    parser.add_argument("--out", type=Path, default=Path("features.npz"), help="an npz file")
    parser.add_argument(
        "--layer",
        type=int,
        help="the state after so many blocks, 0 for the embeddings (the last state, after the norm)",
    )
    parser.add_argument(
        "--pooling",
        choices=("mean", "class", "max"),
        default="mean",
        help="mean or maximum over patches or tokens, or the class token (mean)",
    )
    parser.add_argument(
        "--size", type=int, nargs=2, metavar=("H", "W"), help="of pictures (as in training)"
    )
    parser.add_argument("--trust-code", action="store_true", help="run the folder's config.py")
    asked = parsed(parser, "embed", arguments)
    size = image_size(asked.size)
    check_place(asked.out, option="--out")

    from mlmjax.evaluation.features import check, features
    from mlmjax.evaluation.given import picture_batches, picture_files, text_batches
    from mlmjax.training.folder import load

    trained = load(asked.run, size=size, trust_code=asked.trust_code)
    check(trained.model, layer=asked.layer, pooling=asked.pooling)
    if trained.tokenizer is None:
        paths = picture_files(asked.given)
        what, names = "names", [str(path) for path in paths]
        batches = picture_batches(trained, paths)
    else:
        lines = (line.rstrip("\n") for line in sys.stdin) if not asked.given else asked.given
        what, names = "texts", [text for text in lines if text.strip()]
        batches = text_batches(trained, names)
    if not names:
        raise UserError(f"There is nothing to embed: give {what} after the run folder.")
    found = features(trained.model, batches, layer=asked.layer, pooling=asked.pooling)
    _save(asked.out, {"features": found, what: np.array(names)})
    print(f"{len(found)} rows of {found.shape[1]} features are in {asked.out}.")


def _save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write an npz that is there whole or not at all, and whose bytes do not tell the time."""
    partial = path.with_name(path.name + ".partial")
    try:
        with zipfile.ZipFile(partial, "w") as whole:
            for name, array in arrays.items():
                entry = zipfile.ZipInfo(f"{name}.npy")
                with whole.open(entry, "w", force_zip64=True) as one:
                    np.lib.format.write_array(one, array, allow_pickle=False)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UserError(f"--out {path} cannot be written: {error.strerror or error}.") from error
