"""``mlmjax audit``: what it prints and writes, which examples it draws, and how it refuses."""

import json
import random
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from mlmjax.auditing import masking, training_examples
from mlmjax.cli import main
from mlmjax.core.errors import UserError
from mlmjax.data.sources import TextSource
from mlmjax.experiment import Experiment
from mlmjax.objectives.base import Objective
from mlmjax.objectives.mlm import MaskedLanguageModel
from tests.commands import printed, refused
from tests.conftest import WORDS

CARELESS = '''
import jax
import jax.numpy as jnp
from mlmjax.masking import TokenSelection, select_tokens


class Careless(TokenSelection):
    """Looks neither at what is eligible nor at its key."""

    def __call__(self, key, row, *, ratio=None, capacity=None, step=0):
        every = jnp.ones_like(row.eligible)
        return select_tokens(jax.random.key(0), every, ratio=self.ratio, capacity=capacity)


experiment = experiment.updated(objective=experiment.objective.updated(selection=Careless()))
'''

MASKLESS = """
from mlmjax.objectives.base import Objective


class Copy(Objective):
    pass


experiment = experiment.updated(objective=Copy())
"""


def audit(config: str, *options: str) -> list[str]:
    return ["audit", config, *options]


def extended(config: str, name: str, code: str) -> str:
    """A config file that goes on with some code."""
    path = Path(name)
    path.write_text(Path(config).read_text() + code)
    return str(path)


def test_tables_a_picture_and_json(config: str, capsys: pytest.CaptureFixture) -> None:
    main(audit(config, "--examples", "40"))
    said = capsys.readouterr().out
    assert "masks of 40 examples of 32 tokens in 2 epochs; seed 0, step 0" in said
    assert "audit_small.png" in said
    assert Path("audit_small.png").read_bytes().startswith(b"\x89PNG")

    Path("pictures").mkdir()
    options = "--json", "--examples", "100000", "--png", "pictures/mine"
    found = printed(capsys, *audit(config, *options))
    assert found["kept"] is True
    assert found["examples"] > 40
    assert found["corruption"]["fates"][0]["asked"] == 0.8
    assert found["selected"]["of_eligible"] == pytest.approx(0.15, abs=0.02)
    assert Path("pictures/mine").read_bytes().startswith(b"\x89PNG")
    assert not Path("runs").exists()


def test_a_broken_must_ends_with_status_1(config: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(audit(extended(config, "careless.py", CARELESS), "--json", "--epochs", "1"))
    said = capsys.readouterr()
    assert caught.value.code == 1
    assert json.loads(said.out)["kept"] is False
    assert "a must is broken: special tokens selected:" in said.err
    assert "a must is broken: same mask under another key:" in said.err
    assert "Traceback" not in said.err
    assert Path("audit_careless.png").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--examples", "0"), "--examples 0: it must be at least 1"),
        (("--examples", "many"), "--examples: invalid int value: 'many'"),
        (("--epochs", "0"), "--epochs 0"),
        (("--step", "99999999999"), "--step 99999999999"),
        (("--step", "-1"), "--step -1"),
        (("--png", "nowhere/a.png"), "there is no folder nowhere"),
        (("--png", "."), "Is a directory"),
        (("--example", "3"), "--example"),
        (("--data.root", "nowhere"), "nowhere"),
        (("--data.length", "64"), "--data.length to at most 32"),
    ],
)
def test_bad_options_are_refused(
    config: str, capsys: pytest.CaptureFixture, options: tuple[str, ...], sentence: str
) -> None:
    before = sorted(Path.cwd().iterdir())
    assert sentence in refused(capsys, *audit(config, *options, "--data.cache", "cache"))
    assert sorted(Path.cwd().iterdir()) == before


def test_an_objective_without_masks_is_refused(config: str, capsys: pytest.CaptureFixture) -> None:
    maskless = extended(config, "maskless.py", MASKLESS)
    assert "Copy draws no masks of tokens" in refused(capsys, *audit(maskless))
    assert "Which config?" in refused(capsys, "audit")
    with pytest.raises(UserError, match="no masks"):
        masking(Objective())


class Holder(Objective):
    """An objective that leaves hiding to another."""

    hiding: MaskedLanguageModel = MaskedLanguageModel(chunk=7)


def test_masks_of_an_objective_within_another() -> None:
    assert masking(Holder()) == Holder().hiding


def batches_of(experiment: Experiment, prepared, steps: int):
    settings = {"seed": experiment.run.seed, "batch": experiment.data.batch, "threads": 1}
    return list(prepared.batches(**settings, start=0, stop=steps))


def ids_of(batch, count=None):
    return batch["id"][:count, 1].tolist()


@pytest.mark.parametrize("layout", ["full", "pairs", "packed"])
def test_examples_are_those_of_training(experiment: Experiment, layout: str) -> None:
    experiment = experiment.updated(data=experiment.data.updated(layout=layout))
    prepared = experiment.data.prepare()
    rows, batch = len(prepared.train), experiment.data.batch
    found = list(training_examples(experiment, prepared, wanted=rows, epochs=2))
    order = [id for one in found for id in ids_of(one.epochs[0], one.count)]
    stream = batches_of(experiment, prepared, -(-2 * rows // batch))
    assert order == list(chain.from_iterable(map(ids_of, stream)))[:rows]
    assert sorted(order) == list(range(rows))
    drawn = {
        (id, epoch): {name: value[row] for name, value in one.items()}
        for one in stream
        for row, (id, epoch) in enumerate(zip(ids_of(one), one["epoch"].tolist(), strict=True))
    }
    for one in found:
        assert all(len(batch_of["tokens"]) == batch for batch_of in one.epochs)
        for epoch, batch_of in enumerate(one.epochs):
            for row in range(one.count):
                expected = drawn[ids_of(batch_of)[row], epoch]
                assert all((batch_of[name][row] == expected[name]).all() for name in expected)
    some = list(training_examples(experiment, prepared, wanted=11, epochs=1))
    assert [id for one in some for id in ids_of(one.epochs[0], one.count)] == order[:11]


def test_a_source_that_comes_again_gives_each_example_once(
    experiment: Experiment, tmp_path: Path
) -> None:
    draw = random.Random(7)
    for number in range(5):
        words = " ".join(draw.choice(WORDS) for _ in range(60))
        (tmp_path / f"{number}.txt").write_text(words, encoding="utf-8")
    mixture = (
        TextSource(root=str(experiment.data.root), weight=1),
        TextSource(root=str(tmp_path / "*.txt"), weight=9),
    )
    experiment = experiment.updated(
        data=experiment.data.updated(root=None, mixture=mixture, workers=1)
    )
    prepared = experiment.data.prepare()
    found = list(training_examples(experiment, prepared, wanted=30, epochs=2))
    ids = [id for one in found for id in ids_of(one.epochs[0], one.count)]
    assert 10 < len(ids) == len(set(ids)) < 30
    later = np.concatenate([one.epochs[1]["epoch"] - one.epochs[0]["epoch"] for one in found])
    assert set(later.tolist()) == {1}
