"""Benchmarks that need what is not here say so, and what they measure is what is asked."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu.py"


def test_without_a_gpu_nothing_is_measured(tmp_path: Path) -> None:
    # Nothing is on this path, so that a GPU that is here is not found either.
    ended = subprocess.run(
        [sys.executable, str(SCRIPT)], env={"PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert "there is no NVIDIA GPU here" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_weights_that_are_imported_are_those_of_the_file(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location(
        "import_weights", SCRIPT.with_name("import_weights.py")
    )
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    weights = script.write_model(tmp_path, layers=2, hidden=64, vocabulary=40)
    assert script.SIDES["read"](tmp_path)().tobytes() == weights.read_bytes()
    whole, cut = (script.SIDES[name](tmp_path)() for name in ("import", "mesh"))
    values = sum(np.prod(shape) for _, shape in script.tensor_shapes(2, 64, 40))
    assert sum(each.size for each in jax.tree.leaves(whole)) == values
    jax.tree.map(np.testing.assert_array_equal, whole, cut)
    kernel = cut["encoder"]["layers"]["up"]["kernel"][...]
    assert kernel.addressable_shards[0].data.size * len(jax.devices()) == kernel.size
    measured = script.measure("import", tmp_path)
    assert measured["seconds"] > 0
    assert measured["peak"] >= 0
