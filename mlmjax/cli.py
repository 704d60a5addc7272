"""The command line: parse, call, print. Bad input ends with a sentence and exit status 2."""

import os
import sys
from collections.abc import Sequence

os.environ.setdefault("PYDANTIC_ERRORS_INCLUDE_URL", "0")

from pydantic import ValidationError

from mlmjax.commands import (
    audit,
    bench,
    configs,
    embed,
    exporting,
    fill_mask,
    importing,
    plan,
    prepare,
    reconstruct,
    train,
)
from mlmjax.commands.ending import ending
from mlmjax.core.errors import UserError
from mlmjax.training.loop import DivergedError

USAGE = """mlmjax: pretraining by masked prediction, in JAX

  mlmjax train CONFIG [--dotted.option VALUE ...]   train a shipped config, a Python file, or go on with
                                                    a run folder
  mlmjax train CONFIG --init RUN [...]              start from another run's parameters, as fine-tuning does
  mlmjax train CONFIG --seeds N                     train with N seeds; mean and spread of the held-out figures
  mlmjax train CONFIG --help                        all options of a config
  mlmjax prepare CONFIG [--dotted.option VALUE ...] make its data ready, and say what was read and dropped
  mlmjax audit CONFIG [--dotted.option VALUE ...]   draw its masks, without training, and say what they are like
  mlmjax plan CONFIG --topology v5e:16x16 [...]     compile its step for a pod that is not here, and judge it
  mlmjax bench CONFIG [--steps N] [...]             make some of its steps here, and say how fast they are
  mlmjax configs                                    the shipped configs
  mlmjax fill-mask RUN [TEXT ...]                   fill [MASK] in texts, or in lines of standard input
  mlmjax reconstruct RUN IMAGE ...                  hide part of images, and draw what the model makes of the rest
  mlmjax embed RUN [IMAGE or TEXT ...]              features of images or texts, nothing hidden, into a file
  mlmjax import FOLDER --out RUN                    a Hugging Face model folder becomes a run folder
  mlmjax import FILE.pth --out RUN                  a checkpoint of MAE's own code does
  mlmjax export RUN --out FOLDER                    a run becomes a folder that transformers reads
  mlmjax export RUN --out FOLDER --format stablehlo a run becomes a folder from which jax alone serves it
"""

COMMANDS = {
    "train": train.run,
    "prepare": prepare.run,
    "audit": audit.run,
    "plan": plan.run,
    "bench": bench.run,
    "configs": configs.run,
    "fill-mask": fill_mask.run,
    "reconstruct": reconstruct.run,
    "embed": embed.run,
    "import": importing.run,
    "export": exporting.run,
}


def entry() -> None:
    """What the installed command calls.

    XLA's CPU client takes its temporary buffer anew in each step, and the kernel clears it page by page;
    with large pages a small model's step is a quarter faster. glibc reads that choice only at the start.
    """
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
        os.execv(sys.executable, [sys.executable, "-m", "mlmjax.cli", *sys.argv[1:]])
    main(sys.argv[1:])


def main(arguments: Sequence[str]) -> None:
    """Run a command of the command line."""
    arguments = list(arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return
    command = arguments.pop(0)
    if command not in COMMANDS:
        _fail(f"There is no command '{command}'; the commands are {', '.join(COMMANDS)}.")
    try:
        COMMANDS[command](arguments)
    except (UserError, ValidationError, DivergedError, KeyboardInterrupt) as error:
        status, said = ending(error)
        _fail(said, status)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _fail(message: str, status: int = 2) -> None:
    print(f"mlmjax: {message}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
