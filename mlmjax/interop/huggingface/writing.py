"""From a run to a model folder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from flax import nnx

from mlmjax.core.errors import UserError
from mlmjax.data.tokenizer import Tokenizer
from mlmjax.interop.folders import refuse_existing, written_whole
from mlmjax.interop.huggingface.card import model_card
from mlmjax.interop.huggingface.families import architectures_for, family_of
from mlmjax.interop.huggingface.family import Family, Table
from mlmjax.interop.huggingface.origin import CONFIG, SIDE, Origin
from mlmjax.interop.huggingface.tensors import write
from mlmjax.training.folder import Run, RunFolder
from mlmjax.training.state import plain

PROCESSOR = "preprocessor_config.json"

_DTYPES: dict[str, Any] = {"bfloat16": ml_dtypes.bfloat16}


def to_huggingface(run: Run, folder: str | Path, *, architecture: str | None = None) -> str:
    """Write a model folder that transformers' ``from_pretrained`` reads.

    A model that was imported and not trained since is written as it came: the same tensors, names and types.

    Args:
        run: as :func:`mlmjax.load` or :func:`mlmjax.from_huggingface` gives it.
        folder: to be made.
        architecture: a class of transformers; by default that of the import, or the family's one for pretraining.

    Returns:
        the architecture.

    Raises:
        UserError: the folder exists or cannot be written; or there is no such class that the model fits.
    """
    out = Path(folder)
    refuse_existing(out)
    origin = Origin.behind(Path(run.folder))
    name = _architecture(run, origin, architecture)
    family = family_of(name)
    tensors = _tensors(run, family, name, origin)
    with written_whole(out) as partial:
        write(tensors, partial)
        config = _config(run, family, name, origin, tensors)
        (partial / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        if origin is not None:
            origin.copy_side_files(partial)
        if run.tokenizer is not None and not any((partial / one).exists() for one in SIDE):
            _save_tokenizer(run, run.tokenizer, partial)
        processor = family.processor(run.config)
        if processor is not None and not (partial / PROCESSOR).exists():
            (partial / PROCESSOR).write_text(json.dumps(processor, indent=2) + "\n")
        (partial / "README.md").write_text(model_card(run, name, out.name), encoding="utf-8")
        manifest = RunFolder(run.folder).manifest
        if manifest.exists():
            (partial / "mlmjax_manifest.json").write_text(manifest.read_text())
    return name


def _architecture(run: Run, origin: Origin | None, asked: str | None) -> str:
    """The class that is written.

    Raises:
        UserError: the model does not fit it, or it has parts that were never trained.
    """
    known = architectures_for(run.config)
    before = None if origin is None else origin.architecture
    if asked is None:
        name = next(iter(known))
        if before in known and (run.untrained or "mlm" in known[before].architectures[before]):
            name = before
    elif asked in known:
        name = asked
    else:
        raise UserError(
            f"--architecture {asked}: such a model can be {', '.join(known)}."
            if not _known(asked)
            else f"--architecture {asked} is for other models; this one can be {', '.join(known)}."
        )
    drawn = sorted(set(known[name].architectures[name]) & set(run.untrained) - {"pooler"})
    if drawn and name != before:
        raise UserError(
            f"{name} needs {', '.join(drawn)}, which the imported weights did not have: train the run first, or "
            f"choose another with --architecture: {', '.join(known)}."
        )
    return name


def _known(architecture: str) -> bool:
    try:
        family_of(architecture)
    except UserError:
        return False
    return True


def _tensors(
    run: Run, family: Family, architecture: str, origin: Origin | None
) -> dict[str, np.ndarray]:
    """The tensors of a class, as the origin had them where it is that class's."""
    flat = {
        "/".join(map(str, path)): np.asarray(jax.device_get(leaf))
        for path, leaf in _leaves(plain(nnx.state(run.model, nnx.Param)))
    }
    same = origin is not None and origin.architecture == architecture
    names = origin.dtypes if origin is not None and same else {}
    prefixed = architecture != family.encoder
    if names:
        prefixed = any(name.startswith(family.prefix) for name in names)
    table = family.table(run.config, family.prefix if prefixed else "")
    parts = family.architectures[architecture]
    made = {
        name: tensor
        for row in table.rows
        if row.part in parts or set(row.names(1)[0]) <= {table.modern(name) for name in names}
        for name, tensor in row.to_theirs(flat[row.ours])
    }
    if origin is None or not names:
        return made | {
            name: table.buffers[name] for part in parts for name in table.needed.get(part, ())
        }
    return _as_before(made, table, origin, exact=run.step == 0)


def _as_before(
    made: Mapping[str, np.ndarray], table: Table, origin: Origin, *, exact: bool
) -> dict[str, np.ndarray]:
    """The tensors under the names, and if they were not trained since in the types, that a file had."""
    out = {}
    names = origin.dtypes
    for name, kind in names.items():
        known = table.modern(name)
        value = made.get(table.copies.get(known, known))
        if value is None:
            value = origin.value(name)
        elif exact:
            value = value.astype(_DTYPES.get(kind, kind))
        out[name] = value
    known_names = map(table.modern, names)
    left = {table.copies.get(name, name) for name in known_names}
    return out | {name: value for name, value in made.items() if name not in left}


def _config(
    run: Run,
    family: Family,
    architecture: str,
    origin: Origin | None,
    tensors: Mapping[str, np.ndarray],
) -> dict[str, Any]:
    ours = family.config(run)
    if origin is not None and origin.architecture in family.architectures:
        # What we do not know of is kept; what we know has not changed, but for the trained parts.
        ours = ours | origin.config
    types = {tensor.dtype.name for tensor in tensors.values() if tensor.dtype.kind != "i"}
    return {
        **ours,
        "architectures": [architecture],
        "dtype": types.pop() if len(types) == 1 else "float32",
    }


def _save_tokenizer(run: Run, tokenizer: Tokenizer, folder: Path) -> None:
    """Write a tokenizer that adds the special tokens around a text, as transformers expects of a tokenizer."""
    tokenizer.with_special_tokens().save(str(folder / "tokenizer.json"))
    special = tokenizer.vocabulary
    roles = {
        "pad_token": special.padding,
        "unk_token": special.unknown,
        "cls_token": special.start,
        "sep_token": special.separator,
        "mask_token": special.mask,
    }
    length = getattr(run.config.model, "positions", None)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": length,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        **{role: tokenizer.token(id) for role, id in roles.items()},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def _leaves(tree: Any) -> list[tuple[tuple[str, ...], Any]]:
    found = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(tuple(key.key for key in path), leaf) for path, leaf in found]
