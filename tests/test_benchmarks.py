"""Benchmarks that need what is not here say so."""

import subprocess
import sys
from pathlib import Path

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
