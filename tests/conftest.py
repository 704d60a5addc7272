"""Eight fake CPU devices and jaxtyping's runtime checker, before anything of the package is imported."""

import os
import tempfile

os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=8",
        # The programs are small and run a few times: compiling them is nearly all of the time.
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
    ]
)
os.environ["JAX_PLATFORMS"] = "cpu"
# One for all workers, which are started with the environment of the process that starts them.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="mlmjax-tests-")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.3"

from jaxtyping import install_import_hook

import tests.typechecker  # noqa: F401  the hook finds it as an attribute of the package

install_import_hook("mlmjax", "tests.typechecker.check")

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from mlmjax.data.text import TextData
from mlmjax.data.tokenizer import TokenizerConfig
from mlmjax.experiment import Experiment, RunConfig
from mlmjax.models.bert import BertConfig
from mlmjax.objectives.mlm import MaskedLanguageModel
from mlmjax.optim import AdamW, WarmupSchedule

settings.register_profile(
    "mlmjax",
    deadline=None,
    derandomize=True,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("mlmjax")

WORDS = [
    "the",
    "list",
    "of",
    "values",
    "returns",
    "a",
    "new",
    "array",
    "file",
    "path",
    "given",
    "option",
    "default",
    "none",
    "error",
    "raised",
]


LONGEST = ("test_topologies.py", "test_distributed.py", "test_resume.py", "test_notebooks.py")
"""Files that take a minute or more: begun first, so that no worker has one left when the others are done."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the longest files first; else in their order."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of six text files, some hundred sentences in all."""
    folder = tmp_path_factory.mktemp("texts")
    for number in range(6):
        draw = random.Random(number)
        sentences = [
            " ".join(draw.choice(WORDS) for _ in range(draw.randint(4, 12))).capitalize() + "."
            for _ in range(120)
        ]
        documents = [" ".join(sentences[at : at + 4]) for at in range(0, len(sentences), 4)]
        (folder / f"{number}.txt").write_text("\n\n\n".join(documents), encoding="utf-8")
    return folder


@pytest.fixture
def experiment(texts: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """A model that trains in a second, on the small texts, in a folder of the test's own."""
    cache = tmp_path_factory.getbasetemp() / "cache"
    return Experiment(
        model=BertConfig(
            layers=2,
            hidden=32,
            heads=4,
            mlp=64,
            positions=32,
            vocabulary_multiple=8,
        ),
        objective=MaskedLanguageModel(chunk=64),
        data=TextData(
            root=str(texts),
            length=32,
            batch=8,
            cache=str(cache),
            tokenizer=TokenizerConfig(vocabulary=120),
            heldout=0.2,
            examples=("The [MASK] of values.",),
        ),
        optimizer=AdamW(learning_rate=WarmupSchedule(peak=3e-3, warmup=2)),
        run=RunConfig(
            steps=12,
            log_every=1,
            checkpoint_every=5,
            folder=str(tmp_path / "run"),
            tensorboard=False,
        ),
    )


CONFIG = '''
"""A small model of small texts."""
import json
from mlmjax.experiment import Experiment

experiment = Experiment.from_json({text!r})
'''


@pytest.fixture
def config(experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A config file outside the package; the working folder is the test's."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.py"
    run = experiment.run.updated(folder=None, log_every=6)
    path.write_text(CONFIG.format(text=experiment.updated(run=run).to_json()))
    return str(path)
