"""``mlmjax export``."""

import argparse
from pathlib import Path

from mlmjax.commands.asking import parsed, whole_number
from mlmjax.core.errors import UserError

DESCRIPTION = """A run's model becomes a folder that transformers' from_pretrained reads, or that jax alone serves.

huggingface: a model that was imported and not trained since is written as it came: the same tensors, names and
types. stablehlo: a program for CPUs, NVIDIA GPUs and TPUs, made with jax.export, with its parameters and a README
that says how it is run. Of text pretraining it gives logits of tokens and hidden states, of image pretraining the
encoder's hidden states, of classifiers the logits of the classes."""


def run(arguments: list[str]) -> None:
    """Export a model."""
    parser = argparse.ArgumentParser(
        "mlmjax export",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", help="a run folder")
    parser.add_argument("--out", type=Path, required=True, help="the folder, to be made")
    parser.add_argument(
        "--format",
        choices=("huggingface", "stablehlo"),
        default="huggingface",
        help="who is to read it: transformers, or jax (huggingface)",
    )
    parser.add_argument(
        "--architecture",
        help="a class of transformers (that of the import, or the one that holds the whole model)",
    )
    parser.add_argument("--step", type=int, help="of the checkpoint (the newest)")
    parser.add_argument("--trust-code", action="store_true", help="run the folder's config.py")
    asked = parsed(parser, "export", arguments)
    if asked.step is not None:
        whole_number("--step", asked.step, least=0)

    if asked.format == "stablehlo" and asked.architecture is not None:
        raise UserError(
            f"--architecture {asked.architecture} is a class of transformers, which --format stablehlo does not "
            "write: leave one of them out."
        )

    from mlmjax.training.folder import load

    trained = load(asked.run, step=asked.step, trust_code=asked.trust_code)
    if asked.format == "stablehlo":
        from mlmjax.interop.stablehlo.writing import to_stablehlo

        program = to_stablehlo(trained, asked.out)
        given, found = (", ".join(names) for names in (program.names, program.outputs))
        print(
            f"The {program.title} of step {trained.step} is in {asked.out}: {given} -> {found}. Its README.md says "
            "how it is run."
        )
        return

    from mlmjax.interop.huggingface.writing import to_huggingface

    name = to_huggingface(trained, asked.out, architecture=asked.architecture)
    print(f"{name} of step {trained.step} is in {asked.out}.")
