"""Memory and time of the masked-token loss and its gradients: gathered and chunked against plain.

    python benchmarks/loss_memory.py

Plain with all positions is what most code does: logits for every position of the batch, the loss at
selected ones. Memory is what XLA sets aside for temporaries (`compiled.memory_analysis()`), beside
arguments and results, of which all have the same. Times are the median of alternating runs.
The shapes are BERT-base's: 16 rows of 128 positions, 20 targets in each.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
from jax import Array
from rich.console import Console
from rich.table import Table

from mlmjax.losses import TokenLoss, chunked_cross_entropy, full_cross_entropy


def compile_gradients(
    loss: Callable[..., TokenLoss], arguments: tuple[Array, ...]
) -> jax.stages.Compiled:
    """The loss summed over tokens, with gradients of hidden, table and bias, compiled."""

    def total(hidden: Array, table: Array, bias: Array, labels: Array) -> Array:
        return loss(hidden, table, bias, labels).loss.sum()

    return jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2))).lower(*arguments).compile()


def temporaries(compiled: jax.stages.Compiled) -> int:
    """Bytes that XLA sets aside beside arguments and results."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        raise SystemExit("This backend does not tell how much memory a program takes.")
    return analysis.temp_size_in_bytes


def make_arguments(
    tokens: int, hidden: int, columns: int, vocabulary: int, dtype: str
) -> tuple[Array, ...]:
    """Hidden vectors, table, bias and labels at random."""
    keys = jax.random.split(jax.random.key(0), 4)
    return (
        jax.random.normal(keys[0], (tokens, hidden), dtype),
        0.02 * jax.random.normal(keys[1], (columns, hidden)),
        jax.random.normal(keys[2], (columns,)),
        jax.random.randint(keys[3], (tokens,), 0, vocabulary),
    )


def median_times(runs: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Seconds of each, taken in turn so that a change in the machine's load meets all alike."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            if turn > 0:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


class Measured(NamedTuple):
    """A way to take the loss: name, tokens, bytes of temporaries, seconds, and the loss with its gradients."""

    name: str
    tokens: int
    memory: int
    seconds: float
    value: Any


def compare(
    positions: int,
    targets: int,
    columns: int,
    *,
    hidden: int,
    vocabulary: int,
    chunk: int,
    dtype: str,
    repeats: int,
) -> list[Measured]:
    """The loss of all positions and that of the gathered targets, plain; and the latter in chunks."""
    runs, sizes = {}, {}
    for name, loss, tokens in (
        ("plain, all positions", full_cross_entropy, positions),
        ("plain, gathered", full_cross_entropy, targets),
        ("chunked, gathered", partial(chunked_cross_entropy, chunk=chunk), targets),
    ):
        arguments = make_arguments(tokens, hidden, columns, vocabulary, dtype)
        compiled = compile_gradients(partial(loss, vocabulary=vocabulary), arguments)
        sizes[name] = tokens, temporaries(compiled)
        runs[name] = partial(compiled, *arguments)
    times = median_times(runs, repeats)
    return [Measured(name, *sizes[name], times[name], runs[name]()) for name in runs]


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--positions", type=int, default=2048, help="positions in the batch")
    parser.add_argument("--targets", type=int, default=320, help="selected positions in the batch")
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=30522)
    parser.add_argument("--columns", type=int, nargs="+", default=[30522, 30592])
    parser.add_argument("--chunk", type=int, default=4096)
    parser.add_argument("--dtype", default="float32", help="of the hidden vectors")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()

    table = Table(title=f"Loss and gradients, {options.dtype}, on {jax.devices()[0].device_kind}")
    for heading in ("columns", "loss", "tokens", "memory", "ratio", "time", "ratio"):
        table.add_column(heading, justify="right")
    for columns in options.columns:
        found = compare(
            options.positions,
            options.targets,
            columns,
            hidden=options.hidden,
            vocabulary=options.vocabulary,
            chunk=options.chunk,
            dtype=options.dtype,
            repeats=options.repeats,
        )
        first, gathered = found[0], found[1]
        for each in found:
            table.add_row(
                str(columns),
                each.name,
                str(each.tokens),
                f"{each.memory / 2**20:.1f} MiB",
                f"{each.memory / first.memory:.3f}",
                f"{each.seconds * 1e3:.0f} ms",
                f"{each.seconds / gathered.seconds:.2f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
