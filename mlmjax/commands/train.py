"""``mlmjax train``."""

import argparse

from mlmjax.commands.asking import asked, ended_by_sigterm
from mlmjax.commands.joining import add_peers, as_one
from mlmjax.experiment import shipped

USAGE = """usage: mlmjax train CONFIG [--dotted.option VALUE ...] [--trust-code]

CONFIG is a shipped name (`mlmjax configs`), a path to a Python file that defines `experiment`,
or a run folder, which is gone on with. `mlmjax train CONFIG --help` shows all options of a config.
--trust-code lets the copy of a config file that a run folder keeps be run.

Start the same command on every host of several. On TPU pods and under SLURM, Open MPI and Kubernetes the processes
find each other; elsewhere each is told: --distributed.coordinator HOST:PORT of process 0,
--distributed.processes N, --distributed.process-id I.
"""


def run(arguments: list[str]) -> None:
    """Train an experiment, or go on with a run; alone, or as one of several processes."""
    parser = argparse.ArgumentParser("mlmjax train", add_help=False, allow_abbrev=False)
    parser.add_argument("--trust-code", action="store_true")
    add_peers(parser)
    known, rest = parser.parse_known_args(arguments)
    with as_one(known), ended_by_sigterm():
        experiment, source, _ = asked("train", USAGE, rest, trust_code=known.trust_code)
        from mlmjax.pretraining import pretrain  # slow to import, and not needed for --help

        outside = source is not None and source not in shipped().values()
        pretrain(
            experiment,
            source=source if outside else None,
            trust_code=outside or known.trust_code,
        )
