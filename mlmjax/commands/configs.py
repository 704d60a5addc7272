"""``mlmjax configs``."""

import argparse

from mlmjax.experiment import describe, shipped


def run(arguments: list[str]) -> None:
    """List the shipped configs."""
    argparse.ArgumentParser("mlmjax configs", description="List the shipped configs.").parse_args(
        arguments
    )
    for name, path in shipped().items():
        print(f"{name:16} {describe(path)}")
