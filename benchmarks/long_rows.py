"""BERT-base's training step on long rows: attention in blocks against attention that holds all scores of a row.

    GLIBC_TUNABLES=glibc.malloc.hugetlb=1 python benchmarks/long_rows.py --lengths 2048 8192

Full steps with AdamW, without dropout, one row a batch. Each side is a process of its own, so that the peak memory
is its own, and one waits while the other works: the ratio is taken block by block. `temporaries` are what XLA sets
aside for a step beside parameters and moments. Where both sides would not fit beside each other (`--limit`), only
the one in blocks is run.

Expected before the first run: at length 8,192 the scores of one layer are 3 GiB in float32, and a step needs four
to six such arrays, 15 GiB or more; in blocks 2 to 3 GiB beside the parameters. Time: blocks compute one product of
attention more than the plain backward pass, of seven, and save it the traffic of whole score matrices, so at 2,048
about as fast.
"""

import argparse
import platform
import statistics
from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np
from alternating import Side, Worker, serve
from masking_cost import VOCABULARY

from mlmjax.data.text import TextData
from mlmjax.experiment import Experiment, RunConfig
from mlmjax.models.bert import BertConfig
from mlmjax.objectives.mlm import MaskedLanguageModel
from mlmjax.optim import AdamW, WarmupSchedule
from mlmjax.training.step import Program

SIDES = ("xla", "blockwise")
GIB = 2**30


def program(attention: str, *, length: int, dtype: str, remat: str) -> Program:
    """BERT-base's step with an implementation of attention."""
    model = BertConfig.base(
        positions=length,
        dropout=0.0,
        attention_dropout=0.0,
        attention=attention,
        dtype=dtype,
        remat=remat,
    )
    experiment = Experiment(
        model=model,
        objective=MaskedLanguageModel(),
        data=TextData(length=length, batch=1),
        optimizer=AdamW(learning_rate=WarmupSchedule(peak=1e-4, warmup=0, decay="constant")),
        run=RunConfig(steps=10**6),
    ).fitted(VOCABULARY)
    return Program.of(experiment)


def compiled_step(made: Program) -> jax.stages.Compiled:
    """The step, compiled."""
    return made.step().lower(made.state, made.batch).compile()


def side(made: Program) -> Side:
    """The step, and the product of a feed-forward layer over its row."""
    compiled, state = compiled_step(made), made.initial_state()
    length, model = made.experiment.data.length, made.experiment.model
    random = np.random.default_rng(0)
    count = 0

    def step() -> float:
        nonlocal state, count
        tokens = random.integers(200, 30522, (1, length), dtype=np.int32)
        tokens[:, 0], tokens[:, -1] = 101, 102
        rows = {
            "tokens": tokens,
            "valid": np.ones((1, length), bool),
            "word_starts": np.ones((1, length), bool),
            "sentence_starts": np.zeros((1, length), bool),
            "segments": np.zeros((1, length), np.int32),
            "frequency": np.full((1, length), 1e-4, np.float32),
            "id": np.array([[0, count]], np.uint32),
            "epoch": np.zeros(1, np.int32),
        }
        count += 1
        state, report = compiled(state, made.place(rows))
        return float(report["mask_loss"])

    multiply = jax.jit(jnp.matmul)
    left, right = jnp.ones((length, model.hidden)), jnp.ones((model.hidden, model.mlp))
    return Side(
        step,
        lambda: multiply(left, right).block_until_ready(),
        2 * left.size * model.mlp,
        made.work.flops,
    )


def needed(made: Program) -> tuple[int, int]:
    """Bytes that XLA sets aside for a step, and those of its arguments."""
    found = compiled_step(made).memory_analysis()
    return found.temp_size_in_bytes, found.argument_size_in_bytes


def compare(length: int, options: argparse.Namespace) -> None:
    """Print what a step of each side takes at a length."""
    chosen = {"length": length, "dtype": options.dtype, "remat": options.remat}
    memory = {name: needed(program(name, **chosen)) for name in SIDES}
    both = sum(map(sum, memory.values()))
    run = SIDES if both < options.limit * GIB else SIDES[1:]
    given = [f"--{name}={value}" for name, value in chosen.items() if name != "length"]
    workers = {
        name: Worker(__file__, [f"--serve={name}", f"--lengths={length}", *given]) for name in run
    }
    for worker in workers.values():
        worker.run(1)
    blocks = [
        {name: worker.run(1) for name, worker in workers.items()} for _ in range(options.blocks)
    ]
    for worker in workers.values():
        worker.close()
    for name in SIDES:
        line = f"{length:8}  {name:12}{memory[name][0] / GIB:12.2f}"
        if name in run:
            seconds, rate, alone = (
                statistics.median(block[name][field] for block in blocks)
                for field in ("seconds", "rate", "product_rate")
            )
            last = blocks[-1][name]
            line += (
                f"{last['peak'] / GIB:10.2f}{seconds:10.2f}{rate / 1e9:9.0f}{alone / 1e9:7.0f}"
                f"{last['loss']:8.3f}"
            )
        print(line, flush=True)
    said = f"blockwise / xla: temporaries {memory['blockwise'][0] / memory['xla'][0]:.3f}"
    if len(run) == len(SIDES):
        first, second = SIDES
        ratios = [block[second]["seconds"] / block[first]["seconds"] for block in blocks]
        peaks = blocks[-1][second]["peak"] / blocks[-1][first]["peak"]
        said += (
            f", peak {peaks:.2f}, seconds {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f})"
        )
    print(f"{length:8}  {said}", flush=True)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--blocks", type=int, default=3, help="steps of each side")
    parser.add_argument("--limit", type=float, default=12, help="GiB for both sides together")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--remat", default="dots")
    parser.add_argument("--serve", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        (length,) = options.lengths
        made = program(options.serve, length=length, dtype=options.dtype, remat=options.remat)
        serve(side(made))
        return

    print(f"Python {platform.python_version()}, jax {version('jax')}, flax {version('flax')}")
    print(f"BERT-base, one row, {options.dtype}, remat {options.remat}; GiB")
    print(
        f"{'length':>8}  {'attention':12}{'temporaries':>12}{'peak':>10}{'s a step':>10}{'GFLOPS':>9}"
        f"{'alone':>7}{'loss':>8}"
    )
    for length in options.lengths:
        compare(length, options)


if __name__ == "__main__":
    main()
