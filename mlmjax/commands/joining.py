"""What commands share that run on several processes: where these meet, and how they end."""

import argparse
from contextlib import AbstractContextManager

from mlmjax.commands.ending import ending
from mlmjax.distributed import Peers, together


def add_peers(parser: argparse.ArgumentParser) -> None:
    """The options that tell a process of the others."""
    parser.add_argument("--distributed.coordinator", dest="coordinator")
    parser.add_argument("--distributed.processes", dest="processes", type=int)
    parser.add_argument("--distributed.process-id", dest="process_id", type=int)


def as_one(known: argparse.Namespace) -> AbstractContextManager[None]:
    """In here the processes are one run; see :func:`mlmjax.distributed.together`."""
    return together(Peers(known.coordinator, known.processes, known.process_id), ending)
