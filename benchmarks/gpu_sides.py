"""The training steps that benchmarks/gpu.py compares: BERT and MAE in bfloat16, in mlmjax and in PyTorch.

A side is made in a process of its own. ``GPU_DEVICE`` in its environment says where it is to compute: cuda or cpu.
"""

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from alternating import Side, process_peak
from bert_step import masked_rows, text_rows
from mae_step import image_rows

RATE = 1e-4
DROPOUT = 0.1
DTYPE = "bfloat16"
TURNS = 4
"""Batches that are read in turn, and products that follow each other."""


class Sizes(NamedTuple):
    """What is timed.

    Attributes:
        bert: layers, width, heads and feed-forward width of BERT.
        rows: of its batch.
        length: of its rows.
        encoder: the same of MAE's encoder.
        decoder: of its decoder.
        image: height and width.
        images: of its batch.
        product: rows of the square matrices that are multiplied.
        lengths: for which attention is timed alone.
        tokens: in all its rows together.
        steps: in a block.
        blocks: at most.
    """

    bert: tuple[int, int, int, int]
    rows: int
    length: int
    encoder: tuple[int, int, int, int]
    decoder: tuple[int, int, int, int]
    image: int
    images: int
    product: int
    lengths: tuple[int, ...]
    tokens: int
    steps: int
    blocks: int


FULL = Sizes(
    bert=(12, 768, 12, 3072),
    rows=64,
    length=512,
    encoder=(24, 1024, 16, 4096),
    decoder=(8, 512, 16, 2048),
    image=224,
    images=128,
    product=8192,
    lengths=(128, 512, 2048),
    tokens=16384,
    steps=10,
    blocks=5,
)
TINY = Sizes(
    bert=(2, 32, 2, 64),
    rows=4,
    length=32,
    encoder=(2, 32, 2, 64),
    decoder=(1, 16, 2, 32),
    image=32,
    images=4,
    product=256,
    lengths=(32, 64),
    tokens=128,
    steps=2,
    blocks=2,
)


def transformer(sizes: tuple[int, int, int, int]) -> dict[str, int]:
    """Sizes by their names in mlmjax."""
    return dict(zip(("layers", "hidden", "heads", "mlp"), sizes, strict=True))


def mlmjax_bert(sizes: Sizes, *, attention: str) -> Side:
    """BERT's step in mlmjax."""
    import numpy as np
    from masking_cost import VOCABULARY

    from mlmjax.data.text import TextData
    from mlmjax.experiment import Experiment, RunConfig
    from mlmjax.models.bert import BertConfig
    from mlmjax.objectives.mlm import MaskedLanguageModel
    from mlmjax.optim import AdamW, WarmupSchedule

    experiment = Experiment(
        model=BertConfig(
            **transformer(sizes.bert),
            vocabulary_multiple=128,
            dropout=DROPOUT,
            attention_dropout=0.0,
            attention=attention,
            dtype=DTYPE,
        ),
        objective=MaskedLanguageModel(),
        data=TextData(length=sizes.length, batch=sizes.rows),
        optimizer=AdamW(
            learning_rate=WarmupSchedule(peak=RATE, warmup=0, decay="constant"), weight_decay=0.01
        ),
        run=RunConfig(steps=10**6),
    ).fitted(VOCABULARY)
    random = np.random.default_rng(0)
    batches = [
        text_rows(random, sizes.rows, sizes.length, first=turn * sizes.rows)
        for turn in range(TURNS)
    ]
    return mlmjax_side(experiment, batches, sizes)


def mlmjax_mae(sizes: Sizes) -> Side:
    """MAE's step in mlmjax."""
    from mlmjax.data.images import ImageData
    from mlmjax.experiment import Experiment, RunConfig
    from mlmjax.objectives.mae import MaskedAutoencoder
    from mlmjax.optim import AdamW, WarmupSchedule

    experiment = Experiment(
        model=mae_model(sizes),
        objective=MaskedAutoencoder(),
        data=ImageData(size=(sizes.image, sizes.image), batch=sizes.images),
        optimizer=AdamW(
            learning_rate=WarmupSchedule(peak=RATE, warmup=0, decay="constant"),
            betas=(0.9, 0.95),
            weight_decay=0.05,
            clip=None,
        ),
        run=RunConfig(steps=10**6),
    ).fitted(None)
    pixels = random_pixels(sizes)
    batches = [image_rows(pixels, first=turn * sizes.images) for turn in range(TURNS)]
    return mlmjax_side(experiment, batches, sizes)


def mae_model(sizes: Sizes) -> Any:
    """MAE's sizes in mlmjax."""
    from mlmjax.models.mae import DecoderConfig, MaeConfig
    from mlmjax.models.vit import VitConfig

    image = (sizes.image, sizes.image)
    return MaeConfig(
        encoder=VitConfig(**transformer(sizes.encoder), image=image, dtype=DTYPE),
        decoder=DecoderConfig(**transformer(sizes.decoder), dtype=DTYPE),
    )


def random_pixels(sizes: Sizes) -> Any:
    """A batch of noise."""
    import numpy as np

    shape = (sizes.images, sizes.image, sizes.image, 3)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def check_jax() -> None:
    """Refuse to time a CPU in place of the GPU.

    Raises:
        RuntimeError: there is a GPU, and JAX does not see it.
    """
    import jax

    if os.environ["GPU_DEVICE"] == "cuda" and jax.default_backend() != "gpu":
        raise RuntimeError(f"JAX {jax.__version__} sees no GPU: pip install 'jax[cuda12]'")


@contextmanager
def alone() -> Iterator[None]:
    """One process at a time is in here: XLA tries kernels while it compiles, and not beside others that do."""
    with Path(__file__).open() as own:
        fcntl.flock(own, fcntl.LOCK_EX)
        yield


def mlmjax_side(experiment: Any, batches: Sequence[dict[str, Any]], sizes: Sizes) -> Side:
    """An experiment's step over some batches in turn, and products of square matrices."""
    import jax
    import jax.numpy as jnp

    from mlmjax.training.metrics import peak_memory
    from mlmjax.training.step import Program

    check_jax()
    program = Program.of(experiment, experiment.mesh.make(jax.devices()[:1]))
    with alone():
        compiled = program.step().lower(program.state, program.batch).compile()
    state, placed = program.initial_state(), [program.place(each) for each in batches]
    count = 0

    def step() -> Any:
        nonlocal state, count
        state, report = compiled(state, placed[count % len(placed)])
        count += 1
        return report["loss"]

    matrix = jax.random.normal(jax.random.key(0), (sizes.product, sizes.product), DTYPE)
    matrix = matrix * sizes.product**-0.5
    product = jax.jit(jnp.matmul)

    def multiply() -> None:
        found = matrix
        for _ in range(TURNS):
            found = product(found, matrix)
        found.block_until_ready()

    return Side(step, multiply, products(sizes), program.work.flops, peak_memory)


def products(sizes: Sizes) -> float:
    """Operations of the products that are timed beside the steps."""
    return 2.0 * TURNS * sizes.product**3


def torch_bert(sizes: Sizes) -> Side:
    """transformers' BertForMaskedLM."""
    import numpy as np
    import torch
    from transformers import BertConfig, BertForMaskedLM

    layers, hidden, heads, mlp = sizes.bert
    config = BertConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=mlp,
        hidden_dropout_prob=DROPOUT,
        attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa",
    )
    device, random = torch_device(), np.random.default_rng(0)
    batches = []
    for _ in range(TURNS):
        tokens, labels = masked_rows(random, sizes.rows, sizes.length)
        named = {
            "input_ids": tokens,
            "labels": labels,
            "attention_mask": np.ones_like(tokens),
        }
        batches.append({name: torch.from_numpy(each).to(device) for name, each in named.items()})
    model = BertForMaskedLM(config).to(device).train()
    # Forward and twice as much backward; the head over every position.
    head = 2 * sizes.length * hidden * (hidden + config.vocab_size)
    flops = 3 * sizes.rows * (bert_model(sizes).flops(sizes.length) + head)
    betas = (0.9, 0.999)
    return torch_side(model, batches, sizes, flops=flops, betas=betas, decay=0.01, clip=1.0)


def bert_model(sizes: Sizes) -> Any:
    """BERT's sizes in mlmjax, for its count of operations."""
    from mlmjax.models.bert import BertConfig

    return BertConfig(**transformer(sizes.bert))


def torch_mae(sizes: Sizes) -> Side:
    """transformers' ViTMAEForPreTraining."""
    import torch
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    layers, hidden, heads, mlp = sizes.encoder
    depth, width, decoder_heads, decoder_mlp = sizes.decoder
    config = ViTMAEConfig(
        image_size=sizes.image,
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=mlp,
        decoder_num_hidden_layers=depth,
        decoder_hidden_size=width,
        decoder_num_attention_heads=decoder_heads,
        decoder_intermediate_size=decoder_mlp,
        norm_pix_loss=True,
        attn_implementation="sdpa",
    )
    device = torch_device()
    images = torch.from_numpy(random_pixels(sizes)).to(device).permute(0, 3, 1, 2).float() / 255
    model = ViTMAEForPreTraining(config).to(device).train()
    ours = mae_model(sizes)
    patches, size = ours.encoder.patches, ours.encoder.patch_size
    visible = int(patches * (1 - config.mask_ratio))
    # It embeds the hidden patches too.
    whole = ours.flops(visible) + 2 * (patches - visible) * size * hidden
    return torch_side(
        model,
        [{"pixel_values": images}],
        sizes,
        flops=3 * sizes.images * whole,
        betas=(0.9, 0.95),
        decay=0.05,
        clip=None,
    )


def torch_device() -> str:
    """Where PyTorch computes.

    Raises:
        RuntimeError: there is a GPU, and PyTorch does not see it.
    """
    import torch

    torch.manual_seed(0)
    if os.environ["GPU_DEVICE"] == "cpu":
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        return "cpu"
    if not torch.cuda.is_available():
        raise RuntimeError(f"PyTorch {torch.__version__} sees no GPU: install its build for CUDA")
    return "cuda"


def torch_side(
    model: Any,
    batches: Sequence[dict[str, Any]],
    sizes: Sizes,
    *,
    flops: float,
    betas: tuple[float, float],
    decay: float,
    clip: float | None,
) -> Side:
    """A model's step over some batches in turn, and products of square matrices."""
    import torch

    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=RATE, betas=betas, eps=1e-6, weight_decay=decay, fused=True
    )
    count = 0

    def step() -> Any:
        nonlocal count
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = model(**batches[count % len(batches)]).loss
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        count += 1
        return loss.detach()

    matrix = torch.randn(sizes.product, sizes.product, device=device, dtype=torch.bfloat16)
    matrix = matrix * sizes.product**-0.5
    on_card = device.type == "cuda"

    def multiply() -> None:
        found = matrix
        for _ in range(TURNS):
            found = found @ matrix
        if on_card:
            torch.cuda.synchronize()

    peak = torch.cuda.max_memory_allocated if on_card else process_peak
    return Side(step, multiply, products(sizes), flops, peak)


SIDES: dict[str, dict[str, Callable[[Sizes], Side]]] = {
    "bert": {
        "transformers, sdpa": torch_bert,
        "mlmjax, xla": partial(mlmjax_bert, attention="xla"),
        "mlmjax, cudnn": partial(mlmjax_bert, attention="cudnn"),
    },
    "mae": {"transformers, sdpa": torch_mae, "mlmjax, xla": mlmjax_mae},
}
"""What is compared in a section; the first is what the others' speed is given in."""
