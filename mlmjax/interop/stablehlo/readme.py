"""The README of an exported folder; its code is meant to be copied, and runs as it stands."""

from mlmjax.interop.stablehlo.programs import HIDDEN, LOGITS, Program
from mlmjax.training.folder import Run

_FENCE = "```"


def readme(run: Run, program: Program, *, name: str, classes: bool) -> str:
    """Markdown: what is computed, and a script that computes it.

    Args:
        run: that was exported.
        program: what its artifact computes.
        name: of the folder.
        classes: whether the folder names classes.
    """
    text = run.tokenizer is not None
    given = ", ".join(program.names)
    outputs = "\n".join(f"- `{each}`: {meaning}" for each, meaning in program.outputs.items())
    trained = f"trained for {run.step:,} steps" if run.step else "imported"
    masks = f" {run.tokenizer.mask_token}" if run.tokenizer and _fills_masks(program) else ""
    lengths = " and of `length`" if text else ""
    return f"""# {name}

A {program.title} that was {trained} with mlmjax, as a program that jax runs alone.

{_FENCE}
pip install jax flatbuffers numpy safetensors{" tokenizers" if text else ""}
{_FENCE}

In this folder:

{_FENCE}python
{_imports(text=text, classes=classes)}

call = jax.jit(export.deserialize(Path("model.jax_export").read_bytes()).call)
parameters = jax.device_put(load_file("parameters.safetensors"))

{_text_inputs(masks) if text else _image_inputs(program)}

outputs = call(parameters, {given})
print({{name: array.shape for name, array in outputs.items()}})
{_shown(run, program, classes=classes)}{_FENCE}

{outputs}

`signature.json` has shapes and types, and the versions of jax that read the artifact: up to 6 months newer and 3
weeks older than the one that wrote it. It runs on CPUs, NVIDIA GPUs and TPUs. Each new size of `batch`{lengths} is
compiled once.
"""


def _imports(*, text: bool, classes: bool) -> str:
    lines = [
        *(["import json"] if classes else []),
        *(["import unicodedata"] if text else []),
        "from pathlib import Path",
        "",
        "import jax",
        "import numpy as np",
        "from jax import export",
        "from safetensors.numpy import load_file",
        *(["from tokenizers import Tokenizer"] if text else []),
    ]
    return "\n".join(lines)


def _text_inputs(masks: str) -> str:
    return f"""texts = ["A{masks} text.", "Another text, which is longer than the first."]
plain = [" ".join(unicodedata.normalize("NFC", text).split()) for text in texts]
rows = Tokenizer.from_file("tokenizer.json").encode_batch(plain)  # of pairs: [(first, second), ...]
tokens = np.array([row.ids for row in rows], np.int32)
segments = np.array([row.type_ids for row in rows], np.int32)
valid = np.array([row.attention_mask for row in rows], bool)"""


def _image_inputs(program: Program) -> str:
    (pixels,) = program.inputs
    _, *sizes = pixels.shape
    shape = ", ".join(map(str, (2, *sizes)))
    return f"""# Your images stand here: raw pixels, scaled to this height and width.
highest = np.iinfo(np.{pixels.dtype}).max
pixels = np.random.default_rng(0).integers(0, highest, ({shape}), np.{pixels.dtype}, endpoint=True)"""


def _fills_masks(program: Program) -> bool:
    return {LOGITS, HIDDEN} <= set(program.outputs)


def _shown(run: Run, program: Program, *, classes: bool) -> str:
    """What the script prints beside the shapes."""
    if classes:
        return """classes = json.loads(Path("classes.json").read_text())
print([classes[number] for number in outputs["logits"].argmax(axis=1)])
"""
    if run.tokenizer is None or not _fills_masks(program):
        return ""
    mask = run.tokenizer.vocabulary.mask
    return f"""best = np.array(outputs["logits"].argmax(axis=-1))
print(best[tokens == {mask}])  # ids of the likeliest tokens for each {run.tokenizer.mask_token} in the texts
"""
