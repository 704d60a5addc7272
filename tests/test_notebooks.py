"""Every notebook runs from top to bottom, in this interpreter and an empty folder, and shows a picture."""

import re
from pathlib import Path

import nbformat
import pytest
from ipykernel.kernelspec import write_kernel_spec
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel ``python3`` of the test's own interpreter, on one CPU device, free of a user's settings."""
    write_kernel_spec(tmp_path / "jupyter" / "kernels" / "python3")
    for name in ("JUPYTER_PATH", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / "jupyter"))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    # Most of the time goes to compilation, not to running what was compiled.
    monkeypatch.setenv(
        "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    )


CASES = [
    pytest.param(NOTEBOOKS[0], 40, id="the first, few steps"),
    *(pytest.param(path, None, id=path.stem, marks=pytest.mark.slow) for path in NOTEBOOKS),
]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("path", "steps"), CASES)
def test_notebook_runs_and_shows_a_picture(path: Path, tmp_path: Path, steps: int | None) -> None:
    """As it is, or with few steps of training."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells if steps else ():
        cell.source = re.sub(r"\bsteps=\d+", f"steps={steps}", cell.source)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "store it without outputs"

    folder = tmp_path / "work"
    folder.mkdir()
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()

    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", {}) for output in outputs)
