"""What an NVIDIA GPU makes of BERT-base and MAE ViT-L in bfloat16, beside PyTorch; checked and timed in 5 minutes.

    pip install -e '.[benchmark]' 'jax[cuda12]'
    python benchmarks/gpu.py

Prints Markdown: the card, the date and the versions, then a table for each of four sections. Without a GPU it says
so and ends with status 2; `--tiny --allow-cpu` runs the same lines at small sizes on a CPU, whose figures mean
nothing and where what needs cuDNN fails.

    bert       BERT-base's training step, attention by XLA and by cuDNN, against transformers' BertForMaskedLM
    mae        MAE's, ViT-L/16, against transformers' ViTMAEForPreTraining
    attention  attention alone, forward and backward: XLA against cuDNN, and whether they agree
    loss       memory and time of the masked-token loss: of all positions, gathered, in chunks; whether they agree

Steps are whole: forward, backward, clipping where BERT has it, AdamW (fused in PyTorch). mlmjax makes its masks
in the step; PyTorch's are made beforehand for BERT, and by the model for MAE, whose pixels PyTorch gets scaled.
PyTorch runs under autocast with `scaled_dot_product_attention`, not compiled. Batches lie on the card. BERT has
dropout 0.1 on hidden states and none on attention.

The sides of a section are processes that take turns (benchmarks/alternating.py) and share the card's memory.
Beside each block of steps a product of two square matrices is timed; the fastest of a section is the ceiling that
its sides are compared with. Operations are those of the products in the side's own step: transformers predicts all
positions, mlmjax those that are hidden.

Each section has a limit of time, and what fails in one does not stop the others. Status 1: something failed.
"""

import argparse
import datetime
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from alternating import Worker, serve
from gpu_sides import DTYPE, FULL, SIDES, TINY, Sizes, check_jax

PACKAGES = (
    "jax",
    "jaxlib",
    "jax-cuda12-plugin",
    "jax-cuda13-plugin",
    "flax",
    "torch",
    "transformers",
)
TOTAL = 290
LIMITS = {"bert": 110, "mae": 90, "attention": 45, "loss": 40}
"""Seconds of a section, and of all."""


def serve_side(section: str, name: str, sizes: Sizes) -> None:
    """Answer for a side; where it fails, with the reason."""
    try:
        serve(SIDES[section][name](sizes))
    except Exception as error:
        print(json.dumps({"failed": reason(error)}), flush=True)


def reason(error: BaseException) -> str:
    """An error in one line."""
    said = " ".join(str(error).split()).replace("|", "/")
    return f"{type(error).__name__}: {said[:200]}"


class Checks:
    """What must hold in a section; it is printed, and remembered."""

    def __init__(self) -> None:
        self.kept = True

    def __call__(self, what: str, holds: bool) -> None:
        """Print whether it holds."""
        self.kept &= holds
        print(f"- {'ok' if holds else '**FAILED**'}: {what}", flush=True)


def models(section: str, sizes: Sizes, arguments: Sequence[str], seconds: float) -> bool:
    """Time the sides of a section in turns and print them; whether all went well."""
    began, checks = time.perf_counter(), Checks()
    workers: dict[str, Worker] = {}
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in SIDES[section]}

    def turn(name: str, steps: int, *, until: float) -> None:
        """A side's next block; a side that fails is left out from there on."""
        left = max(1.0, until * seconds - (time.perf_counter() - began))
        try:
            answer = workers[name].run(steps, limit=left)
        except RuntimeError as error:
            answer = {"failed": str(error)}
        if "failed" in answer:
            workers.pop(name).close()
            answers[name] = []
            checks(f"{name} runs ({answer['failed']})", False)
        else:
            answers[name].append(answer)

    for name in SIDES[section]:
        workers[name] = Worker(__file__, [f"--section={section}", f"--side={name}", *arguments])
    for name in list(workers):
        turn(name, 2, until=0.7)
    for block in range(sizes.blocks):
        # The first block is always made: without one there is nothing to tell.
        if block and time.perf_counter() - began > 0.8 * seconds:
            break
        for name in list(workers):
            turn(name, sizes.steps, until=0.95)
    for worker in workers.values():
        worker.close()
    tell(section, sizes, {name: each[1:] for name, each in answers.items() if len(each) > 1})
    told = {name: each[-1]["loss"] for name, each in answers.items() if each}
    for name, loss in told.items():
        checks(f"the loss of {name} is finite: {loss:.4f}", math.isfinite(loss))
    if {"mlmjax, xla", "mlmjax, cudnn"} <= set(told):
        xla, cudnn = told["mlmjax, xla"], told["mlmjax, cudnn"]
        equal = len(answers["mlmjax, xla"]) == len(answers["mlmjax, cudnn"])
        close = abs(xla - cudnn) < 0.02 * abs(xla)
        checks("attention by XLA and by cuDNN give the same loss to 2%", equal and close)
    return checks.kept


def tell(section: str, sizes: Sizes, blocks: dict[str, list[dict[str, Any]]]) -> None:
    """Print the table of a section's sides."""
    if not blocks:
        return
    units, unit = {
        "bert": (sizes.rows * sizes.length, "tokens"),
        "mae": (sizes.images, "images"),
    }[section]
    ceiling = max(block["product_rate"] for each in blocks.values() for block in each)
    first = next(iter(blocks))
    rows = []
    for name, found in blocks.items():
        step = statistics.median(block["seconds"] for block in found) / sizes.steps
        rate = statistics.median(block["rate"] for block in found)
        pairs = zip(blocks[first], found, strict=False)
        ratios = [theirs["seconds"] / ours["seconds"] for theirs, ours in pairs]
        rows.append(
            (
                name,
                f"{1e3 * step:.1f}",
                f"{units / step:,.0f}",
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
                f"{rate / 1e12:.2f}",
                f"{rate / ceiling:.1%}",
                f"{found[-1]['peak'] / 2**30:.2f}",
            )
        )
    what = {
        "bert": f"BERT, batch {sizes.rows}, length {sizes.length}",
        "mae": f"MAE, batch {sizes.images}, {sizes.image} x {sizes.image}",
    }[section]
    shape = sizes.bert if section == "bert" else sizes.encoder
    print(
        f"\n{what}, {shape[0]} layers of {shape[1]}, {DTYPE}; {len(blocks[first])} blocks of {sizes.steps} steps. "
        f"Measured product of {sizes.product} x {sizes.product}: {ceiling / 1e12:.2f} TFLOP/s.\n"
    )
    columns = (
        "",
        "ms a step",
        f"{unit}/s",
        f"times {first}",
        "TFLOP/s",
        "of the product",
        "peak GiB",
    )
    markdown(columns, rows)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    for row in (columns, ["---"] * len(columns), *rows):
        print("| " + " | ".join(row) + " |")
    print(flush=True)


def attention(sizes: Sizes) -> bool:
    """Time attention alone, forward and backward, by XLA and by cuDNN; whether they agree."""
    import jax
    import numpy as np
    from loss_memory import median_times, temporaries

    check_jax()
    checks = Checks()
    heads, size = sizes.bert[2], sizes.bert[1] // sizes.bert[2]
    rows = []
    for length in sizes.lengths:
        shape = (sizes.tokens // length, length, heads, size)
        arguments = [
            jax.random.normal(key, shape, DTYPE) for key in jax.random.split(jax.random.key(0), 4)
        ]
        lengths = jax.numpy.full(shape[0], length - length // 8, "int32")
        runs, memory = {}, {}
        for name in ("xla", "cudnn"):
            try:
                compiled = (
                    jax.jit(partial(attention_gradients, name)).lower(*arguments, lengths).compile()
                )
            except Exception as error:
                checks(f"attention by {name} at length {length} compiles ({reason(error)})", False)
                continue
            runs[name], memory[name] = partial(compiled, *arguments, lengths), temporaries(compiled)
        times = median_times(runs, repeats=7)
        rows += [
            (name, str(length), f"{1e3 * times[name]:.2f}", f"{memory[name] / 2**20:.1f}")
            for name in runs
        ]
        found = {
            name: [np.asarray(each, np.float32) for each in run()] for name, run in runs.items()
        }
        if len(found) == 2:
            apart = max(map(difference, found["cudnn"], found["xla"]))
            checks(f"they agree at length {length}: {apart:.1e} of the norm apart", apart < 0.02)
    print(
        f"\nForward and backward, {sizes.tokens} tokens, {heads} heads of {size}, an eighth padding.\n"
    )
    markdown(("attention", "length", "ms", "temporaries, MiB"), rows)
    return checks.kept


def attention_gradients(
    implementation: str, query: Any, keys: Any, value: Any, upstream: Any, lengths: Any
) -> Any:
    """Attention's result and the gradients of its inputs."""
    import jax

    attend = partial(
        jax.nn.dot_product_attention, key_value_seq_lengths=lengths, implementation=implementation
    )
    result, backward = jax.vjp(attend, query, keys, value)
    return result, *backward(upstream)


def difference(one: Any, other: Any) -> float:
    """The norm of the difference of two arrays, as a share of the second's."""
    import numpy as np

    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def loss(sizes: Sizes) -> bool:
    """Memory and time of the masked-token loss with and without chunks; whether they agree."""
    import jax
    import numpy as np
    from loss_memory import compare

    check_jax()
    checks = Checks()
    positions = sizes.rows * sizes.length
    targets = max(1, round(0.15 * positions))
    found = compare(
        positions,
        targets,
        30592,
        hidden=sizes.bert[1],
        vocabulary=30522,
        chunk=4096,
        dtype=DTYPE,
        repeats=5,
    )
    print(
        f"Loss of {targets} targets of {positions} positions, and its gradients, 30592 columns.\n"
    )
    rows = [
        (
            each.name,
            str(each.tokens),
            f"{each.memory / 2**20:,.1f}",
            f"{each.memory / found[0].memory:.3f}",
            f"{1e3 * each.seconds:.2f}",
        )
        for each in found
    ]
    markdown(("loss", "tokens", "temporaries, MiB", "of the first", "ms"), rows)
    plain, chunked = (
        [np.asarray(leaf, np.float32) for leaf in jax.tree.leaves(each.value)] for each in found[1:]
    )
    apart = max(map(difference, chunked, plain))
    checks(
        f"loss and gradients agree with and without chunks: {apart:.1e} of the norm apart",
        apart < 0.01,
    )
    checks(
        f"chunks need less memory than gathered logits: {found[2].memory / found[1].memory:.3f}",
        found[2].memory < found[1].memory,
    )
    return checks.kept


def card() -> str | None:
    """Name, memory and driver of the first NVIDIA GPU; None where there is none."""
    asked = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return said.splitlines()[0].strip() if said.strip() else None


def versions() -> str:
    """Of Python and the packages that are installed."""
    found = [f"Python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def run_section(name: str, arguments: Sequence[str], seconds: float) -> bool:
    """Run a section in a process of its own, and end it and its sides at the limit; whether it went well."""
    print(f"\n### {name}\n", flush=True)
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, __file__, f"--section={name}", f"--seconds={seconds}", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    late = False
    try:
        said, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        late = True
        os.killpg(process.pid, signal.SIGKILL)
        said, errors = process.communicate()
    print(said, end="")
    took = time.perf_counter() - began
    if late:
        print(f"- **FAILED**: it was ended at its limit of {seconds:.0f} s")
    elif process.returncode:
        print(errors, file=sys.stderr)
        if process.returncode != 1 or "Traceback" in errors:
            last = (errors.strip().splitlines() or ["it said nothing"])[-1]
            print(f"- **FAILED** with status {process.returncode}: {last[:300]}")
    print(f"\nTook {took:.0f} s.", flush=True)
    return process.returncode == 0 and not late


def main() -> None:
    """Print what was measured; status 2 without a GPU, 1 where something failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sections", nargs="+", choices=LIMITS, default=list(LIMITS))
    parser.add_argument("--rows", type=int, help=f"BERT's batch ({FULL.rows})")
    parser.add_argument("--images", type=int, help=f"MAE's batch ({FULL.images})")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the script")
    parser.add_argument("--allow-cpu", action="store_true", help="run without a GPU")
    parser.add_argument("--section", choices=LIMITS, help=argparse.SUPPRESS)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=60, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = TINY if options.tiny else FULL
    chosen = {name: getattr(options, name) for name in ("rows", "images")}
    given = {name: value for name, value in chosen.items() if value is not None}
    if any(value < 1 for value in given.values()):
        parser.error("--rows and --images must be at least 1")
    sizes = sizes._replace(**given)
    arguments = [f"--{name}={value}" for name, value in given.items()]
    arguments += ["--tiny"] * options.tiny
    if options.side:
        serve_side(options.section, options.side, sizes)
        return
    if options.section:
        alone = {"attention": attention, "loss": loss}
        if options.section in alone:
            kept = alone[options.section](sizes)
        else:
            kept = models(options.section, sizes, arguments, options.seconds)
        sys.exit(not kept)

    found = card()
    if found is None and not options.allow_cpu:
        print(
            "gpu.py: there is no NVIDIA GPU here (nvidia-smi tells of none), so nothing was measured; "
            "--tiny --allow-cpu tries the script on a CPU.",
            file=sys.stderr,
        )
        sys.exit(2)
    os.environ["GPU_DEVICE"] = "cuda" if found else "cpu"
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    if not found:
        os.environ["JAX_PLATFORMS"] = "cpu"
    end = time.perf_counter() + TOTAL
    print(
        f"{found or 'CPU, so the figures mean nothing'}; {datetime.date.today()}; {versions()}",
        flush=True,
    )
    kept = True
    for name in options.sections:
        left = min(LIMITS[name], end - time.perf_counter())
        if left < 1:
            print(f"\n### {name}\n\n- **FAILED**: no time was left")
            kept = False
            continue
        kept &= run_section(name, arguments, left)
    sys.exit(not kept)


if __name__ == "__main__":
    main()
