"""``mlmjax fill-mask``."""

import argparse
import json
import sys
from collections.abc import Iterator

from mlmjax.commands.asking import parsed
from mlmjax.core.errors import UserError
from mlmjax.training.folder import load


def run(arguments: list[str]) -> None:
    """Fill the masks of texts."""
    parser = argparse.ArgumentParser("mlmjax fill-mask", description="Fill [MASK] in texts.")
    parser.add_argument("run", help="a run folder")
    parser.add_argument("text", nargs="*", help="texts; without any, lines of standard input")
    parser.add_argument("--top", type=int, default=5, help="candidates for each mask (default 5)")
    parser.add_argument("--json", action="store_true", help="one object a line")
    parser.add_argument("--trust-code", action="store_true", help="run the folder's config.py")
    asked = parsed(parser, "fill-mask", arguments)
    if asked.top < 1:
        raise UserError(f"--top {asked.top}: at least one candidate must be shown.")

    from mlmjax.evaluation.fill_mask import Filled, fill_mask

    def lines() -> Iterator[str]:
        yield from asked.text or (line.rstrip("\n") for line in sys.stdin if line.strip())

    def show(filled: Filled) -> None:
        if asked.json:
            masks = [[each._asdict() for each in mask] for mask in filled.masks]
            print(
                json.dumps({"text": filled.text, "masks": masks, "best": filled.best}), flush=True
            )
            return
        print(filled.text)
        for mask in filled.masks:
            print(
                "  " + "  ".join(f"{each.token} {each.probability:.3f}" for each in mask),
                flush=True,
            )

    run = load(asked.run, trust_code=asked.trust_code)
    failed = False
    for text in lines():
        try:
            show(fill_mask(run, text, top=asked.top))
        except UserError as error:
            failed = True
            print(f"mlmjax: {error}", file=sys.stderr, flush=True)
    if failed:
        sys.exit(2)
