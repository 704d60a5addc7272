"""MAE's training step, ViT-B/16, against transformers and PyTorch: images a second and peak memory, side by side.

    pip install -e '.[benchmark]'
    GLIBC_TUNABLES=glibc.malloc.hugetlb=1 python benchmarks/mae_step.py

Each side runs in a process of its own, on the same cores, and they take turns: the ratio is taken block by block.
Both make the full step in float32: masking, forward, backward, AdamW; the images are raw pixels that are ready.
As in benchmarks/bert_step.py each block also times one of the model's products alone.

Expected before the first run: the products of a step are 58 GFLOP an image. Ours and theirs are the same, but for
theirs embedding all patches (under 1%), so the ratio is that of the product rates (0.66 to 0.78 on BERT's sizes)
times what stands around them: AdamW over 112M parameters in one pass instead of several (0.3 s of about 2.5 s at
batch 8), no masks in attention, elementwise work fused. 1.2 times their images/s, 1.5 if the rates were equal.
"""

import argparse
import os
import platform
import statistics
from importlib.metadata import version
from typing import Any

from alternating import Side, Worker, serve

RATE = 1e-4
DECODER_TOKENS, WIDTH, MLP = 197, 512, 2048


def image_rows(pixels: Any, *, first: int) -> dict[str, Any]:
    """A batch of images as mlmjax reads them; ``first`` is the number of its first row."""
    import numpy as np

    batch = len(pixels)
    return {
        "pixels": pixels,
        "valid": np.ones(batch, bool),
        "id": np.stack([np.zeros(batch), first + np.arange(batch)], 1).astype(np.uint32),
        "epoch": np.zeros(batch, np.int32),
    }


def mlmjax_side(batch: int) -> Side:
    """MAE with ViT-B/16 in mlmjax."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from mlmjax.data.images import ImageData
    from mlmjax.experiment import Experiment, RunConfig
    from mlmjax.models.mae import MaeConfig
    from mlmjax.objectives.mae import MaskedAutoencoder
    from mlmjax.optim import AdamW, WarmupSchedule
    from mlmjax.training.step import Program

    experiment = Experiment(
        model=MaeConfig.vit_b16(),
        objective=MaskedAutoencoder(),
        data=ImageData(size=(224, 224), batch=batch),
        optimizer=AdamW(
            learning_rate=WarmupSchedule(peak=RATE, warmup=0, decay="constant"),
            betas=(0.9, 0.95),
            weight_decay=0.05,
            clip=None,
        ),
        run=RunConfig(steps=10**6),
    ).fitted(None)
    program = Program.of(experiment)
    compiled = program.step().lower(program.state, program.batch).compile()
    state = program.initial_state()
    pixels = np.random.default_rng(0).integers(0, 256, (batch, 224, 224, 3), dtype=np.uint8)
    count = 0

    def step() -> float:
        nonlocal state, count
        rows = image_rows(pixels, first=count)
        count += batch
        state, report = compiled(state, program.place(rows))
        return float(report["mask_loss"])

    multiply = jax.jit(jnp.matmul)
    left, right = jnp.ones((batch * DECODER_TOKENS, WIDTH)), jnp.ones((WIDTH, MLP))
    return Side(
        step,
        lambda: multiply(left, right).block_until_ready(),
        2 * left.size * MLP,
        program.work.flops,
    )


def torch_side(batch: int) -> Side:
    """transformers' ViTMAEForPreTraining in PyTorch."""
    import numpy as np
    import torch
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(0)
    model = ViTMAEForPreTraining(ViTMAEConfig(norm_pix_loss=True)).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=RATE, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.05
    )
    pixels = np.random.default_rng(0).integers(0, 256, (batch, 224, 224, 3), dtype=np.uint8)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        images = (torch.from_numpy(pixels).float() / 255).permute(0, 3, 1, 2)
        loss = model(pixel_values=images).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    left, right = torch.ones(batch * DECODER_TOKENS, WIDTH), torch.ones(WIDTH, MLP)
    # Forward and twice as much backward: embedding, encoder, decoder, prediction, each with its attention.
    encoder = 196 * 768 * 768 + 12 * 50 * (12 * 768**2 + 2 * 50 * 768)
    decoder = 50 * 768 * 512 + 8 * 197 * (12 * 512**2 + 2 * 197 * 512) + 197 * 512 * 768
    return Side(step, lambda: left @ right, 2 * left.numel() * MLP, 6 * batch * (encoder + decoder))


SIDES = {"mlmjax": mlmjax_side, "transformers": torch_side}


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=5, help="blocks of each side")
    parser.add_argument("--steps", type=int, default=2, help="steps in a block")
    parser.add_argument("--serve", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(SIDES[options.serve](options.batch))
        return

    sizes = [f"--batch={options.batch}"]
    workers = {side: Worker(__file__, [f"--serve={side}", *sizes]) for side in SIDES}
    for worker in workers.values():
        worker.run(1)
    blocks = [
        {side: worker.run(options.steps) for side, worker in workers.items()}
        for _ in range(options.blocks)
    ]
    for worker in workers.values():
        worker.close()

    images = options.batch * options.steps
    packages = ("jax", "flax", "torch", "transformers")
    print(
        f"Python {platform.python_version()}, " + ", ".join(f"{p} {version(p)}" for p in packages)
    )
    print(f"ViT-B/16 at 224, batch {options.batch}, float32")
    print(
        f"{'':14}{'images/s':>10}{'peak GiB':>10}{'loss':>8}{'GFLOPS':>8}{'alone':>8}{'share':>7}"
    )
    for side in SIDES:
        rate = images / statistics.median(block[side]["seconds"] for block in blocks)
        last = blocks[-1][side]
        speed, alone = (
            statistics.median(block[side][name] for block in blocks) / 1e9
            for name in ("rate", "product_rate")
        )
        print(
            f"{side:14}{rate:10.2f}{last['peak'] / 2**30:10.2f}{last['loss']:8.3f}"
            f"{speed:8.0f}{alone:8.0f}{speed / alone:7.2f}"
        )
    ratios, used = (
        [block["transformers"][name] / block["mlmjax"][name] for block in blocks]
        for name in ("seconds", "processor")
    )
    memory = blocks[-1]["mlmjax"]["peak"] / blocks[-1]["transformers"]["peak"]
    print(
        f"mlmjax / transformers: images/s {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f}), by processor time {statistics.median(used):.2f}, "
        f"peak memory {memory:.2f}"
    )


if __name__ == "__main__":
    main()
