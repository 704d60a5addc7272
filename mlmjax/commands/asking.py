"""What commands share: the experiment that a command line asks for, options that are not known, and SIGTERM."""

import argparse
import contextlib
import difflib
import io
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import tyro
from pydantic import ValidationError

from mlmjax.core.errors import UserError
from mlmjax.experiment import Experiment, describe, load_experiment, shipped, validation_message
from mlmjax.training.folder import RunFolder
from mlmjax.training.initial import starting_from


def asked(
    command: str, usage: str, rest: list[str], *, trust_code: bool
) -> tuple[Experiment, Path | None, str]:
    """The experiment that a command line asks for, the file that it comes from, and its name."""
    if rest and rest[0] in ("-h", "--help"):
        print(usage, end="")
        sys.exit(0)
    if not rest or not rest[0] or rest[0].startswith("-"):
        raise UserError(
            f"Which config? mlmjax {command} CONFIG; `mlmjax configs` lists the shipped ones."
        )
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--init", "--run.init", nargs="?", const="")
    name, (given, options) = rest[0], parser.parse_known_args(rest[1:])
    experiment, source = _find(name, trust_code=trust_code)
    if given.init is not None:
        experiment = _starting(experiment, given.init, source, trust_code=trust_code)
    description = describe(source) if source else "The experiment of a run."
    prog = f"mlmjax {command} {name}"
    return _with_options(experiment, options, prog=prog, description=description), source, name


def _starting(
    experiment: Experiment, init: str, source: Path | None, *, trust_code: bool
) -> Experiment:
    """The experiment from the parameters of another run.

    Raises:
        UserError: it is itself a run, or there is no such run that fits.
    """
    if not init:
        raise UserError("--init (empty): give the folder of the run to start from.")
    if source is None:
        raise UserError(
            f"--init {init}: {experiment.run.folder} is a run, which goes on from what it has: give a config "
            "instead, or leave --init away."
        )
    return starting_from(experiment, init, trust_code=trust_code)


def _with_options(
    experiment: Experiment, options: list[str], *, prog: str, description: str
) -> Experiment:
    """The experiment with the command line's changes."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                Experiment,
                prog=prog,
                description=description,
                default=experiment,
                args=options,
                config=(tyro.conf.AvoidSubcommands,),
            )
    except SystemExit as end:
        # tyro shows a class's objection in a box, without the option's name; it is said here instead.
        refused = end.__context__
        if refused is not None and isinstance(refused.__context__, ValidationError):
            prefix = getattr(refused, "arg", "")
            option = f"--{prefix.replace('_', '-')}" if isinstance(prefix, str) and prefix else ""
            raise UserError(validation_message(refused.__context__, option=option)) from end
        sys.stderr.write(said.getvalue())
        raise
    except TypeError as error:
        raise UserError(f"{' '.join(options)}: {error}") from error


def _find(name: str, *, trust_code: bool) -> tuple[Experiment, Path | None]:
    """The experiment of a shipped name, a file or a run folder, and the file that it comes from."""
    if name not in shipped() and Path(name).is_dir():
        experiment, source = RunFolder(name).read_config(trust_code=trust_code), None
        folder: str | None = name
    else:
        experiment, source = load_experiment(name), shipped().get(name, Path(name))
        folder = experiment.run.folder or f"runs/{source.stem}"
    return experiment.updated(run=experiment.run.updated(folder=folder)), source


def parsed(
    parser: argparse.ArgumentParser, command: str, arguments: Sequence[str]
) -> argparse.Namespace:
    """The arguments of a command that takes no config.

    Raises:
        UserError: there is an option that the command has not; it names the closest.
    """
    found, unknown = parser.parse_known_intermixed_args(arguments)
    if unknown:
        known = [option for action in parser._actions for option in action.option_strings]
        close = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"Did you mean {close[0]}?" if close else f"There are {', '.join(known)}."
        raise UserError(f"{command} has no option {unknown[0]}. {hint}")
    return found


def whole_number(option: str, number: int, *, least: int = 1, below: int = 2**31) -> int:
    """The number, if it is in range.

    Raises:
        UserError: it is not.
    """
    if not least <= number < below:
        raise UserError(f"{option} {number}: it must be at least {least}, and below {below}.")
    return number


def image_size(given: Sequence[int] | None) -> tuple[int, int] | None:
    """Height and width that were given with ``--size``.

    Raises:
        UserError: one is not a positive number.
    """
    if given is None:
        return None
    height, width = (whole_number("--size", each) for each in given)
    return height, width


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """In here SIGTERM unwinds, so that nothing half made is left."""
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(number: int, frame: object) -> None:
    """SIGTERM where no step is being made: unwind, so that nothing half made is left."""
    print("mlmjax: terminated.", file=sys.stderr)
    sys.exit(128 + number)
