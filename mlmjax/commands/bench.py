"""``mlmjax bench``."""

import argparse
import json

from rich.console import Console

from mlmjax.commands.asking import asked, ended_by_sigterm, whole_number
from mlmjax.commands.joining import add_peers, as_one
from mlmjax.distributed import first
from mlmjax.report.terminal import Terminal

USAGE = """usage: mlmjax bench CONFIG [--steps N] [--json] [--dotted.option VALUE ...] [--trust-code]

Makes the first steps of a run on the devices that are here, with its own data and mesh, and says how fast they are:
N of them (default 20) after a few that are not counted. Waiting for data, compile time and memory are told too, and
which share of a measured matrix product's rate on all devices at once the model's own operations reach. Nothing but
prepared data is written. --json prints one object. Of several processes each is started so, as for `mlmjax train`.
`mlmjax bench CONFIG --help` shows all options of a config.
"""


def run(arguments: list[str]) -> None:
    """Measure how fast an experiment trains here."""
    parser = argparse.ArgumentParser("mlmjax bench", add_help=False, allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--trust-code", action="store_true")
    add_peers(parser)
    known, rest = parser.parse_known_args(arguments)
    with as_one(known), ended_by_sigterm():
        experiment, _, _ = asked("bench", USAGE, rest, trust_code=known.trust_code)
        steps = whole_number("--steps", known.steps)
        from mlmjax.benching import bench
        from mlmjax.report.bench import show

        terminal = Terminal(Console(stderr=known.json, quiet=not first()))
        speed = bench(experiment, steps=steps, terminal=terminal)
        if not known.json:
            show(speed, terminal)
        elif first():
            print(json.dumps(speed.as_json(), allow_nan=False))
