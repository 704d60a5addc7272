"""What masks and corruption cost on the device, and how compile time grows with depth.

    python benchmarks/masking_cost.py

Prints the time of masking and corrupting a batch as a share of BERT-base's step, and the compile time of
BERT-large's step over BERT-base's.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from mlmjax.core.types import Context
from mlmjax.core.vocabulary import Vocabulary
from mlmjax.data.text import TextData
from mlmjax.experiment import Experiment, RunConfig
from mlmjax.models.bert import BertConfig
from mlmjax.objectives.mlm import MaskedLanguageModel
from mlmjax.optim import AdamW
from mlmjax.training.step import Program

VOCABULARY = Vocabulary(
    size=30522,
    padding=0,
    unknown=100,
    start=101,
    separator=102,
    mask=103,
    special=tuple(range(104)),
)


def program(model: BertConfig, *, batch: int, length: int) -> Program:
    """The step of a model on one batch shape."""
    experiment = Experiment(
        model=model,
        objective=MaskedLanguageModel(),
        data=TextData(length=length, batch=batch),
        optimizer=AdamW(),
        run=RunConfig(steps=1000),
    )
    return Program.of(experiment.fitted(VOCABULARY))


def compiled(made: Program) -> tuple[float, Any]:
    """Seconds to trace and compile the step, and the step."""
    start = time.perf_counter()
    step = made.step().lower(made.state, made.batch).compile()
    return time.perf_counter() - start, step


def median_seconds(call: Callable[[], Any], repeats: int) -> float:
    """The median time of a call whose result is waited for."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    options = parser.parse_args()
    sizes = {"batch": options.batch, "length": options.length}

    base = program(BertConfig.base(), **sizes)
    base_compile, step = compiled(base)
    large_compile, _ = compiled(program(BertConfig.large(), **sizes))
    random = np.random.default_rng(0)
    rows = {
        name: random.integers(200, 30522, each.shape).astype(each.dtype)
        for name, each in base.batch.items()
    }
    batch = base.place({**rows, "epoch": np.zeros_like(rows["epoch"])})
    state = base.initial_state()

    def once() -> Any:
        nonlocal state
        state, report = step(state, batch)
        return report

    once()
    whole = median_seconds(once, 3)
    mask = jax.jit(lambda batch: base.experiment.objective.mask(batch, Context.of(0)))
    mask(batch)
    masking = median_seconds(lambda: mask(batch), 50)
    print(f"jax {jax.__version__}, batch {options.batch}, length {options.length}, float32")
    print(f"BERT-base step                  {whole:9.3f} s")
    print(f"masking and corruption          {masking * 1e3:9.3f} ms, {masking / whole:.3%} of it")
    print(f"compile, base                   {base_compile:9.1f} s")
    print(
        f"compile, large                  {large_compile:9.1f} s, {large_compile / base_compile:.2f} times"
    )


if __name__ == "__main__":
    main()
