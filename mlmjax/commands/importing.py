"""``mlmjax import``."""

import argparse
from pathlib import Path

from mlmjax.commands.asking import parsed

DESCRIPTION = """A Hugging Face model folder becomes a run folder.

It holds config.json, model.safetensors (or several, with their index), and a tokenizer. Nothing is downloaded."""


def run(arguments: list[str]) -> None:
    """Import weights."""
    parser = argparse.ArgumentParser(
        "mlmjax import",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument("--out", type=Path, required=True, help="the run folder, to be made")
    asked = parsed(parser, "import", arguments)

    from mlmjax.interop.huggingface.importing import import_run

    imported = import_run(asked.model, asked.out)
    print(f"{imported.origin.architecture} is in {asked.out}.")
    if imported.untrained:
        print(
            f"It has no {', no '.join(imported.untrained)}: "
            f"{'this part was' if len(imported.untrained) == 1 else 'these parts were'} drawn at random, and "
            f"`mlmjax train {asked.out}` trains {'it' if len(imported.untrained) == 1 else 'them'}."
        )
