"""``mlmjax prepare`` of images: what it reports, and that bad input ends with a sentence that names it."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mlmjax.cli import main
from mlmjax.data.images import ImageData
from mlmjax.experiment import Experiment, RunConfig
from mlmjax.models.mae import DecoderConfig, MaeConfig
from mlmjax.models.vit import VitConfig
from mlmjax.objectives.mae import MaskedAutoencoder
from mlmjax.optim import AdamW, WarmupSchedule
from tests.commands import printed, refused

CONFIG = '''
"""A small model of small images."""
from mlmjax.experiment import Experiment

experiment = Experiment.from_json({text!r})
'''


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A config file of a small masked autoencoder; the working folder is the test's."""
    monkeypatch.chdir(tmp_path)
    small = {"layers": 1, "hidden": 16, "heads": 2, "mlp": 32}
    experiment = Experiment(
        model=MaeConfig(
            encoder=VitConfig(image=(8, 8), patch=(4, 4), channels=3, **small),
            decoder=DecoderConfig(**small),
        ),
        objective=MaskedAutoencoder(),
        data=ImageData(size=(8, 8), batch=4, heldout=0.3, cache=str(tmp_path / "c"), workers=1),
        optimizer=AdamW(learning_rate=WarmupSchedule(peak=1e-3, warmup=2)),
        run=RunConfig(steps=2, tensorboard=False),
    )
    path = tmp_path / "small.py"
    path.write_text(CONFIG.format(text=experiment.to_json()))
    return str(path)


@pytest.fixture
def told(config: str, tmp_path: Path, capsys: pytest.CaptureFixture):
    """Runs the command on a root, sees it refused with nothing left in the cache; what it says."""

    def run(root: object, *options: str) -> str:
        cache = tmp_path / "refused"
        arguments = ["prepare", config, "--data.root", str(root), "--data.cache", str(cache)]
        said = refused(capsys, *arguments, *options)
        assert not cache.exists() or not list(cache.iterdir())
        return said

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve images of two classes."""
    rng = np.random.default_rng(0)
    for number in range(12):
        path = tmp_path / "images" / f"kind{number % 2}" / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (9, 10, 3), np.uint8)).save(path)
    return tmp_path / "images"


def test_it_reports_what_was_read_left_out_and_made(
    config: str, folder: Path, capsys: pytest.CaptureFixture
) -> None:
    (folder / "kind0" / "cut.png").write_bytes((folder / "kind0" / "00.png").read_bytes()[:120])
    Image.new("RGB", (3, 3)).save(folder / "kind1" / "tiny.png")
    Image.open(folder / "kind1" / "01.png").save(folder / "kind1" / "copy.bmp")
    (folder / "notes.txt").write_text("x")
    options = ["--data.on-error", "skip", "--data.smallest", "4", "4"]
    main(["prepare", config, "--data.root", str(folder), *options])
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for row in (
        "read 15",
        "cannot be read 1",
        "smaller than --data.smallest 1",
        "kept 13",
        "equal to an earlier one 1",
        "other files 1",
        "RGB 13",
        "left out: " + str(folder / "kind0" / "cut.png"),
        "tiny.png is of 3×3 pixels",
        "height, smallest to largest 9 9",
        "class kind0",
        "class kind1",
        "Written as 8×8 pixels, 8 bits, 3 channels.",
    ):
        assert row in said


def test_the_record_is_printed(config: str, folder: Path, capsys: pytest.CaptureFixture) -> None:
    found = printed(capsys, "prepare", config, "--data.root", str(folder), "--json")
    assert found["images"]["kept"] == 12
    assert found["classes"] == ["kind0", "kind1"]
    assert sum(split["images"] for split in found["splits"].values()) == 12
    assert (Path(found["folder"]) / "train.npy").exists()


def test_the_digits_are_prepared_without_a_root(config: str, capsys: pytest.CaptureFixture) -> None:
    found = printed(capsys, "prepare", config, "--json", "--data.root", "None")
    assert found["images"]["kept"] == 1797


def test_a_truncated_file(told, folder: Path) -> None:
    path = folder / "kind1" / "03.png"
    path.write_bytes(path.read_bytes()[:-40])
    said = told(folder)
    assert f"{path}: a damaged image" in said
    assert "--data.on-error skip" in said


def test_a_file_that_is_no_image(told, folder: Path) -> None:
    (folder / "kind0" / "00.png").write_text("<html>not found</html>")
    assert f"{folder}/kind0/00.png: no image that can be read" in told(folder)


def test_an_image_smaller_than_a_patch(
    config: str, folder: Path, capsys: pytest.CaptureFixture
) -> None:
    Image.new("RGB", (9, 3)).save(folder / "kind0" / "flat.png")
    command = ["prepare", config, "--data.root", str(folder)]
    said = refused(capsys, *command)
    assert f"{folder}/kind0/flat.png has a height of 3 pixels, and a patch one of 4" in said
    assert "--data.smallest 4 4 --data.on-error skip" in said
    options = ["--data.smallest", "4", "4", "--data.on-error", "skip", "--json"]
    assert printed(capsys, *command, *options)["images"]["small"] == 1


def test_images_of_other_channels(
    told, config: str, folder: Path, capsys: pytest.CaptureFixture
) -> None:
    Image.new("L", (9, 9)).save(folder / "kind0" / "grey.png")
    said = told(folder)
    assert "Images differ in their channels: 1 (" in said
    assert "grey.png" in said
    assert "--data.mixed convert" in said
    options = ["--data.root", str(folder), "--data.mixed", "convert", "--json"]
    assert printed(capsys, "prepare", config, *options)["channels"] == {"1": 1, "3": 12}


def test_a_folder_without_images(told, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert f"The folder holds no image: {tmp_path}/empty (--data.root)" in told(tmp_path / "empty")
    (tmp_path / "empty" / "notes.txt").write_text("x")
    assert "The folder holds no image" in told(tmp_path / "empty")
    assert "There is no file or folder none (--data.root)" in told("none")


def test_an_image_that_would_not_come_out_right(told, folder: Path) -> None:
    Image.fromarray(np.ones((9, 9), np.float32)).save(folder / "kind0" / "real.tiff")
    said = told(folder)
    assert "real.tiff: an image of real numbers" in said


def test_a_link_to_nothing(told, folder: Path) -> None:
    (folder / "kind0" / "gone.png").symlink_to(folder / "nowhere.png")
    assert "gone.png is a link to nothing (--data.root)" in told(folder)


def test_options_that_are_refused(config: str, capsys: pytest.CaptureFixture) -> None:
    said = refused(capsys, "prepare", config, "--data.crop", "1.0", "0.2")
    assert "give the smaller share first" in said
    assert "--data.heldout" in refused(capsys, "prepare", config, "--data.heldout", "1.5")
    said = refused(capsys, "prepare", config, "--runner", "DirectRunner")
    assert "--runner prepares text" in said
