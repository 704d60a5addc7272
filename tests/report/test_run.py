"""What a run of any data shows at its end: the held-out figures of its last record."""

import io
import json
from pathlib import Path

from rich.console import Console

from mlmjax.report.run import RunReport
from mlmjax.report.terminal import Terminal
from mlmjax.training.folder import RunFolder


def test_the_last_held_out_figures_are_shown(tmp_path: Path) -> None:
    records = [
        {"step": 5, "heldout/loss": 3.0, "train/loss": 4.0},
        {"step": 9, "heldout/loss": 2.0, "heldout/some_error": 0.25, "train/loss": 1.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    console = Console(file=io.StringIO(), width=80)
    report = RunReport(None, None, files=RunFolder(tmp_path), terminal=Terminal(console))
    assert report.figures() == {"loss": 2.0, "some_error": 0.25}
    assert report.evaluated(9, {}) == {}
    report.ended({})
    report.close()
    said = console.file.getvalue()
    assert "2.0000" in said
    assert "some error" in said
    assert "0.2500" in said
    assert "1.0000" not in said
