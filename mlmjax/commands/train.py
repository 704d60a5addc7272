"""``mlmjax train``."""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

from mlmjax.commands.asking import asked, ended_by_sigterm, whole_number
from mlmjax.commands.joining import add_peers, as_one
from mlmjax.core.errors import UserError
from mlmjax.experiment import shipped

USAGE = """usage: mlmjax train CONFIG [--init RUN] [--dotted.option VALUE ...] [--seeds N] [--trust-code]

CONFIG is a shipped name (`mlmjax configs`), a path to a Python file that defines `experiment`,
or a run folder, which is gone on with. `mlmjax train CONFIG --help` shows all options of a config.
--init RUN starts from the parameters of another run, as fine-tuning does: the model has that run's encoder sizes
and the data its tokenizer or image size; heads that it has not are drawn.
--seeds N trains N runs, with the seeds --run.seed, --run.seed + 1 and so on, each in a folder seed-<seed> of the
run's folder, and tells mean and standard deviation of their held-out figures; the same command goes on where it was
ended.
--trust-code lets the copy of a config file that a run folder keeps be run.

Start the same command on every host of several. On TPU pods and under SLURM, Open MPI and Kubernetes the processes
find each other; elsewhere each is told: --distributed.coordinator HOST:PORT of process 0,
--distributed.processes N, --distributed.process-id I.
"""


def run(arguments: list[str]) -> None:
    """Train an experiment, or go on with a run; alone, or as one of several processes."""
    parser = argparse.ArgumentParser("mlmjax train", add_help=False, allow_abbrev=False)
    parser.add_argument("--trust-code", action="store_true")
    parser.add_argument("--seeds", nargs="?", const="")
    add_peers(parser)
    known, rest = parser.parse_known_args(arguments)
    with as_one(known), ended_by_sigterm():
        seeds = None if known.seeds is None else _seeds(known.seeds)
        experiment, source, _ = asked("train", USAGE, rest, trust_code=known.trust_code)
        from mlmjax.pretraining import pretrain  # slow to import, and not needed for --help
        from mlmjax.seeds import train_seeds

        outside = source is not None and source not in shipped().values()
        train: Callable[..., Any] = pretrain if seeds is None else partial(train_seeds, count=seeds)
        train(
            experiment,
            source=source if outside else None,
            trust_code=outside or known.trust_code,
        )


def _seeds(given: str) -> int:
    """The number of seeds.

    Raises:
        UserError: it is no number of at least 1.
    """
    try:
        number = int(given)
    except ValueError as error:
        raise UserError(
            f"--seeds {given or '(empty)'}: give the number of runs to train, such as --seeds 5."
        ) from error
    return whole_number("--seeds", number, below=2**16)
