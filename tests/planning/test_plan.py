"""Plans of steps: what a device holds, and what the command says."""

import re
from pathlib import Path

import jax
import pytest

from mlmjax.cli import main
from mlmjax.core.errors import UserError
from mlmjax.experiment import Experiment, load_experiment
from mlmjax.planning.chips import Topology
from mlmjax.planning.plan import _needed, devices, plan
from mlmjax.planning.search import layouts, mended
from mlmjax.sharding import MeshConfig
from mlmjax.training.step import Program
from tests.commands import printed, refused

KEYS = {"fits", "bytes_per_device", "flops_per_device", "bound", "mfu_bound"}


def parameters(experiment: Experiment) -> int:
    """Bytes of all parameters."""
    state = Program.of(experiment.fitted(experiment.data.abstract_vocabulary())).state
    return sum(each.size * each.dtype.itemsize for each in jax.tree.leaves(state.parameters))


def test_a_device_of_eight_holds_an_eighth_where_parameters_are_sharded(
    experiment: Experiment,
) -> None:
    whole = plan(experiment, Topology.parse("h100:8"))
    sharded = plan(experiment.updated(mesh=MeshConfig(fsdp=8)), Topology.parse("h100:8"))
    assert whole.memory.parameters == parameters(experiment)
    assert whole.memory.optimizer >= 2 * whole.memory.parameters
    assert sharded.memory.parameters < whole.memory.parameters / 6  # norms and biases are whole
    assert sharded.memory.optimizer < whole.memory.optimizer / 6
    assert sharded.flops == whole.flops
    assert whole.fits
    assert whole.memory.at_least
    assert whole.bound == "compute"
    assert 0.5 < whole.mfu_bound < 1.05
    assert whole.days == pytest.approx(12 * whole.step_seconds / 86400)


def test_micro_batches_keep_less(experiment: Experiment) -> None:
    whole = plan(experiment, Topology.parse("h100:1"))
    parts = plan(
        experiment.updated(run=experiment.run.updated(accumulate=4)), Topology.parse("h100:1")
    )
    assert parts.model_flops == whole.model_flops


def test_layouts_divide_topology_and_batch(experiment: Experiment) -> None:
    found = list(layouts(experiment, Topology.parse("h100:8")))
    assert {layout.experiment.mesh.sizes(8)["tensor"] for layout in found} == {1, 2, 4, 8}
    assert {layout.experiment.model.remat for layout in found} == {"none", "dots", "full"}
    assert "--mesh.fsdp 1" in found[0].options
    assert "--model.remat none" in found[0].options


def test_what_the_compiler_says_of_memory_is_read() -> None:
    said = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (17.69G) "
        "exceeds available HBM (15.75G)."
    )
    assert _needed(said) == (int(17.69 * 2**30), int(15.75 * 2**30))
    assert _needed("INVALID_ARGUMENT: (1.0G) (2.0G)") is None


def test_the_command_prints_figures_of_gpus(config: str, capsys: pytest.CaptureFixture) -> None:
    chips = ("--topology", "h100:8")
    main(["plan", config, *chips, "--mesh.fsdp", "8"])
    said = capsys.readouterr().out
    assert "parameters" in said
    assert "chip-hours" in said
    found = printed(capsys, "plan", config, *chips, "--json")
    assert set(found) >= KEYS
    assert found["fits"] is True
    ranked = printed(capsys, "plan", config, *chips, "--search", "3", "--json")
    assert len(ranked) == 3
    assert all("--mesh.fsdp" in each["options"] for each in ranked)
    times = [max(each["seconds"].values()) for each in ranked]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((), "--topology v5e:16x16"),
        (("--topology", "v9:2x2"), "v4, v5e"),
        (("--topology", "h100:8", "--mesh.fsdp", "3"), "--mesh.fsdp 3"),
        (("--topology", "h100:8", "--data.batch", "7"), "--data.batch 7"),
        (("--topology", "h100:8", "--search", "0"), "--search 0"),
    ],
)
def test_bad_options_are_refused(
    config: str, capsys: pytest.CaptureFixture, options: tuple[str, ...], sentence: str
) -> None:
    assert sentence in refused(capsys, "plan", config, *options)


def test_without_the_compiler_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "libtpu", None)
    with pytest.raises(UserError, match=r"pip install 'mlmjax\[plan\]'"):
        devices(Topology.parse("v5e:2x2"))


@pytest.fixture
def compiler() -> None:
    """TPUs can be compiled for here."""
    pytest.importorskip("libtpu")


@pytest.mark.usefixtures("compiler")
def test_a_step_is_compiled_for_a_pod(experiment: Experiment) -> None:
    found = plan(experiment.updated(mesh=MeshConfig(fsdp=4)), Topology.parse("v5e:2x2"))
    assert found.fits
    assert found.memory.parameters < parameters(experiment)
    assert found.traffic is not None
    assert found.collectives
    assert set(found.seconds) == {"compute", "memory", "interconnect"}
    kinds = {each.kind for each in found.collectives}
    assert "all-gather" in kinds  # of parameters


@pytest.mark.usefixtures("compiler")
def test_packed_rows_are_compiled_for_tpus_with_the_kernel_of_theirs(
    experiment: Experiment,
) -> None:
    """On a mesh of all three axes; one kernel forward and two backward, and no array of pairs of positions."""
    long = experiment.updated(
        model=experiment.model.updated(
            attention="flash", attention_dropout=0.0, positions=1024, dtype="bfloat16"
        ),
        data=experiment.data.updated(length=1000, layout="packed"),
    )
    fitted = long.fitted(long.data.abstract_vocabulary())
    mesh = MeshConfig(data=2, fsdp=2, tensor=2).make(devices(Topology.parse("v5e:2x4")))
    program = Program.of(fitted, mesh)
    text = program.step().lower(program.state, program.batch).compile().as_text()
    assert text.count('custom_call_target="tpu_custom_call"') == 3
    assert not re.search(r"\b(1000,1000|1024,1024)\b", text)


@pytest.mark.usefixtures("compiler")
def test_topologies_that_the_compiler_does_not_know_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"v5e:3x5: .* It knows v5e:1x1, .*v5e:2x4, .*v5e:16x16, among"
    ):
        devices(Topology.parse("v5e:3x5"))
    with pytest.raises(UserError, match=r"v5p:3x5x1: .* It knows .*v5p:2x2x1, .*v5p:4x4x4"):
        devices(Topology.parse("v5p:3x5x1"))
    assert len(devices(Topology.parse("v5e:1x1"))) == 1
    assert len(devices(Topology.parse("v4:2x2x1"))) == 4


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_what_does_not_fit_says_what_would(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    large = load_experiment("bert_base").updated(mesh=MeshConfig())
    large = large.updated(data=large.data.updated(batch=1024))
    failed = plan(large, Topology.parse("v5e:2x2"))
    assert not failed.fits
    change = mended(large, failed)
    assert change is not None
    assert change[1].fits
    assert change[0].options.startswith("--")


@pytest.mark.usefixtures("compiler")
def test_a_published_config_fits_the_pod_that_its_docstring_names() -> None:
    found = plan(load_experiment("bert_base"), Topology.parse("v5e:16x16"))
    assert found.fits
    assert found.memory.limit < found.topology.chip.memory
    # Compilers differ in what they keep: 2.98 GiB of 0.0.42, 1.84 of 0.0.52.
    assert 1.5 * 2**30 < found.memory.total < 3.5 * 2**30
    assert 0 < found.mfu_bound < 1


@pytest.mark.usefixtures("compiler")
def test_what_fsdp_sends_is_the_parameters(experiment: Experiment) -> None:
    """Gathered forward and backward, and their gradients added up: three times, in half precision."""
    wide = experiment.updated(
        model=experiment.model.updated(hidden=512, mlp=2048, layers=6, dtype="bfloat16"),
        mesh=MeshConfig(data=1, fsdp=4),
    )
    found = plan(wide, Topology.parse("v5e:2x2"))
    assert found.collectives is not None
    kernels = 6 * (4 * 512**2 + 2 * 512 * 2048)
    sent = sum(each.sent for each in found.collectives)
    assert 1 <= sent / (3 * 2 * kernels * 3 / 4) < 1.5  # the rest is of embeddings and head
