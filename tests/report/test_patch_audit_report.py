"""The tables and the picture of an audit of masks of patches."""

import io
from functools import cache

import numpy as np
import pytest
from matplotlib.image import imread
from rich.console import Console

from mlmjax.evaluation.audit.masks import Examples
from mlmjax.evaluation.audit.patches import audit_patches
from mlmjax.masking import BlockPatches, LinearRatio, RandomPatches
from mlmjax.objectives.mae import MaskedAutoencoder
from mlmjax.report.audit import show
from mlmjax.report.audit_picture import write_picture
from mlmjax.report.terminal import Terminal

FORMS = {
    "blocks": (MaskedAutoencoder(selection=BlockPatches(ratio=0.4)), (6, 9)),
    "static": (
        MaskedAutoencoder(ratio_schedule=LinearRatio(start=0.5, steps=9), static_masks=1),
        (2, 40),
    ),
    "one": (MaskedAutoencoder(selection=RandomPatches(ratio=0.4)), (1, 1)),
}


@cache
def figures(form):
    objective, grid = FORMS[form]
    ids = np.stack([np.zeros(40), np.arange(40)], axis=-1).astype(np.uint32)
    epochs = [{"id": ids, "epoch": np.full(40, epoch, np.int32)} for epoch in range(2)]
    return audit_patches(objective, [Examples(epochs, 40)], grid=grid, seed=0)


@pytest.mark.parametrize("form", FORMS)
def test_tables(form):
    found = figures(form)
    console = Console(file=io.StringIO(), width=80)
    show(found, Terminal(console))
    said = console.file.getvalue()
    rows, columns = found.grid
    assert f"masks of 40 examples of {rows} by {columns} patches in 2 epochs" in said
    assert f"{found.masked.count} of {rows * columns}" in said
    assert f"{100 * found.masked.ratio:.2f} %" in said
    assert f"{found.heat_map.largest:+.1f} sigmas" in said
    assert ("ratio of all steps" in said) == (form == "static")
    assert ("by choice" in said) == (form == "static")
    # A shade for each patch, twice as wide as high, unless there are too many.
    shades = [line for line in said.splitlines() if line and set(line) <= set("░▒▓█")]
    assert [len(line) for line in shades] == ([] if form == "static" else [2 * columns] * rows)
    assert said.count("BROKEN") == len(found.broken)
    assert bool(found.broken) == (form == "one")  # the one patch is never masked
    assert "…" not in said


@pytest.mark.parametrize("form", ["blocks", "one"])
def test_picture(form, tmp_path):
    path = tmp_path / "audit.png"
    write_picture(figures(form), path, title="mine")
    picture = imread(path)
    assert picture.shape[:2] > (400, 1700)
    assert 0.02 < (picture[..., :3].mean(axis=-1) < 0.9).mean() < 0.8
