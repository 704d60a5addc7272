"""The command line: parse, call, print. Bad input ends with a sentence and exit status 2."""

import argparse
import contextlib
import difflib
import io
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

os.environ.setdefault("PYDANTIC_ERRORS_INCLUDE_URL", "0")

import tyro
from pydantic import ValidationError
from rich.console import Console

from mlmjax.core.errors import UserError
from mlmjax.experiment import (
    Experiment,
    describe,
    load_experiment,
    shipped,
    validation_message,
)
from mlmjax.report.terminal import Terminal
from mlmjax.training.folder import RunFolder, load
from mlmjax.training.loop import DivergedError

USAGE = """mlmjax: pretraining by masked prediction, in JAX

  mlmjax train CONFIG [--dotted.option VALUE ...]   train a shipped config, a Python file, or go on with
                                                    a run folder
  mlmjax train CONFIG --help                        all options of a config
  mlmjax prepare CONFIG [--dotted.option VALUE ...] make its data ready, and say what was read and dropped
  mlmjax audit CONFIG [--dotted.option VALUE ...]   draw its masks, without training, and say what they are like
  mlmjax configs                                    the shipped configs
  mlmjax fill-mask RUN [TEXT ...]                   fill [MASK] in texts, or in lines of standard input
"""


TRAIN_USAGE = """usage: mlmjax train CONFIG [--dotted.option VALUE ...] [--trust-code]

CONFIG is a shipped name (`mlmjax configs`), a path to a Python file that defines `experiment`,
or a run folder, which is gone on with. `mlmjax train CONFIG --help` shows all options of a config.
--trust-code lets the copy of a config file that a run folder keeps be run.
"""


PREPARE_USAGE = """usage: mlmjax prepare CONFIG [--json] [--dotted.option VALUE ...] [--trust-code]
                      [--runner RUNNER] [-- BEAM OPTIONS]

Reads, cleans, splits and tokenises the data of a config, as training does where that is not done yet, and says
what was read, what was dropped and why, and what the rows are like. What was interrupted is gone on with.
--json prints the record of the prepared data. `mlmjax prepare CONFIG --help` shows all options of a config.

--runner has Apache Beam do the same, on many machines, as in
  mlmjax prepare CONFIG --runner DataflowRunner --data.root 'gs://bucket/*.jsonl' --data.cache gs://bucket/rows \\
      --data.tokenizer.path tokenizer.json -- --project P --region R --temp_location gs://bucket/temp
Workers need mlmjax, for instance in an image (--sdk_container_image). What is broken off begins anew.
"""


AUDIT_USAGE = """usage: mlmjax audit CONFIG [--examples N] [--epochs E] [--step S] [--json] [--png FILE]
                    [--dotted.option VALUE ...] [--trust-code]

Draws the masks of N training examples (default 2048) in E epochs (default 2), as training would from step S on
(default 0) but without a model, and says what they are like: shares, positions, lengths, tokens, and what must
not be. --json prints the figures as one object; a picture goes to FILE (default audit_CONFIG.png). Exit status 1:
a must is broken. `mlmjax audit CONFIG --help` shows all options of a config.
"""


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
    commands = {
        "train": _train,
        "prepare": _prepare,
        "audit": _audit,
        "configs": _configs,
        "fill-mask": _fill_mask,
    }
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return
    command = arguments.pop(0)
    if command not in commands:
        _fail(f"There is no command '{command}'; the commands are {', '.join(commands)}.")
    try:
        commands[command](arguments)
    except UserError as error:
        _fail(str(error))
    except ValidationError as error:
        _fail(validation_message(error))
    except KeyboardInterrupt:
        print("mlmjax: interrupted.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _fail(message: str) -> None:
    print(f"mlmjax: {message}", file=sys.stderr)
    sys.exit(2)


def _configs(arguments: list[str]) -> None:
    argparse.ArgumentParser("mlmjax configs", description="List the shipped configs.").parse_args(
        arguments
    )
    for name, path in shipped().items():
        print(f"{name:16} {describe(path)}")


def _train(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser("mlmjax train", add_help=False, allow_abbrev=False)
    parser.add_argument("--trust-code", action="store_true")
    known, rest = parser.parse_known_args(arguments)
    experiment, source, _ = _asked("train", TRAIN_USAGE, rest, trust_code=known.trust_code)
    from mlmjax.pretraining import pretrain  # slow to import, and not needed for --help

    outside = source is not None and source not in shipped().values()
    try:
        with _ended_by_sigterm():
            pretrain(
                experiment,
                source=source if outside else None,
                trust_code=outside or known.trust_code,
            )
    except DivergedError as error:
        print(f"mlmjax: {error}", file=sys.stderr)
        sys.exit(1)


def _prepare(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser("mlmjax prepare", add_help=False, allow_abbrev=False)
    parser.add_argument("--trust-code", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runner")
    ours = arguments.index("--") if "--" in arguments else len(arguments)
    known, rest = parser.parse_known_args(arguments[:ours])
    beam_options = arguments[ours + 1 :]
    experiment, _, _ = _asked("prepare", PREPARE_USAGE, rest, trust_code=known.trust_code)
    if beam_options and known.runner is None:
        raise UserError(f"{' '.join(beam_options)}: what stands behind -- is for --runner.")
    from mlmjax.preparing import prepare, prepare_with_beam

    terminal = Terminal(Console(stderr=True) if known.json else None)
    show = not known.json
    with _ended_by_sigterm():
        if known.runner is None:
            prepared = prepare(experiment, terminal=terminal, show=show)
        else:
            prepared = prepare_with_beam(
                experiment, runner=known.runner, options=beam_options, terminal=terminal, show=show
            )
    if known.json:
        print(json.dumps({"folder": prepared.folder, **prepared.manifest}))


def _audit(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser("mlmjax audit", add_help=False, allow_abbrev=False)
    parser.add_argument("--examples", type=int, default=2048)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--step", type=int, default=0)
    parser.add_argument("--png", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--trust-code", action="store_true")
    known, rest = parser.parse_known_args(arguments)
    experiment, _, name = _asked("audit", AUDIT_USAGE, rest, trust_code=known.trust_code)
    from mlmjax.auditing import audit
    from mlmjax.report.audit import show
    from mlmjax.report.audit_picture import check_picture, write_picture

    named = Path(name).resolve().name.removesuffix(".py")
    picture = known.png or Path(f"audit_{named}.png")
    check_picture(picture)
    terminal = Terminal(Console(stderr=True) if known.json else None)
    with _ended_by_sigterm():
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


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """In here SIGTERM unwinds, so that nothing half made is left."""
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _asked(
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
    name, options = rest[0], rest[1:]
    experiment, source = _find(name, trust_code=trust_code)
    description = describe(source) if source else "The experiment of a run."
    prog = f"mlmjax {command} {name}"
    return _with_options(experiment, options, prog=prog, description=description), source, name


def _terminated(number: int, frame: object) -> None:
    """SIGTERM where no step is being made: unwind, so that nothing half made is left."""
    print("mlmjax: terminated.", file=sys.stderr)
    sys.exit(128 + number)


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


def _fill_mask(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser("mlmjax fill-mask", description="Fill [MASK] in texts.")
    parser.add_argument("run", help="a run folder")
    parser.add_argument("text", nargs="*", help="texts; without any, lines of standard input")
    parser.add_argument("--top", type=int, default=5, help="candidates for each mask (default 5)")
    parser.add_argument("--json", action="store_true", help="one object a line")
    parser.add_argument("--trust-code", action="store_true", help="run the folder's config.py")
    asked, unknown = parser.parse_known_intermixed_args(arguments)
    if unknown:
        known = [option for action in parser._actions for option in action.option_strings]
        close = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"Did you mean {close[0]}?" if close else f"There are {', '.join(known)}."
        raise UserError(f"fill-mask has no option {unknown[0]}. {hint}")
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


if __name__ == "__main__":
    main(sys.argv[1:])
