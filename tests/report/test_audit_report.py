"""The tables and the picture of an audit, of figures of every form."""

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from rich.console import Console

from mlmjax.core.errors import UserError
from mlmjax.core.vocabulary import Vocabulary
from mlmjax.evaluation.audit.lexicon import Lexicon
from mlmjax.evaluation.audit.tally import Asked, Tally
from mlmjax.report.audit import show
from mlmjax.report.audit_picture import check_picture, write_picture
from mlmjax.report.terminal import Terminal
from tests.evaluation.audit.drawn import SIZE, SPECIAL, drawn_of

VOCABULARY = Vocabulary(
    size=SIZE, padding=0, unknown=0, start=1, separator=1, mask=2, special=SPECIAL
)
TEXTS = ["", "", "", "the", "[/b]", "##s", "42", "[", "\\"]


def figures(rows=80, *, packed=True, spans=True, epochs=2, static=None, empty=False):
    """Figures of random masks; of none, if ``empty``."""
    law = (0.6, 0.3, 0.1) if spans else None
    asked = Asked(
        seed=0,
        step=3,
        ratio=0.4,
        highest=0.5,
        shares=(0.8, 0.1, 0.1),
        fates=not spans,
        static_masks=static,
        whole_words=True,
        at_least_one=packed,
        lengths=law,
    )
    counts = np.array([0, 0, 0, 90, 50, 30, 20, 10, 5])
    tally = Tally(Lexicon(VOCABULARY, TEXTS, TEXTS, counts), asked)
    run = []
    for epoch in range(epochs):
        drawn = drawn_of(epoch, rows=rows)
        lengths = np.array([1, 1, 2, 3]) if spans else None
        drawn = dataclasses.replace(drawn, packed=packed, spans=lengths, whole_spans=lengths)
        if empty:
            nothing = np.zeros_like(drawn.times)
            drawn = dataclasses.replace(drawn, times=nothing, kind=nothing - 1, seen=drawn.tokens)
        run.append(drawn)
    tally.add(run, [drawn_of(9 + epoch, rows=rows).selected for epoch in range(epochs)])
    return tally.figures()


FORMS = {
    "packed spans": {},
    "tokens": {"packed": False, "spans": False},
    "one row": {"rows": 1, "epochs": 1},
    "no target": {"empty": True, "spans": False},
    "static": {"static": 1},
}


@pytest.mark.parametrize("form", FORMS)
def test_tables_and_picture(form, tmp_path):
    found = figures(**FORMS[form])
    console = Console(file=io.StringIO(), width=80)
    show(found, Terminal(console))
    said = console.file.getvalue()
    assert f"{found.examples} examples of 12 tokens in {found.epochs} epoch" in said.replace(
        "1 example ", "1 examples "
    )
    for must in found.musts:
        assert must.name in said
    assert said.count("BROKEN") == len(found.broken) > 0  # random masks split words
    assert "highest ratio" in said
    assert ("document" in said) == (found.documents is not None)
    assert ("spans in words" in said) == FORMS[form].get("spans", True)
    assert ("by choice" in said) == (form == "static")
    assert ("[/b]" in said) == (form != "one row")
    if form in ("tokens", "static"):
        return
    path = Path(tmp_path) / "audit.png"
    write_picture(found, path, title="mine")
    picture = imread(path)
    assert picture.shape[0] > 900
    assert picture.shape[1] > 1700
    assert 0.01 < (picture[..., :3].mean(axis=-1) < 0.9).mean() < 0.6


def test_a_picture_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(UserError, match="no folder"):
        check_picture(tmp_path / "nowhere" / "a.png")
    with pytest.raises(UserError, match="cannot be written: Is a directory"):
        check_picture(tmp_path)
    there = tmp_path / "there.png"
    there.write_bytes(b"old")
    check_picture(there)
    check_picture(tmp_path / "new.png")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]
