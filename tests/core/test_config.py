"""Configs validate, hash, and come back from JSON as what they were."""

import json

import pytest
from pydantic import ValidationError

from mlmjax.core.config import Config, differences, resolve_class
from mlmjax.core.errors import UserError
from mlmjax.experiment import Experiment
from mlmjax.masking import SpanSelection, TokenSelection
from mlmjax.objectives.mlm import MaskedLanguageModel


class Outside(Config):
    """A config from a module that is not the package's."""

    inner: Config = TokenSelection()


def test_json_keeps_subclasses_and_values(experiment: Experiment) -> None:
    objective = MaskedLanguageModel(selection=SpanSelection(ratio=0.3, p=0.4))
    asked = experiment.updated(objective=objective)
    back = Experiment.from_json(asked.to_json())
    assert back == asked
    assert hash(back) == hash(asked)
    assert isinstance(back.objective.selection, SpanSelection)


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ValidationError, match="ration"):
        TokenSelection(ration=0.3)


def test_values_cannot_be_changed_in_place() -> None:
    with pytest.raises(ValidationError):
        TokenSelection().ratio = 0.5


def test_updated_validates() -> None:
    assert TokenSelection().updated(ratio=0.4).ratio == 0.4
    with pytest.raises(ValidationError):
        TokenSelection().updated(ratio=1.4)


def test_classes_from_outside_are_not_imported() -> None:
    text = Outside().to_json()
    with pytest.raises(UserError, match="--trust-code"):
        Config.from_json(text)
    known = {"mlmjax.masking.tokens:TokenSelection": TokenSelection}
    back = Config.from_json(text, lambda path: known.get(path, Outside))
    assert back == Outside()


@pytest.mark.parametrize("path", ["os:system", "mlmjax.core.config:nothing", "mlmjax.core:prng"])
def test_only_classes_of_the_package_resolve(path: str) -> None:
    with pytest.raises(UserError):
        resolve_class(path)


def test_a_class_that_does_not_fit_the_field_is_refused(experiment: Experiment) -> None:
    stored = json.loads(experiment.to_json())
    stored["model"] = {"class": "mlmjax.masking.tokens:TokenSelection"}
    with pytest.raises(ValidationError, match="not a ModelConfig"):
        Experiment.from_json(json.dumps(stored))


def test_differences_name_the_option(experiment: Experiment) -> None:
    other = experiment.updated(run=experiment.run.updated(steps=99))
    assert differences(experiment, other) == ["run.steps: 12 -> 99"]
    assert differences(experiment, experiment) == []
    spans = experiment.updated(objective=MaskedLanguageModel(chunk=64, selection=SpanSelection()))
    assert differences(experiment, spans) == [
        "objective.selection: mlmjax.masking.tokens:TokenSelection -> mlmjax.masking.spans:SpanSelection"
    ]
