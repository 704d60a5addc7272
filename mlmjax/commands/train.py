"""``mlmjax train``."""

import argparse
import sys

from mlmjax.commands.asking import asked, ended_by_sigterm
from mlmjax.experiment import shipped
from mlmjax.training.loop import DivergedError

USAGE = """usage: mlmjax train CONFIG [--dotted.option VALUE ...] [--trust-code]

CONFIG is a shipped name (`mlmjax configs`), a path to a Python file that defines `experiment`,
or a run folder, which is gone on with. `mlmjax train CONFIG --help` shows all options of a config.
--trust-code lets the copy of a config file that a run folder keeps be run.
"""


def run(arguments: list[str]) -> None:
    """Train an experiment, or go on with a run."""
    parser = argparse.ArgumentParser("mlmjax train", add_help=False, allow_abbrev=False)
    parser.add_argument("--trust-code", action="store_true")
    known, rest = parser.parse_known_args(arguments)
    experiment, source, _ = asked("train", USAGE, rest, trust_code=known.trust_code)
    from mlmjax.pretraining import pretrain  # slow to import, and not needed for --help

    outside = source is not None and source not in shipped().values()
    try:
        with ended_by_sigterm():
            pretrain(
                experiment,
                source=source if outside else None,
                trust_code=outside or known.trust_code,
            )
    except DivergedError as error:
        print(f"mlmjax: {error}", file=sys.stderr)
        sys.exit(1)
