"""Configs are found, resolve by shapes alone, and say what is wrong with them."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from mlmjax.core.errors import UserError
from mlmjax.experiment import (
    Experiment,
    describe,
    load_experiment,
    load_file,
    shipped,
    validation_message,
)
from mlmjax.sharding import MeshConfig
from mlmjax.targets import PixelScale
from mlmjax.training.step import Program

CUSTOM = '''
"""A researcher's own config."""
from mlmjax.masking import TokenSelection
from mlmjax.objectives.mlm import MaskedLanguageModel
from mlmjax.experiment import load_experiment

class Louder(TokenSelection):
    """Twice the ratio."""
    times: int = 2

experiment = load_experiment("bert_tiny").updated(objective=MaskedLanguageModel(selection=Louder()))
'''


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_config_traces_by_shapes_alone(name: str) -> None:
    experiment = load_experiment(name).updated(mesh=MeshConfig(data=-1))
    fitted = experiment.fitted(experiment.data.abstract_vocabulary())
    program = Program.of(fitted)
    state, report = program.step().eval_shape(program.state, program.batch)
    assert state.step.shape == ()
    assert {"mask_loss", "class_loss"} & set(report)
    assert len(describe(shipped()[name])) > 20


def test_a_config_of_ones_own_round_trips_with_trust(tmp_path: Path) -> None:
    from mlmjax.experiment import file_resolver

    path = tmp_path / "louder.py"
    path.write_text(CUSTOM)
    experiment = load_experiment(str(path))
    text = experiment.to_json()
    with pytest.raises(UserError, match="--trust-code"):
        Experiment.from_json(text)
    with pytest.raises(UserError, match="--trust-code"):
        Experiment.from_json(text, file_resolver(path, trust=False))
    back = Experiment.from_json(text, file_resolver(path, trust=True))
    assert back.objective.selection.times == 2


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("bert_tinny", "Did you mean bert_tiny"),
        ("nothing/like/this.py", "does not exist"),
        ("zzz", "mlmjax configs"),
    ],
)
def test_unknown_configs_are_refused(name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        load_experiment(name)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x = 1\n", "does not define"),
        ("x = 1\ny = x / 0\n", r"broken.py:2: ZeroDivisionError"),
        ("x = (\n", r"broken.py:\d: SyntaxError"),
        ("import nothing_there\n", "broken.py:1: ModuleNotFoundError"),
        (
            "from mlmjax.masking import TokenSelection\nTokenSelection(ratio=2)\n",
            r"broken.py: ratio: .*less than or equal to 1 .*got 2",
        ),
    ],
)
def test_broken_config_files_name_the_line(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(UserError, match=sentence):
        load_experiment(str(path))


def test_files_are_modules_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("value = __name__")
    assert load_file(path).value == "mlmjax_config"


def test_a_list_is_not_called_short_where_its_item_was_refused() -> None:
    with pytest.raises(ValidationError) as caught:
        PixelScale(std=(0.0,))
    assert validation_message(caught.value) == "std.0: Input should be greater than 0 (got 0.0)"
    with pytest.raises(ValidationError) as caught:
        PixelScale(std=())
    assert "at least 1 item" in validation_message(caught.value)
