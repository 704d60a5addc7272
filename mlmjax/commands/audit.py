"""``mlmjax audit``."""

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from mlmjax.commands.asking import asked, ended_by_sigterm
from mlmjax.report.terminal import Terminal

USAGE = """usage: mlmjax audit CONFIG [--examples N] [--epochs E] [--step S] [--json] [--png FILE]
                    [--dotted.option VALUE ...] [--trust-code]

Draws the masks of N training examples (default 2048) in E epochs (default 2), as training would from step S on
(default 0) but without a model, and says what they are like: of text shares, positions, lengths and tokens, of
images how often each patch is hidden and the sizes of connected blocks; and what must not be. --json prints the
figures as one object; a picture goes to FILE (default audit_CONFIG.png). Exit status 1: a must is broken.
`mlmjax audit CONFIG --help` shows all options of a config.
"""


def run(arguments: list[str]) -> None:
    """Audit an experiment's masks."""
    parser = argparse.ArgumentParser("mlmjax audit", add_help=False, allow_abbrev=False)
    parser.add_argument("--examples", type=int, default=2048)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--step", type=int, default=0)
    parser.add_argument("--png", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--trust-code", action="store_true")
    known, rest = parser.parse_known_args(arguments)
    experiment, _, name = asked("audit", USAGE, rest, trust_code=known.trust_code)
    from mlmjax.auditing import audit
    from mlmjax.report.audit import show
    from mlmjax.report.audit_picture import check_picture, write_picture

    named = Path(name).resolve().name.removesuffix(".py")
    picture = known.png or Path(f"audit_{named}.png")
    check_picture(picture)
    terminal = Terminal(Console(stderr=True) if known.json else None)
    with ended_by_sigterm():
        figures = audit(
            experiment,
            examples=known.examples,
            epochs=known.epochs,
            step=known.step,
            terminal=terminal,
        )
    write_picture(figures, picture, title=named)
    if known.json:
        print(json.dumps(figures.as_json(), allow_nan=False))
    else:
        show(figures, terminal)
    terminal.say(f"A picture is in {picture}.")
    for must in figures.broken:
        print(f"mlmjax: a must is broken: {must}", file=sys.stderr)
    if figures.broken:
        sys.exit(1)
