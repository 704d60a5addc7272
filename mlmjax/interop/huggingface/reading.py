"""From a model folder to a run: which model it is, and its tensors as our parameters."""

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import SingleDeviceSharding
from pydantic import ValidationError

from mlmjax.core.errors import UserError
from mlmjax.data.preparation.workers import processes
from mlmjax.data.tokenizer import Tokenizer
from mlmjax.data.tokenizer_files import FILES
from mlmjax.experiment import Experiment, validation_message
from mlmjax.interop.huggingface.families import family_of
from mlmjax.interop.huggingface.family import Given, Table
from mlmjax.interop.huggingface.origin import CONFIG, Origin
from mlmjax.interop.huggingface.placing import placed
from mlmjax.interop.huggingface.tensors import Tensors, Weights
from mlmjax.sharding import AnyMesh, parameter_shardings
from mlmjax.training.folder import Run
from mlmjax.training.state import Parameters, build_parameters, module_graph, shapes

_MOST = 8
"""Names that a message lists."""


@dataclass(frozen=True)
class Imported:
    """A model that was read.

    Attributes:
        run: as if it had been trained here.
        parameters: of its model.
        architecture: what the weights are of: a class of Hugging Face, or the name of another layout.
        untrained: parts of our model that the file has not; they are drawn.
        buffers: tensors of the file that are no parameters.
        origin: what a model folder came with.
        assumed: a sentence on what the file does not say.
    """

    run: Run
    parameters: Parameters
    architecture: str
    untrained: tuple[str, ...]
    buffers: tuple[str, ...]
    origin: Origin | None = None
    assumed: str = ""


def from_huggingface(path: str | Path, *, mesh: AnyMesh | None = None) -> Run:
    """The model of a Hugging Face model folder.

    Args:
        path: a folder with ``config.json``, ``model.safetensors`` (or several, with their index) and, of text,
            a tokenizer.
        mesh: devices over which the parameters are laid; by default one.

    Returns:
        the model with its config and tokenizer, at step 0. Parts that the file does not have are drawn and are
        named in ``untrained``.

    Raises:
        UserError: the folder cannot be used; it says why.
    """
    return read(Path(path), mesh=mesh).run


def read(folder: Path, *, mesh: AnyMesh | None = None) -> Imported:
    """See :func:`from_huggingface`."""
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}: give one that holds a config.json.")
    tensors = Tensors(folder)
    origin = Origin.of(folder, tensors)
    family = family_of(origin.architecture)
    given = Given(origin.config, folder / CONFIG)
    try:
        experiment = family.experiment(given)
    except (ValidationError, TypeError) as error:
        said = validation_message(error) if isinstance(error, ValidationError) else str(error)
        raise UserError(f"{folder / CONFIG}: {said}") from error
    prefix = family.prefix if any(name.startswith(family.prefix) for name in tensors) else ""
    table = family.table(experiment, prefix)
    tokenizer = _tokenizer(folder, experiment)
    imported = assemble(
        tensors,
        table,
        experiment,
        architecture=origin.architecture,
        told_by=CONFIG,
        tokenizer=tokenizer,
        mesh=mesh,
    )
    run = replace(imported.run, classes=family.classes(given))
    return replace(imported, run=run, origin=origin)


def assemble(
    tensors: Weights,
    table: Table,
    experiment: Experiment,
    *,
    architecture: str,
    told_by: str,
    tokenizer: Tokenizer | None = None,
    mesh: AnyMesh | None = None,
) -> Imported:
    """The model of some tensors.

    Args:
        tensors: of the model, each of which is read once.
        table: what they become.
        experiment: that would have trained it.
        architecture: what the tensors are of.
        told_by: what told the model's sizes, for messages.
        tokenizer: of text.
        mesh: devices over which the parameters are laid; by default one.

    Raises:
        UserError: tensors are missing, superfluous, of another shape, or not what they should repeat.
    """
    aliases = {table.modern(name): name for name in tensors}
    graph, model = module_graph(experiment.model)
    named = _flat(shapes(model))
    parts = _check(table, named, tensors, aliases, told_by)
    untrained = tuple(sorted({row.part for row in table.rows} - parts | table.absent))

    shardings = _flat(parameter_shardings(mesh, model)) if mesh is not None else {}
    rows = {tuple(row.ours.split("/")): row for row in table.rows if row.part in parts}
    drawn = _drawn(experiment, [name for name in named if name not in rows])
    here = SingleDeviceSharding(jax.local_devices()[0])
    flat: dict[tuple[str, ...], jax.Array] = {}
    with ThreadPoolExecutor(processes(0)) as pool:
        for name, shape in named.items():
            sharding = shardings.get(name, here)
            flat[name] = (
                placed(
                    rows[name],
                    lambda each: tensors.read(aliases[each]),
                    shape.shape,
                    sharding,
                    pool=pool,
                )
                if name in rows
                else jax.device_put(drawn[name], sharding)
            )
    parameters = nnx.traversals.unflatten_mapping(flat)
    run = Run(
        nnx.merge(graph, parameters),
        experiment,
        0,
        str(tensors.path),
        tokenizer,
        untrained=untrained,
    )
    kept = (*table.buffers, *table.kept)
    buffers = tuple(aliases[name] for name in kept if name in aliases)
    return Imported(run, parameters, architecture, untrained, buffers)


def _drawn(
    experiment: Experiment, names: list[tuple[str, ...]]
) -> dict[tuple[str, ...], jax.Array]:
    """Those initial parameters, and no others: what is not returned is not computed."""

    def draw() -> list[jax.Array]:
        whole = _flat(build_parameters(experiment.model, 0))
        return [whole[name] for name in names]

    return dict(zip(names, jax.jit(draw)(), strict=True)) if names else {}


def _check(
    table: Table,
    named: Mapping[tuple[str, ...], jax.ShapeDtypeStruct],
    tensors: Weights,
    aliases: Mapping[str, str],
    told_by: str,
) -> set[str]:
    """The parts of the model that the files hold.

    Raises:
        UserError: tensors are missing, superfluous, of another shape, or not what they should repeat.
    """
    wanted: dict[str, tuple[str, tuple[int, ...]]] = {}
    for row in table.rows:
        shape = named[tuple(row.ours.split("/"))].shape
        # Nothing is computed: one zero is seen as an array of any shape.
        for name, tensor in row.to_theirs(np.broadcast_to(np.float32(0), shape)):
            wanted[name] = (row.part, tensor.shape)
    parts = {part for name, (part, _) in wanted.items() if name in aliases} | {"encoder"}
    missing = [
        f"{name} {shape}"
        for name, (part, shape) in wanted.items()
        if part in parts and name not in aliases
    ]
    if missing:
        raise UserError(f"{tensors.path} lacks {_listed(missing)}.")
    known = {*wanted, *table.copies, *table.buffers, *table.kept}
    extra = [f"{name} {tensors[aliases[name]].shape}" for name in aliases if name not in known]
    if extra:
        raise UserError(
            f"{tensors.path} has tensors that the model of its {told_by} does not: {_listed(extra)}."
        )
    other = [
        f"{name} is {tensors[aliases[name]].shape} and not {shape}"
        for name, (_, shape) in wanted.items()
        if name in aliases and tensors[aliases[name]].shape != shape
    ]
    if other:
        raise UserError(f"{tensors.path} does not fit its {told_by}: {_listed(other)}.")
    for copy, original in table.copies.items():
        if copy in aliases and original in aliases and not _alike(tensors, aliases, copy, original):
            raise UserError(
                f"{tensors.path}: {copy} is not a copy of {original}. Models whose decoder is not the "
                "token table (tied) are not supported."
            )
    for name, value in table.buffers.items():
        if name in aliases and not _is(tensors.read(aliases[name]), value):
            raise UserError(
                f"{tensors.path}: {name} has not the values that the model has there (0, 1, ... or sines and "
                f"cosines), or another shape than {value.shape}."
            )
    return parts


def _is(found: np.ndarray, value: np.ndarray) -> bool:
    """Is a tensor what it must be, but for rounding, which half precision does more of?"""
    floating = jnp.issubdtype(found.dtype, jnp.floating)
    rounding = float(jnp.finfo(found.dtype).eps) if floating else 0.0
    return found.shape == value.shape and bool(
        np.allclose(found.astype(value.dtype), value, rtol=0, atol=max(1e-5, rounding))
    )


def _alike(tensors: Weights, aliases: Mapping[str, str], first: str, second: str) -> bool:
    return np.array_equal(tensors.read(aliases[first]), tensors.read(aliases[second]))


def _tokenizer(folder: Path, experiment: Experiment) -> Tokenizer | None:
    """The tokenizer of a model of text, where the folder has one.

    Raises:
        UserError: it does not go with the model's token table.
    """
    if experiment.data.abstract_vocabulary() is None:
        return None
    files = [folder / name for name in FILES if (folder / name).is_file()]
    if not files:
        return None
    tokenizer = Tokenizer.load(files[0], lowercase=_lowercase(folder))
    size, table = tokenizer.vocabulary.size, getattr(experiment.model, "vocabulary", None)
    if size != table:
        raise UserError(
            f"The tokenizer {files[0]} has {size} tokens, and the model's token table {table} rows: they do not "
            "belong together."
        )
    return tokenizer


def _lowercase(folder: Path) -> bool:
    """Whether a ``vocab.txt`` is meant for lower-cased text, as tokenizer_config.json says."""
    file = folder / "tokenizer_config.json"
    try:
        return bool(json.loads(file.read_text(encoding="utf-8"))["do_lower_case"])
    except (OSError, ValueError, KeyError, TypeError):
        return True


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more


def _flat(tree: Any) -> dict[tuple[str, ...], Any]:
    return {
        tuple(key.key for key in path): leaf
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }
