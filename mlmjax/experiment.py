"""An experiment is a value: model, objective, data, optimizer, mesh and run; and how one is found by name.

A config file is a Python file that defines ``experiment`` and whose docstring says what it costs and gives.
"""

import ast
import difflib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Self

import cloudpickle
from pydantic import Field, ValidationError

from mlmjax.core.config import Config, Resolve, resolve_class
from mlmjax.core.errors import UserError
from mlmjax.core.vocabulary import Vocabulary
from mlmjax.data.base import Data
from mlmjax.models.base import ModelConfig
from mlmjax.objectives.base import Objective
from mlmjax.optim import Optimizer
from mlmjax.sharding import MeshConfig

Count = Annotated[int, Field(gt=0)]

FILE_MODULE = "mlmjax_config"
"""The module name under which any config file is loaded, so that a class keeps its path in a copy."""


class RunConfig(Config):
    """How long to train, and what to write when."""

    folder: Annotated[str, Field(min_length=1)] | None = None
    """Where the run is written; on the command line by default runs/<config name>."""
    init: Annotated[str, Field(min_length=1)] | None = None
    """A run folder from whose newest checkpoint the parameters are taken whose names and shapes are the model's;
    the others are drawn. ``--init`` also takes that run's encoder sizes, and its tokenizer or image size."""
    steps: Count = 1000
    """Updates of the parameters."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """The one root of all randomness."""
    accumulate: Count = 1
    """Micro-batches a step; they give the gradient of the whole batch in less memory."""
    log_every: Count = 50
    """Steps between two records in metrics.jsonl; a record covers the steps since the last."""
    evaluate_every: Count | None = None
    """Steps between two evaluations on held-out rows; by default only at the end."""
    checkpoint_every: Count = 500
    """Steps between two checkpoints; the last step always makes one."""
    keep: Count = 2
    """Newest checkpoints that are kept."""
    keep_every: Count | None = None
    """Also keep the checkpoints whose step is a multiple of this."""
    stop_after_skipped: Count = 20
    """Stop after so many steps in a row whose gradient is not finite; each of them is skipped."""
    tensorboard: bool = True
    """Also write the metrics for TensorBoard."""
    wandb: str | None = None
    """Also send the metrics to this Weights & Biases project; needs the extra ``wandb``."""


class Experiment(Config):
    """Everything that determines a run."""

    model: ModelConfig
    objective: Objective
    data: Data
    optimizer: Optimizer
    mesh: MeshConfig = MeshConfig()
    run: RunConfig = RunConfig()

    def fitted(
        self, vocabulary: Vocabulary | None, *, classes: int | None = None, check: bool = True
    ) -> Self:
        """The experiment with what model and objective take from the data filled in.

        Args:
            vocabulary: of the data; None where examples are not tokens.
            classes: number of the data's classes; by default what the data's config tells of it.
            check: whether the objective can be trained with the model and the data, too.

        Raises:
            UserError: the parts do not go together; it names the option to change.
        """
        model = self.model.fitted(vocabulary)
        classes = self.data.abstract_classes() if classes is None else classes
        if classes is not None:
            model = model.of_classes(classes)
        fitted = self.updated(model=model, objective=self.objective.fitted(vocabulary))
        if check:
            fitted.objective.check(fitted.model, fitted.data.spec())
        return fitted

    def resized(self, image: tuple[int, int]) -> Self:
        """The experiment for images of another height and width.

        Raises:
            UserError: it is not of images, or the model's patches do not divide the size.
        """
        try:
            return self.updated(model=self.model.resized(image), data=self.data.resized(image))
        except ValidationError as error:
            raise UserError(validation_message(error)) from error


def shipped() -> dict[str, Path]:
    """The shipped config files by name: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).parent
    inside = package / "configs"
    folder = inside if inside.is_dir() else package.parent / "configs"
    return {path.stem: path for path in sorted(folder.glob("*.py"))}


def describe(path: Path) -> str:
    """The first line of a config file's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def load_experiment(name: str) -> Experiment:
    """The experiment of a shipped name or of a Python file.

    Raises:
        UserError: there is no such config, or the file does not define an experiment.
    """
    configs = shipped()
    path = Path(name)
    if name in configs:
        path = configs[name]
    elif path.suffix != ".py":
        close = difflib.get_close_matches(name, configs, n=3, cutoff=0.4)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        raise UserError(
            f"There is no config '{name}'.{hint} `mlmjax configs` lists the shipped ones; a path to "
            "a Python file or to a run folder will do as well."
        )
    experiment = getattr(load_file(path), "experiment", None)
    if not isinstance(experiment, Experiment):
        raise UserError(f"{path} does not define `experiment = mlmjax.Experiment(...)`.")
    return experiment


def load_file(path: Path) -> ModuleType:
    """Run a config file as a module of its own.

    Raises:
        UserError: the file is missing, or it fails; the message names the line.
    """
    if not path.is_file():
        raise UserError(f"The config file {path} does not exist.")
    spec = importlib.util.spec_from_file_location(FILE_MODULE, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[FILE_MODULE] = module  # pydantic looks annotations up here
    cloudpickle.register_pickle_by_value(module)  # other processes cannot import it
    try:
        spec.loader.exec_module(module)
    except ValidationError as error:
        raise UserError(f"{path}: {validation_message(error)}") from error
    except (Exception, SystemExit) as error:
        line = _line_in(path, error)
        raise UserError(f"{path}{line}: {type(error).__name__}: {error}") from error
    return module


def _line_in(path: Path, error: BaseException) -> str:
    """``:line`` where the error passed through the file; nothing where it did not."""
    if isinstance(error, SyntaxError):
        return f":{error.lineno}" if error.lineno else ""
    lines = []
    trace = error.__traceback__
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).resolve() == path.resolve():
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    return f":{lines[-1]}" if lines else ""


def validation_message(error: ValidationError, *, option: str = "") -> str:
    """What pydantic found, an option and a sentence each, in one line.

    Args:
        error: the error.
        option: the command line's name of what was refused, such as ``--run``.
    """
    found = []
    errors = error.errors(include_url=False)
    deeper = {each["loc"][:depth] for each in errors for depth in range(len(each["loc"]))}
    for each in errors:
        if each["type"] == "too_short" and each["loc"] in deeper:
            continue  # it lacks what was refused
        parts = [str(part) for part in each["loc"]]
        if option:
            parts = [option, *(part.replace("_", "-") for part in parts)]
        option_name = ".".join(parts)
        message = each["msg"].removeprefix("Value error, ")
        given = f" (got {each['input']!r})" if each["loc"] and each["type"] != "missing" else ""
        found.append(f"{option_name}: {message}{given}" if option_name else message)
    return "; ".join(found)


def file_resolver(copy: Path, *, trust: bool) -> Resolve:
    """Finds the classes of a config file's copy in a run folder, if its code is trusted."""
    loaded: list[ModuleType] = []

    def resolve(path: str) -> type:
        module, _, name = path.partition(":")
        if not trust or module.split(".")[0] == "mlmjax":
            return resolve_class(path)
        if module != FILE_MODULE:
            return getattr(importlib.import_module(module), name)
        if not loaded:
            loaded.append(load_file(copy))
        return getattr(loaded[0], name)

    return resolve
