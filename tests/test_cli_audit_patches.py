"""``mlmjax audit`` of a config of images."""

from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from mlmjax.auditing import audit, image_examples, masking
from mlmjax.cli import main
from mlmjax.core.errors import UserError
from mlmjax.data.images import ImageData
from mlmjax.experiment import load_experiment
from mlmjax.models.base import ModelConfig
from mlmjax.objectives.base import Objective
from mlmjax.objectives.mae import MaskedAutoencoder
from tests.commands import printed, refused

CARELESS = """
import jax
from mlmjax.experiment import load_experiment
from mlmjax.masking import RandomPatches, select_patches


class Careless(RandomPatches):
    def __call__(self, key, grid, *, ratio=None, capacity=None, step=0):
        return select_patches(jax.random.key(0), grid, ratio=self.ratio, capacity=capacity)


experiment = load_experiment("mae_tiny")
objective = experiment.objective.updated(selection=Careless())
experiment = experiment.updated(objective=objective)
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digits, prepared once."""
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_tables_a_picture_and_json(cache: str, capsys: pytest.CaptureFixture) -> None:
    main(["audit", "mae_tiny", "--data.cache", cache, "--examples", "200"])
    said = capsys.readouterr().out
    assert "masks of 200 examples of 4 by 4 patches in 2 epochs; seed 0, step 0" in said
    assert Path("audit_mae_tiny.png").read_bytes().startswith(b"\x89PNG")
    options = "--json", "--png", "mine", "--epochs", "1", "--objective.selection.ratio", "0.5"
    found = printed(capsys, "audit", "mae_tiny", "--data.cache", cache, *options)
    assert found["kept"] is True
    assert 1000 < found["examples"] < 1797
    assert found["masked"]["ratio"] == found["masked"]["asked"] == 0.5
    assert Path("mine").read_bytes().startswith(b"\x89PNG")
    assert not Path("runs").exists()


def test_a_broken_must_ends_with_status_1(cache: str, capsys: pytest.CaptureFixture) -> None:
    Path("careless.py").write_text(CARELESS)
    with pytest.raises(SystemExit) as caught:
        main(["audit", "careless.py", "--data.cache", cache, "--examples", "100"])
    assert caught.value.code == 1
    said = capsys.readouterr().err
    assert "a must is broken: same mask under another key: 200 of 200 pairs" in said
    assert "Traceback" not in said


def test_a_ratio_that_masks_nothing_is_refused(cache: str, capsys: pytest.CaptureFixture) -> None:
    options = "--data.cache", cache, "--objective.selection.ratio", "0.01"
    assert "--objective.selection.ratio" in refused(capsys, "audit", "mae_tiny", *options)
    assert not list(Path.cwd().iterdir())


def test_examples_are_those_of_training(cache: str) -> None:
    """In their order, each once, in the epochs that follow; and no image is read for it."""
    experiment = load_experiment("mae_tiny")
    data = ImageData(size=(8, 8), channels=1, batch=64, cache=cache, heldout=0.2)
    experiment = experiment.updated(data=data)
    prepared = data.prepare()
    found = list(image_examples(experiment, prepared, wanted=len(prepared.train), epochs=2))
    ids = [batch.epochs[0]["id"][: batch.count, 1].tolist() for batch in found]
    stop = -(-len(prepared.train) // 64)
    stream = prepared.batches(seed=experiment.run.seed, batch=64, start=0, stop=stop, threads=1)
    expected = list(chain.from_iterable(batch["id"][:, 1].tolist() for batch in stream))
    order = list(chain.from_iterable(ids))
    assert order == expected[: len(order)]
    assert sorted(order) == list(range(len(prepared.train)))
    for batch in found:
        first, second = batch.epochs
        assert len(first["id"]) == 64
        assert np.array_equal(second["epoch"], first["epoch"] + 1)
        assert np.array_equal(second["id"], first["id"])
        assert "pixels" not in first
    some = list(image_examples(experiment, prepared, wanted=70, epochs=1))
    assert [batch.count for batch in some] == [64, 6]


class Holder(Objective):
    """An objective that leaves hiding to another, and refuses nothing."""

    hiding: MaskedAutoencoder = MaskedAutoencoder(static_masks=7)

    def check(self, model, spec) -> None:
        """Anything goes."""


class Other(ModelConfig):
    """A model of something else."""

    def build(self, rngs):
        raise NotImplementedError


def test_what_has_no_patches_is_refused(cache: str) -> None:
    assert masking(Holder()) == Holder().hiding
    experiment = load_experiment("mae_tiny").updated(objective=Holder())
    experiment = experiment.updated(data=experiment.data.updated(cache=cache))
    assert audit(experiment, examples=8).examples == 8
    with pytest.raises(UserError, match="A Other cuts no images into patches: give a MaeConfig"):
        audit(experiment.updated(model=Other()))
