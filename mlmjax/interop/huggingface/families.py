"""The families that are known."""

from mlmjax.core.errors import UserError
from mlmjax.experiment import Experiment
from mlmjax.interop.huggingface.bert import (
    BertClassifierFamily,
    BertFamily,
    PreNormClassifierFamily,
    PreNormFamily,
    RobertaClassifierFamily,
    RobertaFamily,
)
from mlmjax.interop.huggingface.family import Family
from mlmjax.interop.huggingface.mae import MaeFamily
from mlmjax.interop.huggingface.vit import VitClassifierFamily, VitFamily

FAMILIES: tuple[Family, ...] = (
    BertFamily(),
    RobertaFamily(),
    PreNormFamily(),
    MaeFamily(),
    VitFamily(),
    BertClassifierFamily(),
    RobertaClassifierFamily(),
    PreNormClassifierFamily(),
    VitClassifierFamily(),
)


def family_of(architecture: str) -> Family:
    """The family of one of their classes.

    Raises:
        UserError: it is not known; lists those that are.
    """
    for family in FAMILIES:
        if architecture in family.architectures:
            return family
    known = ", ".join(name for family in FAMILIES for name in family.architectures)
    raise UserError(f"The architecture {architecture} is not supported; supported are {known}.")


def architectures_for(experiment: Experiment) -> dict[str, Family]:
    """Their classes that can hold a model of ours, with their families; the first is for pretraining.

    Raises:
        UserError: there is none.
    """
    model = experiment.model
    found = {
        name: family for family in FAMILIES if family.holds(model) for name in family.architectures
    }
    if not found:
        raise UserError(
            f"{type(model).__name__} has no counterpart among Hugging Face's classes that is supported."
        )
    return found
