"""What it saves that MAE's encoder sees the visible patches alone: its step against one with mask tokens there.

    GLIBC_TUNABLES=glibc.malloc.hugetlb=1 python benchmarks/mae_asymmetry.py --batch 8

Compared as in He et al. 2022, table 2, with ViT-L/16 at 224: an encoder that is given all 196 patches, the masked
ones as a learned vector, and a decoder of eight blocks (1 times); the encoder given 49 of them (2.8 times faster in
the paper); and that with a decoder of one block (3.7). Full steps in float32 with AdamW, in processes that take
turns. Two of these models are in memory at a time: 7 GiB each, and some more with the batch.

Expected before the first run, from the products of a step alone (column "products"): 3.2 and 4.2 times. AdamW costs
the same whatever the batch, for 330M parameters about 1.5 s here, as the products of two images do: so 2.2 times
at batch 2, 2.8 at 8, 3.1 at 32; with one block 2.5, 3.5 and 3.9.
"""

import argparse
import platform
import statistics
from importlib.metadata import version

from alternating import Side, Worker, serve

from mlmjax.experiment import Experiment
from mlmjax.models.vit import VitConfig

RATE = 1e-4
DESIGNS = {
    "mask tokens in the encoder, 8 blocks": ("vector", 8),
    "visible patches, 8 blocks": ("drop", 8),
    "visible patches, 1 block": ("drop", 1),
}
SIZES = {"b16": VitConfig.b16, "l16": VitConfig.l16}


def experiment(kind: str, blocks: int, *, size: str, batch: int) -> Experiment:
    """A design as an experiment."""
    from mlmjax.corruption import PatchCorruption
    from mlmjax.data.images import ImageData
    from mlmjax.experiment import RunConfig
    from mlmjax.models.mae import DecoderConfig, MaeConfig
    from mlmjax.objectives.mae import MaskedAutoencoder
    from mlmjax.optim import AdamW, WarmupSchedule

    return Experiment(
        model=MaeConfig(
            encoder=SIZES[size](masked_vector=kind == "vector"),
            decoder=DecoderConfig(layers=blocks),
        ),
        objective=MaskedAutoencoder(corruption=PatchCorruption(kind=kind)),
        data=ImageData(size=(224, 224), batch=batch),
        optimizer=AdamW(
            learning_rate=WarmupSchedule(peak=RATE, warmup=0, decay="constant"),
            betas=(0.9, 0.95),
            weight_decay=0.05,
            clip=None,
        ),
        run=RunConfig(steps=10**6),
    ).fitted(None)


def side(name: str, *, size: str, batch: int) -> Side:
    """A design's step, and the product of a feed-forward layer over its encoder's patches."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from mlmjax.training.step import Program

    made = experiment(*DESIGNS[name], size=size, batch=batch)
    program = Program.of(made)
    compiled = program.step().lower(program.state, program.batch).compile()
    state = program.initial_state()
    pixels = np.random.default_rng(0).integers(0, 256, (batch, 224, 224, 3), dtype=np.uint8)
    count = 0

    def step() -> float:
        nonlocal state, count
        rows = {
            "pixels": pixels,
            "valid": np.ones(batch, bool),
            "id": np.stack([np.zeros(batch), count + np.arange(batch)], 1).astype(np.uint32),
            "epoch": np.zeros(batch, np.int32),
        }
        count += batch
        state, report = compiled(state, program.place(rows))
        return float(report["mask_loss"])

    encoder = SIZES[size]()
    tokens = 50 if DESIGNS[name][0] == "drop" else 197
    multiply = jax.jit(jnp.matmul)
    left = jnp.ones((batch * tokens, encoder.hidden))
    right = jnp.ones((encoder.hidden, encoder.mlp))
    return Side(
        step,
        lambda: multiply(left, right).block_until_ready(),
        2 * left.size * encoder.mlp,
        program.work.flops,
    )


def work(name: str, *, size: str, batch: int) -> float:
    """Floating-point operations of a design's step."""
    made = experiment(*DESIGNS[name], size=size, batch=batch)
    return made.objective.work(made.model, made.data.spec()).flops


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="l16")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=3, help="blocks of each design")
    parser.add_argument("--steps", type=int, default=1, help="steps in a block")
    parser.add_argument("--serve", choices=DESIGNS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(side(options.serve, size=options.size, batch=options.batch))
        return

    print(f"Python {platform.python_version()}, jax {version('jax')}, flax {version('flax')}")
    print(f"ViT {options.size} at 224, batch {options.batch}, float32")
    print(f"{'':38}{'s a step':>10}{'GFLOPS':>8}{'alone':>8}{'products':>10}{'faster':>8}")
    whole, *rest = DESIGNS
    chosen = {"size": options.size, "batch": options.batch}
    for name in rest:
        workers = {
            each: Worker(
                __file__,
                [f"--serve={each}", f"--size={options.size}", f"--batch={options.batch}"],
            )
            for each in (whole, name)
        }
        for worker in workers.values():
            worker.run(1)
        blocks = [
            {each: worker.run(options.steps) for each, worker in workers.items()}
            for _ in range(options.blocks)
        ]
        for worker in workers.values():
            worker.close()
        ratios = [block[whole]["seconds"] / block[name]["seconds"] for block in blocks]
        for each, found in ((whole, [1.0]), (name, ratios)):
            seconds, rate, alone = (
                statistics.median(block[each][field] for block in blocks)
                for field in ("seconds", "rate", "product_rate")
            )
            products = work(whole, **chosen) / work(each, **chosen)
            print(
                f"{each:38}{seconds / options.steps:10.2f}{rate / 1e9:8.0f}{alone / 1e9:8.0f}"
                f"{products:10.2f}{statistics.median(found):8.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
