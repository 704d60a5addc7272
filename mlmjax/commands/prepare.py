"""``mlmjax prepare``."""

import argparse
import json

from rich.console import Console

from mlmjax.commands.asking import asked, ended_by_sigterm
from mlmjax.core.errors import UserError
from mlmjax.report.terminal import Terminal

USAGE = """usage: mlmjax prepare CONFIG [--json] [--dotted.option VALUE ...] [--trust-code]
                      [--runner RUNNER] [-- BEAM OPTIONS]

Reads, cleans, splits and tokenises the data of a config, as training does where that is not done yet, and says
what was read, what was dropped and why, and what the rows are like. What was interrupted is gone on with.
--json prints the record of the prepared data. `mlmjax prepare CONFIG --help` shows all options of a config.

--runner has Apache Beam do the same, on many machines, as in
  mlmjax prepare CONFIG --runner DataflowRunner --data.root 'gs://bucket/*.jsonl' --data.cache gs://bucket/rows \\
      --data.tokenizer.path tokenizer.json -- --project P --region R --temp_location gs://bucket/temp
Workers need mlmjax, for instance in an image (--sdk_container_image). What is broken off begins anew.
"""


def run(arguments: list[str]) -> None:
    """Prepare an experiment's data and say what was read."""
    parser = argparse.ArgumentParser("mlmjax prepare", add_help=False, allow_abbrev=False)
    parser.add_argument("--trust-code", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runner")
    ours = arguments.index("--") if "--" in arguments else len(arguments)
    known, rest = parser.parse_known_args(arguments[:ours])
    beam_options = arguments[ours + 1 :]
    experiment, _, _ = asked("prepare", USAGE, rest, trust_code=known.trust_code)
    if beam_options and known.runner is None:
        raise UserError(f"{' '.join(beam_options)}: what stands behind -- is for --runner.")
    from mlmjax.preparing import prepare, prepare_with_beam

    terminal = Terminal(Console(stderr=True) if known.json else None)
    show = not known.json
    with ended_by_sigterm():
        if known.runner is None:
            prepared = prepare(experiment, terminal=terminal, show=show)
        else:
            prepared = prepare_with_beam(
                experiment, runner=known.runner, options=beam_options, terminal=terminal, show=show
            )
    if known.json:
        print(json.dumps({"folder": prepared.folder, **prepared.manifest}))
