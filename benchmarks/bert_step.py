"""BERT-base's training step against transformers and PyTorch: tokens a second and peak memory, side by side.

    pip install -e '.[benchmark]'
    python benchmarks/bert_step.py

Each side runs in a process of its own, on the same cores, one waiting while the other works: blocks of steps
alternate, and the ratio is taken block by block, so that a machine whose speed drifts does not favour either.
Both make the full step in float32: masking, forward, backward, clipping, AdamW. The masks of the PyTorch side are
made beforehand.

Most of a step is matrix products, whose speed is the compiler's and the machine's: so each block also times one of
the model's products alone, and the last columns compare the rate of the step's products with it.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, NamedTuple

RATE = 1e-4
LAYERS, HIDDEN, MLP = 12, 768, 3072


class Side(NamedTuple):
    """One of the two that are compared.

    Attributes:
        step: makes one step and returns the loss.
        multiply: makes one product of the feed-forward layer's size.
        flops: floating-point operations of the products in a step.
    """

    step: Callable[[], float]
    multiply: Callable[[], object]
    flops: float


def text_rows(random: Any, batch: int, length: int, *, first: int) -> dict[str, Any]:
    """A batch of random tokens as mlmjax reads them; ``first`` is the number of its first row."""
    import numpy as np

    tokens = random.integers(200, 30522, (batch, length), dtype=np.int32)
    tokens[:, 0], tokens[:, -1] = 101, 102
    return {
        "tokens": tokens,
        "valid": np.ones((batch, length), bool),
        "word_starts": np.ones((batch, length), bool),
        "sentence_starts": np.zeros((batch, length), bool),
        "segments": np.zeros((batch, length), np.int32),
        "frequency": np.full((batch, length), 1e-4, np.float32),
        "id": np.stack([np.zeros(batch), first + np.arange(batch)], 1).astype(np.uint32),
        "epoch": np.zeros(batch, np.int32),
    }


def masked_rows(random: Any, batch: int, length: int) -> tuple[Any, Any]:
    """A batch of random tokens as transformers reads them: 15% hidden, and the labels of these."""
    import numpy as np

    tokens = random.integers(200, 30522, (batch, length))
    labels = np.full_like(tokens, -100)
    for row, truth in zip(tokens, labels, strict=True):
        chosen = random.permutation(np.arange(1, length - 1))[: round(0.15 * (length - 2))]
        truth[chosen] = row[chosen]
        row[chosen[: round(0.8 * len(chosen))]] = 103
    return tokens, labels


def mlmjax_side(batch: int, length: int, dropout: float) -> Side:
    """BERT-base and its products in mlmjax."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from masking_cost import VOCABULARY

    from mlmjax.data.text import TextData
    from mlmjax.experiment import Experiment, RunConfig
    from mlmjax.models.bert import BertConfig
    from mlmjax.objectives.mlm import MaskedLanguageModel
    from mlmjax.optim import AdamW, WarmupSchedule
    from mlmjax.training.step import Program

    experiment = Experiment(
        model=BertConfig.base(dropout=dropout, attention_dropout=dropout),
        objective=MaskedLanguageModel(),
        data=TextData(length=length, batch=batch),
        optimizer=AdamW(
            learning_rate=WarmupSchedule(peak=RATE, warmup=0, decay="constant"), weight_decay=0.01
        ),
        run=RunConfig(steps=10**6),
    ).fitted(VOCABULARY)
    program = Program.of(experiment)
    compiled = program.step().lower(program.state, program.batch).compile()
    state = program.initial_state()
    random = np.random.default_rng(0)
    count = 0

    def step() -> float:
        nonlocal state, count
        rows = text_rows(random, batch, length, first=count)
        count += batch
        state, report = compiled(state, program.place(rows))
        return float(report["mask_loss"])

    multiply = jax.jit(jnp.matmul)
    left, right = jnp.ones((batch * length, HIDDEN)), jnp.ones((HIDDEN, MLP))
    return Side(step, lambda: multiply(left, right).block_until_ready(), program.work.flops)


def torch_side(batch: int, length: int, dropout: float) -> Side:
    """transformers' BertForMaskedLM and its products in PyTorch."""
    import numpy as np
    import torch
    from transformers import BertConfig, BertForMaskedLM

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(0)
    config = BertConfig(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    model = BertForMaskedLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, eps=1e-6, weight_decay=0.01)
    random = np.random.default_rng(0)

    def step() -> float:
        tokens, labels = masked_rows(random, batch, length)
        optimizer.zero_grad(set_to_none=True)
        loss = model(
            input_ids=torch.from_numpy(tokens),
            attention_mask=torch.ones(batch, length, dtype=torch.long),
            labels=torch.from_numpy(labels),
        ).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    left, right = torch.ones(batch * length, HIDDEN), torch.ones(HIDDEN, MLP)
    # Forward and twice as much backward; the attention, and the head over every position.
    encoder = LAYERS * (4 * HIDDEN**2 + 2 * HIDDEN * MLP + 2 * length * HIDDEN)
    head = HIDDEN * (HIDDEN + config.vocab_size)
    return Side(step, lambda: left @ right, 6 * batch * length * (encoder + head))


SIDES = {"mlmjax": mlmjax_side, "transformers": torch_side}


def serve(side: str, options: argparse.Namespace) -> None:
    """Make as many steps as each line of standard input says; answer with seconds and peak memory."""
    import resource

    made = SIDES[side](options.batch, options.length, options.dropout)
    operations = 2 * options.batch * options.length * HIDDEN * MLP
    for line in sys.stdin:
        start = time.perf_counter()
        losses = [made.step() for _ in range(int(line))]
        seconds = time.perf_counter() - start
        answer = {
            "seconds": seconds,
            "rate": made.flops * len(losses) / seconds,
            "product_rate": operations / min(seconds_of(made.multiply) for _ in range(10)),
            "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "loss": losses[-1],
        }
        print(json.dumps(answer), flush=True)


def seconds_of(function: Callable[[], object]) -> float:
    """Wall-clock time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


class Worker:
    """A side in its own process."""

    def __init__(self, side: str, options: argparse.Namespace):
        sizes = [f"--{name}={getattr(options, name)}" for name in ("batch", "length", "dropout")]
        self._process = subprocess.Popen(
            [sys.executable, __file__, f"--serve={side}", *sizes],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, steps: int) -> dict[str, float]:
        """Make steps and wait for them."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(steps, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--dropout", type=float, default=0.1, help="of hidden states and attention")
    parser.add_argument("--blocks", type=int, default=5, help="blocks of each side")
    parser.add_argument("--steps", type=int, default=2, help="steps in a block")
    parser.add_argument("--serve", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options)
        return

    workers = {side: Worker(side, options) for side in SIDES}
    for worker in workers.values():
        worker.run(1)
    blocks = [
        {side: worker.run(options.steps) for side, worker in workers.items()}
        for _ in range(options.blocks)
    ]
    for worker in workers.values():
        worker.close()

    tokens = options.batch * options.length * options.steps
    packages = ("jax", "flax", "torch", "transformers")
    print(
        f"Python {platform.python_version()}, " + ", ".join(f"{p} {version(p)}" for p in packages)
    )
    print(f"batch {options.batch}, length {options.length}, dropout {options.dropout}, float32")
    print(
        f"{'':14}{'tokens/s':>10}{'peak GiB':>10}{'loss':>8}{'GFLOPS':>8}{'alone':>8}{'share':>7}"
    )
    for side in SIDES:
        rate = tokens / statistics.median(block[side]["seconds"] for block in blocks)
        last = blocks[-1][side]
        speed, alone = (
            statistics.median(block[side][name] for block in blocks) / 1e9
            for name in ("rate", "product_rate")
        )
        print(
            f"{side:14}{rate:10.0f}{last['peak'] / 2**30:10.2f}{last['loss']:8.3f}"
            f"{speed:8.0f}{alone:8.0f}{speed / alone:7.2f}"
        )
    ratios = [block["transformers"]["seconds"] / block["mlmjax"]["seconds"] for block in blocks]
    memory = blocks[-1]["mlmjax"]["peak"] / blocks[-1]["transformers"]["peak"]
    print(
        f"mlmjax / transformers: tokens/s {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f}), peak memory {memory:.2f}"
    )


if __name__ == "__main__":
    main()
