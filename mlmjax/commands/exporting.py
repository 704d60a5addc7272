"""``mlmjax export``."""

import argparse
from pathlib import Path

from mlmjax.commands.asking import parsed, whole_number

DESCRIPTION = """A run's model becomes a folder that transformers' from_pretrained reads.

A model that was imported and not trained since is written as it came: the same tensors, names and types."""


def run(arguments: list[str]) -> None:
    """Export weights."""
    parser = argparse.ArgumentParser(
        "mlmjax export",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", help="a run folder")
    parser.add_argument("--out", type=Path, required=True, help="the model folder, to be made")
    parser.add_argument(
        "--architecture", help="a class of transformers (that of the import, or BertForMaskedLM)"
    )
    parser.add_argument("--step", type=int, help="of the checkpoint (the newest)")
    parser.add_argument("--trust-code", action="store_true", help="run the folder's config.py")
    asked = parsed(parser, "export", arguments)
    if asked.step is not None:
        whole_number("--step", asked.step, least=0)

    from mlmjax.interop.huggingface.writing import to_huggingface
    from mlmjax.training.folder import load

    trained = load(asked.run, step=asked.step, trust_code=asked.trust_code)
    name = to_huggingface(trained, asked.out, architecture=asked.architecture)
    print(f"{name} of step {trained.step} is in {asked.out}.")
