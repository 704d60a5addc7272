"""``mlmjax plan``."""

import argparse
import json

import jax
from rich.console import Console

from mlmjax.commands.asking import asked, ended_by_sigterm, whole_number
from mlmjax.core.errors import UserError
from mlmjax.report.terminal import Terminal

USAGE = """usage: mlmjax plan CONFIG --topology CHIP:SHAPE [--search [N]] [--json] [--dotted.option VALUE ...]

Compiles the training step of a config for chips that are not here, such as v5e:16x16, and says what a device must
hold and whether it fits, what a step computes and moves, which of these binds, and how long the run takes at least.
For TPUs (v4, v5e, v5p, v6e) the compiler is needed: pip install 'mlmjax[plan]'. For GPUs (a100, h100, h200, as in
h100:8) memory is summed up and products are counted. --search compiles up to N (16) meshes and policies of
recomputation and ranks those that fit; --json prints an object. Exit status 2: it does not fit.
`mlmjax plan CONFIG --help` shows all options of a config, of which --mesh.* and --model.*remat are for this.
"""


def run(arguments: list[str]) -> None:
    """Plan an experiment for hardware that is not here."""
    parser = argparse.ArgumentParser("mlmjax plan", add_help=False, allow_abbrev=False)
    parser.add_argument("--topology")
    parser.add_argument("--search", type=int, nargs="?", const=16)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--trust-code", action="store_true")
    known, rest = parser.parse_known_args(arguments)
    experiment, _, name = asked("plan", USAGE, rest, trust_code=known.trust_code)
    if known.topology is None:
        raise UserError(f"For which chips? mlmjax plan {name} --topology v5e:16x16")
    if known.search is not None:
        whole_number("--search", known.search)
    jax.config.update("jax_platforms", "cpu")  # nothing is run, and no accelerator is asked for
    from mlmjax.planning.chips import GIB, Topology
    from mlmjax.planning.plan import plan
    from mlmjax.planning.search import mended, search
    from mlmjax.report.plan import show, show_ranked

    topology = Topology.parse(known.topology)
    terminal = Terminal(Console(stderr=True) if known.json else None)
    with ended_by_sigterm():
        if known.search is not None:
            with terminal.live():
                found = search(experiment, topology, most=known.search, report=terminal.report)
            if known.json:
                ranked = [{"options": layout.options, **one.as_json()} for layout, one in found]
                print(json.dumps(ranked))
            elif found:
                show_ranked(found, terminal)
            if not found:
                raise UserError(
                    f"None of the layouts that were tried fits {topology}: take a larger one, a higher "
                    "--run.accumulate, or more layouts (--search)."
                )
            return
        one = plan(experiment, topology)
        if known.json:
            print(json.dumps(one.as_json()))
        else:
            show(one, terminal)
        if one.fits:
            return
        too_much = (one.memory.total - one.memory.limit) / GIB
        terminal.say("It does not fit; looking for a change with which it would.")
        change = mended(experiment, one)
    does = f"{name} does not fit {topology}: {too_much:.2f} GiB too much on each device."
    if change is None:
        raise UserError(
            f"{does} Sharding and recomputation are not enough: take more chips, or a smaller --data.batch."
        )
    layout, better = change
    raise UserError(
        f"{does} It would, in {better.memory.total / GIB:.2f} GiB, with {layout.options}."
    )
