"""Checkpoints of MAE's own code: the same numbers as its forward, and files that are refused before they run."""

import io
import json
import struct
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

import mlmjax
from mlmjax.cli import main
from mlmjax.core.errors import UserError
from mlmjax.core.types import Mask
from mlmjax.interop.huggingface.importing import import_run
from mlmjax.interop.mae.archive import Checkpoint
from mlmjax.interop.mae.reading import read
from mlmjax.models.mae import DecoderConfig
from mlmjax.training.folder import RunFolder
from tests.commands import refused
from tests.interop.parity import close

GOLDEN = dict(np.load(Path(__file__).parents[1] / "golden" / "mae_pth.npz"))
HEADS = {"heads": 3, "decoder_heads": 2}


def file(name: str, folder: Path) -> Path:
    """A golden file."""
    path = folder / f"{name}.pth"
    path.write_bytes(GOLDEN[f"file/{name}"].tobytes())
    return path


def rewritten(name: str, folder: Path, **entries: bytes | None) -> Path:
    """A golden file of which entries (``data_pkl`` for data.pkl) have other contents, or are left out."""
    path = folder / "changed.pth"
    changes = {each.replace("_", "."): content for each, content in entries.items()}
    with zipfile.ZipFile(io.BytesIO(GOLDEN[f"file/{name}"].tobytes())) as old:
        contents = {each: old.read(each) for each in old.namelist()}
    root = next(iter(contents)).split("/")[0]
    contents |= {f"{root}/{each}": content for each, content in changes.items()}
    with zipfile.ZipFile(path, "w") as new:
        for each, content in contents.items():
            if content is not None:
                new.writestr(each, content)
    return path


def renamed(name: str, folder: Path, before: str, after: str) -> Path:
    """A golden file in whose pickle one word is another of the same length."""
    assert len(before) == len(after)
    with zipfile.ZipFile(io.BytesIO(GOLDEN[f"file/{name}"].tobytes())) as old:
        pickled = next(old.read(each) for each in old.namelist() if each.endswith("data.pkl"))
    assert before.encode() in pickled
    return rewritten(name, folder, data_pkl=pickled.replace(before.encode(), after.encode()))


def tensors(path: Path) -> dict[str, np.ndarray]:
    checkpoint = Checkpoint(path)
    return {name: checkpoint.read(name) for name in checkpoint}


def test_hidden_states_prediction_and_loss_are_those_of_maes_code(tmp_path: Path) -> None:
    imported = read(file("whole", tmp_path), **HEADS)
    model, objective = imported.run.model, imported.run.config.objective
    visible, masked = (
        Mask(jnp.asarray(GOLDEN[name]), jnp.ones(GOLDEN[name].shape))
        for name in ("visible", "masked")
    )

    @jax.jit
    def computed(pixels: jax.Array) -> tuple:
        patches = model.patches(pixels)
        encoded = model.encode(patches, visible=visible, exact=True, every_layer=True)
        predicted = model.decode(encoded.hidden, visible=visible)
        errors = ((predicted - objective.target(patches)) ** 2).mean(-1)
        loss = jnp.take_along_axis(errors, masked.positions, axis=1).mean()
        return encoded.layers, encoded.hidden, predicted, loss

    layers, hidden, predicted, loss = computed(jnp.asarray(GOLDEN["pixels"]))
    for layer, (ours, theirs) in enumerate(zip(layers, GOLDEN["hidden_states"], strict=True)):
        close(ours, theirs, f"the hidden state after {layer} blocks")
    close(hidden, GOLDEN["latent"], "the encoder's last state")
    close(predicted, GOLDEN["predicted"], "the prediction")
    close(loss, GOLDEN["loss"], "the loss")
    assert not imported.untrained
    assert "--norm-pix-loss false" in imported.assumed


def test_strides_shared_storages_and_parameters_are_read_as_plain_tensors(tmp_path: Path) -> None:
    plain, training = (tensors(file(name, tmp_path)) for name in ("whole", "training"))
    assert plain.keys() == training.keys()
    for name, tensor in plain.items():
        np.testing.assert_array_equal(training[name], tensor, strict=True)


def test_types_and_shapes_of_all_kinds(tmp_path: Path) -> None:
    expected = {
        "int64": np.array([1, 3, 5]),
        "bfloat16": np.arange(6).reshape(2, 3).T.astype(ml_dtypes.bfloat16),
        "expanded": np.full((2, 2), 2.5, np.float32),
        "scalar": np.array(7.0),
        "empty": np.zeros((0, 3), np.float32),
        "bool": np.array([True, False]),
    }
    checkpoint = Checkpoint(file("types", tmp_path))
    for name, value in expected.items():
        np.testing.assert_array_equal(checkpoint.read(name), value, strict=True)
        assert (checkpoint[name].shape, checkpoint[name].dtype) == (value.shape, value.dtype.name)


@pytest.mark.parametrize("kind", ["half", "bfloat16"])
def test_half_precision_is_read_rounded(kind: str, tmp_path: Path) -> None:
    dtype = {"half": np.float16, "bfloat16": ml_dtypes.bfloat16}[kind]
    for name, tensor in tensors(file("whole", tmp_path)).items():
        rounded = Checkpoint(file(kind, tmp_path)).read(name)
        np.testing.assert_array_equal(rounded, tensor.astype(dtype), strict=True)
    assert not read(file(kind, tmp_path), **HEADS).untrained


def test_the_arguments_of_a_training_tell_target_and_ratio(tmp_path: Path) -> None:
    imported = read(file("training", tmp_path), **HEADS)
    objective = imported.run.config.objective
    assert (objective.target.normalise, objective.selection.ratio) == (False, 0.5)
    assert not imported.assumed
    asked = mlmjax.from_mae(tmp_path / "training.pth", norm_pix_loss=True, **HEADS)
    assert asked.config.objective.target.normalise


def test_a_checkpoint_is_exported_reconstructed_and_embedded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, run = file("whole", tmp_path), str(tmp_path / "run")
    heads = ["--heads", "3", "--decoder-heads", "2"]
    main(["import", str(source), "--out", run, *heads])
    said = capsys.readouterr().out
    assert "MAE is in" in said
    assert "normalised is assumed" in said
    record = json.loads(RunFolder(run).manifest.read_text())["imported"]
    assert record == {"from": "whole.pth", "architecture": "MAE", "untrained": []}

    main(["export", run, "--out", str(tmp_path / "theirs")])
    again = mlmjax.from_huggingface(tmp_path / "theirs")
    config = json.loads((tmp_path / "theirs/config.json").read_text())
    assert config["architectures"] == ["ViTMAEForPreTraining"]
    assert (config["norm_pix_loss"], config["layer_norm_eps"]) == (True, 1e-6)
    state = [jax.tree.leaves(mlmjax.load(run).model), jax.tree.leaves(again.model)]
    assert len(state[0]) > 20
    for ours, theirs in zip(*state, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert again.config.model == mlmjax.load(run).config.model

    picture, grid = tmp_path / "picture.png", tmp_path / "grid.png"
    Image.fromarray(GOLDEN["pixels"][0]).save(picture)
    main(["reconstruct", run, str(picture), "--out", str(grid)])
    assert grid.is_file()
    main(["embed", run, str(picture), "--out", str(tmp_path / "features.npz")])
    assert np.load(tmp_path / "features.npz")["features"].shape == (1, 12)


def test_an_encoder_alone_is_given_the_papers_decoder_and_not_exported_with_it(
    tmp_path: Path,
) -> None:
    run = mlmjax.from_mae(file("encoder", tmp_path), heads=3)
    assert run.untrained == ("decoder",)
    assert run.config.model.decoder == DecoderConfig()
    with pytest.raises(UserError, match="ViTMAEForPreTraining needs decoder"):
        mlmjax.to_huggingface(run, tmp_path / "theirs")
    mlmjax.to_huggingface(run, tmp_path / "theirs", architecture="ViTMAEModel")
    theirs = load_file(tmp_path / "theirs" / "model.safetensors")
    ours = tensors(tmp_path / "encoder.pth")
    np.testing.assert_array_equal(theirs["layernorm.weight"], ours["norm.weight"])
    assert not any("decoder" in name for name in theirs)


def _u(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text)) + text.encode()


CALLS = {
    "a function by REDUCE": (
        b"\x80\x02cposix\nsystem\n" + _u("touch ran") + b"\x85R.",
        "posix.system",
    ),
    "a name alone": (b"\x80\x02cbuiltins\neval\n.", "builtins.eval"),
    "a name of Python 2": (b"\x80\x02c__builtin__\nexec\n.", "__builtin__.exec"),
    "a name on the stack": (
        b"\x80\x04" + _u("os") + _u("path.os.system") + b"\x93.",
        "os.path.os.system",
    ),
    "an instance": (b"(S'ls'\nisubprocess\nPopen\n.", "subprocess.Popen"),
    "an object": (b"\x80\x02(csubprocess\nPopen\n" + _u("ls") + b"o.", "subprocess.Popen"),
    "a new object": (b"\x80\x02csubprocess\nPopen\n)\x81.", "subprocess.Popen"),
    "in a list in a mapping": (
        b"\x80\x02}" + _u("model") + b"](cos\nsystem\n" + _u("ls") + b"\x85Res.",
        "os.system",
    ),
    "another function of torch": (
        b"\x80\x02ctorch\nload\n" + _u("more.pth") + b"\x85R.",
        "torch.load",
    ),
    "another name of a known module": (b"\x80\x02ccollections\nabc.sys\n.", "collections.abc.sys"),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_pickle_that_calls_what_tensors_do_not_need_is_refused_by_name(
    what: str, tmp_path: Path
) -> None:
    pickled, name = CALLS[what]
    path = rewritten("encoder", tmp_path, data_pkl=pickled)
    with pytest.raises(UserError, match=r"changed\.pth would call " + name + ", which could run"):
        Checkpoint(path)


@pytest.mark.parametrize("name", ["system", "nested", "protocol_4"])
def test_what_torch_saves_of_an_object_that_runs_code_does_not_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = file(f"evil_{name}", tmp_path)
    with pytest.raises(UserError, match="could run code"):
        import_run(path, tmp_path / "run", read)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "what",
    [
        b"ctorch._utils\n_rebuild_tensor_v2\n",
        b"ctorch._utils\n_rebuild_parameter\n",
        b"ctorch\nFloatStorage\n",
        b"ccollections\nOrderedDict\n",
    ],
)
@pytest.mark.parametrize("slots", [True, False])
def test_a_pickle_cannot_change_what_the_next_one_is_read_with(
    what: bytes, slots: bool, tmp_path: Path
) -> None:
    change = b"}" + b"".join(_u(name) + _u("float64") + b"s" for name in ("name", "__call__"))
    changed = b"(N" + change + b"t" if slots else change
    with pytest.raises(UserError, match=r"changed\.pth is damaged"):
        Checkpoint(rewritten("encoder", tmp_path, data_pkl=b"\x80\x02" + what + changed + b"b."))
    assert Checkpoint(file("encoder", tmp_path))["cls_token"].dtype == "float32"


def _broken(what: str, folder: Path) -> tuple[Path, str]:
    match what:
        case "truncated":
            path = file("whole", folder)
            path.write_bytes(path.read_bytes()[:-200])
            return path, r"whole\.pth is truncated or damaged"
        case "cut in front":
            path = file("whole", folder)
            path.write_bytes(path.read_bytes()[:4] + path.read_bytes()[4000:])
            return path, r"whole\.pth is (truncated or )?damaged"
        case "legacy":
            return file("legacy", folder), "before version 1.6, which is not read. Save it anew"
        case "no checkpoint":
            path = folder / "text.pth"
            path.write_text("no weights")
            return path, r"text\.pth is no checkpoint of PyTorch"
        case "another archive":
            path = folder / "other.pth"
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("a", b"b")
            return path, r"holds 0 data\.pkl"
        case "empty":
            path = folder / "empty.pth"
            path.touch()
            return path, r"empty\.pth is no checkpoint of PyTorch"
        case "absent":
            return folder / "absent.pth", r"no file .*absent\.pth"
        case "damaged pickle":
            return rewritten(
                "whole", folder, data_pkl=b"\x80\x02}q"
            ), r"its data\.pkl cannot be read"
        case "big endian":
            return rewritten("whole", folder, byteorder=b"big"), "byte order is big"
        case "storage missing":
            return rewritten("whole", folder, **{"data/3": None}), "numbers of .* are not all there"
        case "storage short":
            return (
                rewritten("whole", folder, **{"data/3": b"1234"}),
                "numbers of .* are not all there",
            )
        case "no state dict":
            return rewritten("whole", folder, data_pkl=b"\x80\x02]."), "holds no state dict"
        case "no tensors":
            pickled = b"\x80\x02}" + _u("epoch") + b"K\x01s."
            return rewritten("whole", folder, data_pkl=pickled), "epoch is no tensor"
        case "missing":
            path = renamed("whole", folder, "blocks.1.attn.proj.bias", "blocks.1.attn.proj.bia2")
            return path, r"lacks blocks\.1\.attn\.proj\.bias \(12,\)"
        case "extra":
            path = renamed("whole", folder, "decoder_pos_embed", "decoder_pos_embe2")
            return path, r"does not: decoder_pos_embe2 \(1, 10, 8\)"
        case "no layout":
            return file("types", folder), r"has no pos_embed, so it is no checkpoint of MAE's code"
        case "positions":
            values = np.zeros(10 * 12, np.float32).tobytes()
            return rewritten("whole", folder, **{"data/1": values}), "pos_embed has not the values"
    raise AssertionError(what)


@pytest.mark.parametrize(
    "what",
    [
        "truncated",
        "cut in front",
        "legacy",
        "no checkpoint",
        "another archive",
        "empty",
        "absent",
        "damaged pickle",
        "big endian",
        "storage missing",
        "storage short",
        "no state dict",
        "no tensors",
        "missing",
        "extra",
        "no layout",
        "positions",
    ],
)
def test_a_file_that_cannot_be_used_is_refused_and_nothing_is_left(
    what: str, tmp_path: Path
) -> None:
    path, message = _broken(what, tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError, match=message):
        import_run(path, tmp_path / "run", lambda path: read(path, **HEADS))
    assert sorted(tmp_path.iterdir()) == before


def test_heads_are_those_of_the_published_widths_or_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = str(file("whole", tmp_path)), str(tmp_path / "run")
    ours = ["import", path, "--out", out]
    assert "heads of a width of 12," in refused(capsys, *ours)
    assert "give --decoder-heads" in refused(capsys, *ours, "--heads", "3")
    assert "--heads 5: it must divide the width, which is 12" in refused(
        capsys, *ours, "--heads", "5"
    )
    encoder = str(file("encoder", tmp_path))
    said = refused(capsys, "import", encoder, "--out", out, "--heads", "3", "--decoder-heads", "2")
    assert "--decoder-heads 2" in said
    assert "has no decoder" in said
    folder = tmp_path / "model"
    folder.mkdir()
    for option in (["--heads", "3"], ["--decoder-heads", "3"], ["--norm-pix-loss", "true"]):
        said = refused(capsys, "import", str(folder), "--out", out, *option)
        assert f"{' '.join(option)}: it is for a .pth file" in said
