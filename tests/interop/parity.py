"""A model of transformers against ours: the same numbers, from a golden file or computed at once."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from mlmjax.core.types import Mask
from mlmjax.interop.huggingface.reading import Imported, read
from mlmjax.nn.attention import Visibility

TOLERANCE = 1e-5


def write_folder(case: dict[str, Any], folder: Path) -> Path:
    """The model folder of a case, without a tokenizer."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(str(case["config"]))
    if "processor" in case:
        (folder / "preprocessor_config.json").write_text(str(case["processor"]))
    prefix = "tensor/"
    tensors = {k.removeprefix(prefix): v for k, v in case.items() if k.startswith(prefix)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def close(found: Any, expected: Any, what: str) -> None:
    """Within the tolerance of the largest value."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape, what
    off = np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-3)
    assert off <= TOLERANCE, f"{what}: off by {off:.2e}"


def check(case: dict[str, Any], folder: Path) -> None:
    """Hidden states layer by layer, logits, loss, and the gradient of every tensor."""
    if "tokens" in case:
        _check_text(case, folder)
    else:
        (_check_images if "visible" in case else _check_vit)(case, folder)


def _check_vit(case: dict[str, Any], folder: Path) -> None:
    imported = read(write_folder(case, folder))
    graph, _ = nnx.split(imported.run.model)
    pixels = jnp.asarray(case["pixels"])

    def computed(parameters: Any) -> tuple[jax.Array, tuple[Any, Any]]:
        model = nnx.merge(graph, parameters)
        encoded = model.encode(model.patches(pixels), every_layer=True)
        if "class_logits" not in case:
            return (encoded.hidden**2).mean(), (encoded.layers, encoded.hidden)
        logits = model.logits(pixels)
        return _classified(logits, case), (encoded.layers, logits)

    (loss, (layers, found)), gradients = jax.jit(jax.value_and_grad(computed, has_aux=True))(
        imported.parameters
    )
    for layer, (ours, theirs) in enumerate(zip(layers, case["hidden_states"], strict=True)):
        close(ours, theirs, f"the hidden state after {layer} blocks")
    close(found, case.get("class_logits", case.get("last")), "what is computed from the last")
    close(loss, case["loss"], "the loss")
    _check_gradients(case, imported, gradients)


def _classified(logits: jax.Array, case: dict[str, Any]) -> jax.Array:
    """The mean cross-entropy."""
    predicted = jax.nn.log_softmax(logits)
    return -predicted[np.arange(len(predicted)), case["classes"]].mean()


def _check_images(case: dict[str, Any], folder: Path) -> None:
    imported = read(write_folder(case, folder))
    graph, _ = nnx.split(imported.run.model)
    objective = imported.run.config.objective

    def computed(parameters: Any) -> tuple[jax.Array, tuple[Any, Any]]:
        model = nnx.merge(graph, parameters)
        patches = model.patches(jnp.asarray(case["pixels"]))
        visible, masked = (
            Mask(jnp.asarray(case[name]), jnp.ones(case[name].shape))
            for name in ("visible", "masked")
        )
        encoded = model.encode(patches, visible=visible, exact=True, every_layer=True)
        predicted = model.decode(encoded.hidden, visible=visible)
        errors = ((predicted - objective.target(patches)) ** 2).mean(-1)
        loss = jnp.take_along_axis(errors, masked.positions, axis=1).mean()
        return loss, (encoded.layers, predicted)

    (loss, (layers, predicted)), gradients = jax.jit(jax.value_and_grad(computed, has_aux=True))(
        imported.parameters
    )
    for layer, (ours, theirs) in enumerate(zip(layers, case["hidden_states"], strict=True)):
        close(ours, theirs, f"the hidden state after {layer} blocks")
    close(predicted, case["predicted"], "the prediction")
    close(loss, case["loss"], "the loss")
    _check_gradients(case, imported, gradients)


def _check_text(case: dict[str, Any], folder: Path) -> None:
    imported = read(write_folder(case, folder))
    graph, _ = nnx.split(imported.run.model)
    (loss, found), gradients = jax.jit(
        jax.value_and_grad(partial(_computed, graph, case), has_aux=True)
    )(imported.parameters)
    valid = case["valid"]
    for layer, (ours, theirs) in enumerate(
        zip(found["hidden"], case["hidden_states"], strict=True)
    ):
        close(ours[valid], theirs[valid], f"the hidden state after {layer} blocks")
    for name in ("mlm_logits", "next_sentence_logits", "class_logits"):
        if name in case:
            rows = valid if name == "mlm_logits" else slice(None)
            close(found[name][rows], case[name][rows], name)
    close(loss, case["loss"], "the loss")
    _check_gradients(case, imported, gradients)


def _computed(
    graph: Any, case: dict[str, Any], parameters: Any
) -> tuple[jax.Array, dict[str, Any]]:
    model = nnx.merge(graph, parameters)
    visibility = Visibility(
        jnp.asarray(case["valid"]), jnp.asarray(case["documents"]) if case["packed"] else None
    )
    encoded = model.encode(
        jnp.asarray(case["tokens"]),
        jnp.asarray(case["segments"]),
        visibility,
        positions=jnp.asarray(case["positions"]),
        every_layer=True,
    )
    hidden = encoded.hidden
    # Their last is normalised at the end; of a stack that normalises after each sum it is so already.
    found = {"hidden": jnp.concatenate([encoded.layers[:-1], hidden[None]])}
    if "class_logits" in case:
        rows = (jnp.asarray(case[name]) for name in ("tokens", "segments"))
        found["class_logits"] = model.logits(*rows, visibility)
        return _classified(found["class_logits"], case), found
    if "mlm_logits" not in case:
        pooled = jnp.tanh(model.pooler(hidden[:, 0]))
        return (hidden[case["valid"]] ** 2).mean() + (pooled**2).mean(), found
    found["mlm_logits"] = model.mlm_logits(hidden)
    rows, places = np.nonzero(case["labels"] >= 0)
    predicted = jax.nn.log_softmax(found["mlm_logits"][rows, places])
    loss = -predicted[np.arange(len(rows)), case["labels"][rows, places]].mean()
    if "next_sentence_logits" in case:
        found["next_sentence_logits"] = model.next_sentence_logits(hidden)
        predicted = jax.nn.log_softmax(found["next_sentence_logits"])
        loss -= predicted[np.arange(len(predicted)), case["is_next"]].mean()
    return loss, found


def _check_gradients(case: dict[str, Any], imported: Imported, gradients: Any) -> None:
    from mlmjax.interop.huggingface.families import family_of

    architecture = json.loads(str(case["config"]))["architectures"][0]
    family = family_of(architecture)
    prefix = "" if architecture == family.encoder else family.prefix
    flat = {
        "/".join(each.key for each in path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(gradients)[0]
    }
    table = family.table(imported.run.config, prefix)
    ours = {name: g for row in table.rows for name, g in row.to_theirs(flat[row.ours])}
    theirs = {k.removeprefix("gradient/"): v for k, v in case.items() if k.startswith("gradient/")}
    assert theirs
    largest = max(np.abs(each).max() for each in theirs.values())
    for name, gradient in theirs.items():
        if np.abs(gradient).max() < 1e-6 * largest:  # of a key's bias it is zero but for rounding
            assert np.abs(ours[name]).max() < 1e-5 * largest, name
        else:
            close(ours[name], gradient, f"the gradient of {name}")
