"""The families that are known."""

from mlmjax.core.errors import UserError
from mlmjax.experiment import Experiment
from mlmjax.interop.huggingface.bert import BertFamily, RobertaFamily
from mlmjax.interop.huggingface.family import Family
from mlmjax.interop.huggingface.mae import MaeFamily
from mlmjax.models.bert import BertConfig
from mlmjax.models.mae import MaeConfig

FAMILIES: tuple[Family, ...] = (BertFamily(), RobertaFamily(), MaeFamily())


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


def family_for(experiment: Experiment) -> Family:
    """The family whose classes can hold a model of ours.

    Raises:
        UserError: there is none.
    """
    model = experiment.model
    if type(model) is BertConfig:
        for family in (BertFamily(), RobertaFamily()):
            if model.position_offset == family.offset:
                return family
    if type(model) is MaeConfig:
        return MaeFamily()
    raise UserError(
        f"{type(model).__name__} has no counterpart among Hugging Face's classes that is supported."
    )
