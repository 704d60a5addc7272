"""Runs of images from the command line: what training shows, ``reconstruct``, ``embed``, and how they refuse."""

import contextlib
import io
import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tensorboardX.proto.event_pb2 import Event

from mlmjax.cli import main
from mlmjax.data.images import ImageData
from mlmjax.evaluation.features import features
from mlmjax.evaluation.given import picture_batches, picture_files
from mlmjax.experiment import Experiment, RunConfig
from mlmjax.masking import RandomPatches
from mlmjax.models.mae import DecoderConfig, MaeConfig
from mlmjax.models.vit import VitConfig
from mlmjax.objectives.mae import MaskedAutoencoder
from mlmjax.optim import AdamW, WarmupSchedule
from mlmjax.training.folder import load
from tests.commands import refused
from tests.conftest import CONFIG

SIZES = {"layers": 1, "hidden": 16, "heads": 2, "mlp": 32}


def pictures(folder: Path, classes: dict[str, int]) -> Path:
    """A folder of grey pictures, 12 high and 8 wide, in a folder for each class with its brightness."""
    draw = np.random.default_rng(0)
    for name, brightness in classes.items():
        (folder / name).mkdir(parents=True)
        for number in range(24):
            pixels = draw.integers(brightness, brightness + 60, size=(12, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number:02}.png")
    return folder


def write_config(path: Path, root: Path, cache: Path) -> str:
    """A config file of an experiment that trains in a second."""
    experiment = Experiment(
        model=MaeConfig(
            encoder=VitConfig(image=(12, 8), patch=(3, 2), channels=1, **SIZES),
            decoder=DecoderConfig(**SIZES),
        ),
        objective=MaskedAutoencoder(selection=RandomPatches(ratio=0.5)),
        data=ImageData(
            root=str(root), size=(12, 8), channels=1, batch=8, heldout=0.3, cache=str(cache)
        ),
        optimizer=AdamW(learning_rate=WarmupSchedule(peak=3e-3, warmup=1)),
        run=RunConfig(steps=4, log_every=2, evaluate_every=2, checkpoint_every=4),
    )
    path.write_text(CONFIG.format(text=experiment.to_json()))
    return str(path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with pictures and a run of them, and what training said."""
    folder = tmp_path_factory.mktemp("images")
    pictures(folder / "pictures", {"dark": 0, "light": 150})
    config = write_config(folder / "small.py", folder / "pictures", folder / "cache")
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as said:
        main(["train", config])
    return folder, said.getvalue()


@pytest.fixture
def folder(trained: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: there is a run in runs/small, and pictures."""
    monkeypatch.chdir(trained[0])
    return trained[0]


def events(folder: Path) -> list[tuple[int, str]]:
    """Step and name of every image that was written for TensorBoard."""
    found = []
    for path in sorted(folder.glob("events*")):
        content, at = path.read_bytes(), 0
        while at < len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            event = Event.FromString(content[at + 12 : at + 12 + length])
            found += [(event.step, one.tag) for one in event.summary.value if one.HasField("image")]
            at += 16 + length
    return found


def test_training_shows_errors_probes_and_pictures(trained: tuple[Path, str], folder: Path) -> None:
    said, run = trained[1], folder / "runs" / "small"
    for word in ("mask loss", "pixel error", "flat patches", "linear probe", "k-NN", "raw pixels"):
        assert word in said
    assert "random encoder" in said
    assert "runs/small/reconstructions.png" in said
    with Image.open(run / "reconstructions.png") as picture:
        assert picture.size[0] > 6 * 64  # two blocks of three
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    accuracies = {
        f"heldout/{of}{probe}_accuracy"
        for of in ("", "random_", "pixels_")
        for probe in ("linear_probe", "knn")
    }
    assert accuracies <= set(records[-1])
    assert records[-1]["heldout/pixels_linear_probe_accuracy"] == 1  # dark and light
    assert not accuracies & set(records[0])  # the held-out labels are looked at once
    assert "heldout/mask_loss" in records[0]
    assert records[-1]["heldout/flat_mask_loss"] == pytest.approx(5 / 6, rel=1e-3)
    probes = json.loads((run / "probes.json").read_text())
    assert probes["train"] + probes["heldout"] == 48
    assert str(probes["linear_probe"]["chosen"]) in probes["linear_probe"]["validation"]
    assert events(run / "tensorboard" / "pictures") == [
        (2, "heldout/reconstructions"),
        (4, "heldout/reconstructions"),
    ]


def test_reconstruct_draws_the_same_picture_twice(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    given = ["pictures/dark/00.png", "pictures/light"]

    def drawn(*options: str) -> bytes:
        main(["reconstruct", "runs/small", *given, "--out", "grid.png", *options])
        return Path("grid.png").read_bytes()

    first = drawn("--ratio", "0.75", "--seed", "3")
    said = capsys.readouterr().out
    assert "visible patches around" in said
    assert "grid.png" in said
    assert drawn("--ratio", "0.75", "--seed", "3") == first
    assert drawn("--ratio", "0.75", "--seed", "4") != first
    assert drawn("--ratio", "0.5", "--seed", "3") != first
    capsys.readouterr()
    assert drawn("--ratio", "0.75", "--seed", "3", "--statistics", "true") != first
    assert "uses the answer" in capsys.readouterr().out
    drawn("--size", "24", "16")
    with Image.open("grid.png") as picture:
        assert picture.format == "PNG"


def test_embed_writes_what_features_gives_and_the_same_bytes_twice(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    given = ["pictures/light/03.png", "pictures/dark"]
    main(["embed", "runs/small", *given, "--out", "a.npz"])
    assert "25 rows of 16 features are in a.npz" in capsys.readouterr().out
    main(["embed", "runs/small", *given, "--out", "b.npz"])
    assert Path("a.npz").read_bytes() == Path("b.npz").read_bytes()
    found = np.load("a.npz")
    assert found["names"].tolist()[:2] == ["pictures/light/03.png", "pictures/dark/00.png"]
    run = load("runs/small")
    assert run.step == 4
    batches = list(picture_batches(run, picture_files(given)))
    assert (found["features"] == features(run.model, batches)).all()
    pixels = np.asarray(Image.open("pictures/light/03.png"))
    assert (batches[0]["pixels"][0, ..., 0] == pixels).all()
    main(["embed", "runs/small", *given, "--out", "b.npz", "--layer", "0", "--pooling", "class"])
    assert (
        np.load("b.npz")["features"] == np.load("b.npz")["features"][0]
    ).all()  # the token alone
    for size in (("24", "16"), ("3", "2")):  # of one patch, of which none could be hidden
        main(["embed", "runs/small", *given, "--out", "b.npz", "--size", *size])
        assert np.load("b.npz")["features"].shape == found["features"].shape


@pytest.mark.slow
def test_embed_texts_and_no_pictures_of_them(
    config: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["train", config, "--run.steps", "2"])
    texts = ["the list of values", "a new  file", "the list of values"]
    main(["embed", "runs/small", *texts, "--out", "a.npz"])
    found = np.load("a.npz")
    assert found["texts"].tolist() == texts
    assert found["features"].shape == (3, 32)
    assert (found["features"][0] == found["features"][2]).all()
    assert np.abs(found["features"][0] - found["features"][1]).max() > 1e-4
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([*texts[:2], "", texts[2]]) + "\n"))
    main(["embed", "runs/small", "--out", "b.npz"])
    assert Path("a.npz").read_bytes() == Path("b.npz").read_bytes()
    capsys.readouterr()

    Image.fromarray(np.zeros((8, 8), np.uint8)).save("picture.png")
    assert "is of text" in refused(capsys, "reconstruct", "runs/small", "picture.png")
    assert "--layer 3" in refused(capsys, "embed", "runs/small", "a", "--layer", "3")
    assert "--size" in refused(capsys, "embed", "runs/small", "a", "--size", "8", "8")
    assert "32 positions" in refused(capsys, "embed", "runs/small", "list " * 40)
    assert "no token" in refused(capsys, "embed", "runs/small", "\x01")
    assert "not UTF-8" in refused(capsys, "embed", "runs/small", "\udcff")
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert "nothing to embed" in refused(capsys, "embed", "runs/small")


PNG = "pictures/dark/00.png"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("reconstruct", "runs/small", "bad.png"), "bad.png: no image"),
        (("reconstruct", "runs/small", "cut.png"), "cut.png: a damaged image"),
        (
            ("reconstruct", "runs/small", "tiny.png"),
            "tiny.png is of 2×8 pixels, smaller than a patch",
        ),
        (("reconstruct", "runs/small", "nowhere.png"), "There is no image nowhere.png"),
        (("reconstruct", "runs/small", "empty"), "The folder empty holds no image"),
        (("reconstruct", "runs/small"), "image"),
        (("reconstruct", "empty", PNG), "config.json"),
        (("reconstruct", "runs/small", PNG, "--ratio", "1"), "--ratio 1: it must lie between"),
        (
            ("reconstruct", "runs/small", PNG, "--ratio", "0.01"),
            "masks none of 16 patches: set --ratio",
        ),
        (
            ("reconstruct", "runs/small", PNG, "--ratio", "0.99"),
            "leaves none of 16 patches visible",
        ),
        (("reconstruct", "runs/small", PNG, "--seed", "-1"), "--seed -1"),
        (("reconstruct", "runs/small", PNG, "--statistics", "none"), "--statistics"),
        (
            ("reconstruct", "runs/small", PNG, "--size", "13", "8"),
            "--size 13 8: .*12 or 15 would do",
        ),
        (("reconstruct", "runs/small", PNG, "--size", "0", "8"), "--size 0"),
        (
            ("reconstruct", "runs/small", PNG, "--out", "nowhere/a.png"),
            "there is no folder nowhere",
        ),
        (("reconstruct", "runs/small", PNG, "--rate", "0.5"), "Did you mean --ratio?"),
        (("embed", "runs/small", PNG, "--layer", "2"), "--layer 2: the encoder has layers 0"),
        (("embed", "runs/small", PNG, "--pooling", "sum"), "--pooling"),
        (("embed", "runs/small", "bad.png"), "bad.png"),
        (("embed", "runs/small"), "nothing to embed"),
        (("embed", "runs/small", PNG, "--out", "."), "Is a directory"),
        (("fill-mask", "runs/small", "a [MASK]"), "is not of text"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(
    folder: Path, capsys: pytest.CaptureFixture, arguments: tuple[str, ...], sentence: str
) -> None:
    Path("empty").mkdir(exist_ok=True)
    Path("bad.png").write_bytes(b"no picture")
    whole = Path(PNG).read_bytes()
    Path("cut.png").write_bytes(whole[: len(whole) // 2])
    Image.fromarray(np.zeros((2, 8), np.uint8)).save("tiny.png")
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*.[pn]*")}
    assert re.search(sentence, refused(capsys, *arguments))
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*.[pn]*")} == before


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--objective.selection.ratio", "0.01"), "masks none of 16 patches"),
        (("--objective.selection.ratio", "0.99"), "leaves none of 16 patches visible"),
        (("--data.size", "12", "10"), "--data.size 12 8"),
        (("--model.encoder.patch", "5", "2"), "10 or 15 would do"),
        (("--data.root", "empty"), "empty"),
        (("--data.root", "small"), "--model.encoder.patch"),
    ],
)
def test_training_refuses_before_a_folder_is_made(
    folder: Path, capsys: pytest.CaptureFixture, options: tuple[str, ...], sentence: str
) -> None:
    Path("empty").mkdir(exist_ok=True)
    Path("small").mkdir(exist_ok=True)
    for number in range(12):
        draw = np.random.default_rng(number)
        Image.fromarray(draw.integers(0, 256, (2, 8), np.uint8)).save(f"small/{number}.png")
    assert sentence in refused(capsys, "train", "small.py", "--run.folder", "runs/new", *options)
    assert not Path("runs/new").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("classes", "sentence"),
    [({"only": 100}, "Not probed: A probe needs at least two classes"), ({".": 100}, "no labels")],
)
def test_a_run_that_cannot_be_probed_ends_well_and_says_why(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    classes: dict[str, int],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, brightness in classes.items():
        folder = tmp_path / "pictures" / name
        folder.mkdir(parents=True, exist_ok=True)
        draw = np.random.default_rng(0)
        for number in range(24):
            pixels = draw.integers(brightness, 256, size=(12, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number:02}.png")
    config = write_config(tmp_path / "small.py", tmp_path / "pictures", tmp_path / "cache")
    main(["train", config, "--run.steps", "1", "--run.no-tensorboard"])
    said = " ".join(capsys.readouterr().out.split())
    assert sentence in said
    assert "linear probe" not in said
    assert Path("runs/small/reconstructions.png").exists()
    assert not Path("runs/small/tensorboard").exists()
