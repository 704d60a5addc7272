"""From a run to a folder that serves it."""

import json
import math
from pathlib import Path
from typing import Any

import jax
import tokenizers
from jax import export
from safetensors.numpy import save_file

from mlmjax.core.errors import UserError
from mlmjax.data.tokenizer import Tokenizer
from mlmjax.interop.folders import refuse_existing, written_whole
from mlmjax.interop.stablehlo.lowering import lowered, parameter_names
from mlmjax.interop.stablehlo.programs import Program, flat_parameters, program_of
from mlmjax.interop.stablehlo.readme import readme
from mlmjax.models.bert import BertEncoder
from mlmjax.training.folder import Run, RunFolder

ARTIFACT, PARAMETERS = "model.jax_export", "parameters.safetensors"
TOKENIZER, CLASSES, SIGNATURE = "tokenizer.json", "classes.json", "signature.json"

ROUNDED = 32
"""Texts are padded to a multiple of this, so that few lengths are compiled."""


def to_stablehlo(run: Run, folder: str | Path) -> Program:
    """Write a folder from which jax alone serves the model: no mlmjax, no flax.

    The artifact is of ``jax.export``, for CPUs, NVIDIA GPUs and TPUs, any number of rows and, of text, any length
    up to the model's. Without masking or dropout, it computes, of a run that

    - pretrains on text: logits of every token, and the last hidden states (these alone where the masked-token head
      was never trained);
    - classifies texts or images: logits of the classes;
    - pretrains on images: the encoder's last hidden states of raw pixels.

    All are float32. Attention is that of ``xla``, whatever the run was trained with, since the kernels are each of
    one platform. Beside the artifact are the parameters that it reads, the tokenizer or the names of the classes,
    ``signature.json``, the run's manifest, and a README that says how it is used.

    Args:
        run: as :func:`mlmjax.load` or :func:`mlmjax.from_huggingface` gives it.
        folder: to be made.

    Returns:
        what the artifact computes.

    Raises:
        UserError: the folder exists or cannot be written; or the model is of no such kind, was never trained for
            it, or is of text and has no tokenizer.
    """
    out = Path(folder)
    refuse_existing(out)
    program = program_of(run)
    if run.tokenizer is None and isinstance(run.model, BertEncoder):
        raise UserError(
            f"{run.folder} has no tokenizer, and the artifact would be given tokens: put a tokenizer.json or "
            "vocab.txt beside the weights."
        )
    parameters = flat_parameters(run.model)
    shapes = {k: jax.ShapeDtypeStruct(v.shape, v.dtype) for k, v in parameters.items()}
    exported = lowered(program, shapes)
    manifest = RunFolder(run.folder).manifest
    record = manifest.read_text() if manifest.exists() else None
    with written_whole(out) as partial:
        (partial / ARTIFACT).write_bytes(exported.serialize())
        save_file(
            {name: parameters[name] for name in parameter_names(exported)}, partial / PARAMETERS
        )
        if run.tokenizer is not None:
            _serving(run.tokenizer, run.model.config.positions).save(str(partial / TOKENIZER))
        if run.classes:
            (partial / CLASSES).write_text(json.dumps(run.classes, indent=1) + "\n")
        signature = json.dumps(_signature(program, exported, run), indent=2)
        (partial / SIGNATURE).write_text(signature + "\n")
        if record is not None:
            (partial / manifest.name).write_text(record)
        said = readme(run, program, name=out.name, classes=bool(run.classes))
        (partial / "README.md").write_text(said, encoding="utf-8")
    return program


def _serving(tokenizer: Tokenizer, longest: int) -> tokenizers.Tokenizer:
    """The tokenizer as the artifact needs it: it adds special tokens, cuts, pads, and reads the mask in a text."""
    whole, vocabulary = tokenizer.with_special_tokens(), tokenizer.vocabulary
    # A space before the mask belongs to the token that the mask hides.
    mask = tokenizers.AddedToken(tokenizer.mask_token, lstrip=True, normalized=False, special=True)
    whole.add_special_tokens([mask])
    whole.enable_truncation(longest)
    whole.enable_padding(
        pad_id=vocabulary.padding,
        pad_token=tokenizer.token(vocabulary.padding),
        pad_to_multiple_of=math.gcd(ROUNDED, longest),
    )
    return whole


def _signature(program: Program, exported: export.Exported, run: Run) -> dict[str, Any]:
    """What signature.json says."""
    found = jax.tree.unflatten(exported.out_tree, exported.out_avals)
    return {
        "model": program.title,
        "step": run.step,
        "artifact": ARTIFACT,
        "call": f"outputs = call(parameters, {', '.join(program.names)})",
        "parameters": {"file": PARAMETERS, "as": "a dict of arrays by name"},
        "inputs": [
            {
                "name": each.name,
                "shape": list(each.shape),
                "dtype": each.dtype,
                "meaning": each.meaning,
            }
            for each in program.inputs
        ],
        "limits": list(program.limits),
        "outputs": {
            name: {
                "shape": [size if isinstance(size, int) else str(size) for size in each.shape],
                "dtype": str(each.dtype),
                "meaning": program.outputs[name],
            }
            for name, each in found.items()
        },
        "platforms": list(exported.platforms),
        "jax": {
            "version": jax.__version__,
            "calling_convention": exported.calling_convention_version,
            "calling_conventions_of_this_version": [
                export.minimum_supported_calling_convention_version,
                export.maximum_supported_calling_convention_version,
            ],
            "newer_by_at_most": "6 months",
            "older_by_at_most": "3 weeks",
        },
    }
