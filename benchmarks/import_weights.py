"""Importing BERT-large's weights: seconds and peak memory against reading the file.

    python benchmarks/import_weights.py
    pip install -e '.[benchmark]'  # for the side of transformers

A ``BertForPreTraining`` of random weights is written; then each side runs in a fresh process, in turns:

- ``read``: the file's bytes, into memory that was never used;
- ``import``: ``from_huggingface``, all parameters ready on one device;
- ``mesh``: the same on eight devices of a CPU, fsdp 8;
- ``transformers``: its ``from_pretrained``, where it is installed; it copies nothing, and its pages are looked at.

The file lies in the page cache; with ``--cold`` it is dropped from there before each side. The clock starts when
the modules are imported and the devices found; how long that took is said beside it. Before it starts, each side
uses and frees twice the file's size of memory: a virtual machine may have given free memory back to its host, and
getting it again takes seconds a GB, whoever asks. Peaks are the process's most resident memory (mapped files count
as well) less what it had before.

Prediction: of the 4.7 s that an import took, 2 s are copies with large strides into the stacked kernels, 1 s is
reading tensors and headers into memory of their own, 0.5 s a copy to the device, 0.3 s stacking queries, keys and
values, 0.4 s tracing the module. Without these but for tracing, with tiles that stay in the cache and on two cores:
1.0 s, 1.7 times reading; on eight devices 1.2 s; transformers 1 s.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

LARGE = {"layers": 24, "hidden": 1024, "vocabulary": 30522}
DEVICES = 8


def tensor_shapes(layers: int, hidden: int, vocabulary: int) -> Iterator[tuple[str, list[int]]]:
    """The tensors of a ``BertForPreTraining``: names and shapes."""

    def linear(name: str, outputs: int, inputs: int) -> Iterator[tuple[str, list[int]]]:
        yield from ((f"{name}.weight", [outputs, inputs]), (f"{name}.bias", [outputs]))

    def norm(name: str) -> Iterator[tuple[str, list[int]]]:
        yield from ((f"{name}.weight", [hidden]), (f"{name}.bias", [hidden]))

    for name, rows in (("word", vocabulary), ("position", 512), ("token_type", 2)):
        yield f"bert.embeddings.{name}_embeddings.weight", [rows, hidden]
    yield from norm("bert.embeddings.LayerNorm")
    for layer in range(layers):
        at = f"bert.encoder.layer.{layer}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            yield from linear(f"{at}.attention.{name}", hidden, hidden)
        yield from norm(f"{at}.attention.output.LayerNorm")
        yield from linear(f"{at}.intermediate.dense", 4 * hidden, hidden)
        yield from linear(f"{at}.output.dense", hidden, 4 * hidden)
        yield from norm(f"{at}.output.LayerNorm")
    yield from linear("bert.pooler.dense", hidden, hidden)
    yield "cls.predictions.bias", [vocabulary]
    yield from linear("cls.predictions.transform.dense", hidden, hidden)
    yield from norm("cls.predictions.transform.LayerNorm")
    yield from linear("cls.seq_relationship", 2, hidden)


def write_model(folder: Path, *, layers: int, hidden: int, vocabulary: int) -> Path:
    """A model folder of random weights; returns the file of weights."""
    from safetensors.numpy import save_file

    random = np.random.default_rng(0)
    tensors = {
        name: random.standard_normal(shape, np.float32)
        for name, shape in tensor_shapes(layers, hidden, vocabulary)
    }
    config = {
        "architectures": ["BertForPreTraining"],
        "model_type": "bert",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": max(1, hidden // 64),
        "intermediate_size": 4 * hidden,
        "vocab_size": vocabulary,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weights = folder / "model.safetensors"
    save_file(tensors, weights, metadata={"format": "pt"})
    with weights.open("rb+") as file:
        os.fsync(file.fileno())
    return weights


def read_side(folder: Path) -> Callable[[], Any]:
    """The file's bytes into fresh memory, in large pages where numpy can have them."""

    def read() -> np.ndarray:
        return np.fromfile(folder / "model.safetensors", np.uint8)

    return read


def import_side(folder: Path, *, sharded: bool) -> Callable[[], Any]:
    """The parameters of the imported model, ready."""
    import jax
    from flax import nnx

    from mlmjax import from_huggingface
    from mlmjax.sharding import MeshConfig

    mesh = MeshConfig(data=1, fsdp=-1).make() if sharded else None
    jax.devices()

    def load() -> Any:
        model = from_huggingface(folder, mesh=mesh).model
        return jax.block_until_ready(nnx.state(model, nnx.Param))

    return load


def transformers_side(folder: Path) -> Callable[[], Any]:
    """The model of transformers, whose tensors stay mapped: a value of each page is looked at."""
    from transformers import BertForPreTraining

    def load() -> Any:
        model = BertForPreTraining.from_pretrained(folder)
        for parameter in model.parameters():
            parameter.detach().reshape(-1)[::1024].sum()
        return model

    return load


SIDES: dict[str, Callable[[Path], Callable[[], Any]]] = {
    "read": read_side,
    "import": lambda folder: import_side(folder, sharded=False),
    "mesh": lambda folder: import_side(folder, sharded=True),
    "transformers": transformers_side,
}


def resident(what: str) -> int:
    """Bytes of this process in memory now (``VmRSS``) or at most so far (``VmHWM``)."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[what].split()[0]) * 1024


def measure(name: str, folder: Path) -> dict[str, float]:
    """One call of a side.

    Returns:
        seconds, of the clock and of the cores; the seconds of imports before it; and bytes at most beyond those
        that were in use before.
    """
    start = time.perf_counter()
    call = SIDES[name](folder)
    ready = time.perf_counter()
    np.empty(2 * (folder / "model.safetensors").stat().st_size, np.uint8).fill(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, used = resident("VmRSS"), time.process_time()
    clock = time.perf_counter()
    kept = call()
    seconds, used = time.perf_counter() - clock, time.process_time() - used
    peak = resident("VmHWM") - before
    del kept
    return {"seconds": seconds, "processor": used, "imports": ready - start, "peak": peak}


def in_fresh_process(name: str, folder: Path) -> dict[str, float]:
    """:func:`measure` in a process of its own."""
    flags = f"--xla_force_host_platform_device_count={DEVICES if name == 'mesh' else 1}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    command = [sys.executable, __file__, f"--serve={name}", f"--folder={folder}"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(f"the side {name} failed:\n{ended.stderr}")
    return json.loads(ended.stdout.splitlines()[-1])


def drop_from_cache(file: Path) -> None:
    """Drop a file's pages from the page cache; they must have been written."""
    with file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def compare(folder: Path, weights: Path, names: list[str], *, repeats: int, cold: bool) -> None:
    """Run the sides in turns and print each one's medians."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            if cold:
                drop_from_cache(weights)
            else:
                np.fromfile(weights, np.uint8)
            found[name].append(in_fresh_process(name, folder))
    size = weights.stat().st_size
    print(f"{weights.name}: {size / 1e9:.2f} GB, {'cold' if cold else 'in the page cache'}")
    for name, runs in found.items():
        middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        ratios = [
            run["seconds"] / read["seconds"]
            for run, read in zip(runs, found[names[0]], strict=True)
        ]
        spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
        print(
            f"{name:12} {middle['seconds']:5.2f} s, of cores {middle['processor']:.2f}, "
            f"after {middle['imports']:.1f} s of imports; "
            f"{statistics.median(ratios):.2f} times {names[0]} {spread}; "
            f"peak {middle['peak'] / size:.2f} times the file"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds and peak memory of importing BERT-large.")
    parser.add_argument("--layers", type=int, default=LARGE["layers"])
    parser.add_argument("--hidden", type=int, default=LARGE["hidden"])
    parser.add_argument("--vocabulary", type=int, default=LARGE["vocabulary"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="drop the file from the page cache")
    parser.add_argument("--folder", type=Path, help="where the model is kept; by default nowhere")
    parser.add_argument("--serve", choices=SIDES, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        print(json.dumps(measure(asked.serve, asked.folder)))
        return
    there = find_spec("torch") and find_spec("transformers")
    names = [name for name in SIDES if name != "transformers" or there]
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        weights = folder / "model.safetensors"
        if not weights.exists():
            sizes = {name: getattr(asked, name) for name in LARGE}
            write_model(folder, **sizes)
        compare(folder, weights, names, repeats=asked.repeats, cold=asked.cold)


if __name__ == "__main__":
    main()
