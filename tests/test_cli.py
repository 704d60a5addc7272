"""The command line: what it prints, and that bad input ends with a sentence and status 2."""

import io
import json
from pathlib import Path

import pytest

from mlmjax.cli import main
from mlmjax.experiment import shipped
from tests.commands import printed, refused


def test_train_then_fill(config: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    main(["train", config])
    said = capsys.readouterr().out
    assert "mask accuracy" in said
    assert "unigram" in said
    assert "The [MASK] of values." in said
    folder = tmp_path / "runs" / "small"
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "config.json",
        "manifest.json",
        "metrics.jsonl",
        "tokenizer.json",
        "checkpoints",
    }
    manifest = json.loads((folder / "manifest.json").read_text())
    told = {"versions", "data", "tokenizer", "mask", "corruption", "visibility", "target", "loss"}
    assert told | {"seed", "precision", "stopping"} <= set(manifest)
    prepared = printed(capsys, "prepare", config, "--json")
    assert prepared["fingerprint"] == manifest["data"]["fingerprint"]

    main(["train", str(folder)])
    assert "finished" in capsys.readouterr().out
    main(["fill-mask", str(folder), "The [MASK] of [MASK].", "--top", "3"])
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_fill_mask_reads_lines_and_writes_json(
    config: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["train", config])
    capsys.readouterr()
    monkeypatch.setattr("sys.stdin", io.StringIO("A [MASK] path.\n\nthe [MASK]\n"))
    main(["fill-mask", "runs/small", "--json", "--top", "2"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["text"] for each in found] == ["A [MASK] path.", "the [MASK]"]
    candidates = found[0]["masks"][0]
    assert len(candidates) == 2
    assert 0 < candidates[1]["probability"] <= candidates[0]["probability"] < 1
    assert found[0]["best"] == f"A {candidates[0]['token']} path."


def test_configs_lists_the_shipped(capsys: pytest.CaptureFixture) -> None:
    main(["configs"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(shipped())
    assert all(len(line.split()) > 4 for line in lines)


def test_help_shows_the_options(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["train", "bert_tiny", "--help"])
    assert not caught.value.code
    said = capsys.readouterr().out
    for option in (
        "--run.folder",
        "--run.steps",
        "--run.seed",
        "--run.checkpoint-every",
        "--run.log-every",
        "--data.root",
        "--objective.selection.ratio",
        "--mesh.data",
        "--mesh.fsdp",
        "--mesh.tensor",
    ):
        assert option in said
    assert "vocabulary.padding" not in said


def test_options_reach_into_parts_that_may_be_missing(capsys: pytest.CaptureFixture) -> None:
    for config, option in (
        ("mae_tiny", "--model.decoder.layers"),
        ("bert_tiny", "--objective.ratio-schedule.steps"),
    ):
        assert option in refused(capsys, "train", config, option, "0")
        with pytest.raises(SystemExit):
            main(["train", config, "--help"])
        assert option in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--run.step", "5"), "--run.steps"),
        (("--run.steps", "0"), "--run.steps: Input should be greater than 0 (got 0)"),
        (("--model.heads", "3"), "--model: hidden 32 is not a multiple of heads 3"),
        (("--run.folder", "small.py/run"), "small.py/run cannot be written"),
        (("--run.steps", "many"), "--run.steps"),
        (("--objective.selection.ratio", "1.5"), "--objective.selection.ratio: Input"),
        (("--data.root", "nowhere"), "nowhere"),
        (("--data.root", ""), "--data.root"),
        (("--run.folder", ""), "--run.folder"),
        (("--data.root", "empty"), "empty"),
        (("--data.length", "64"), "--data.length to at most 32"),
        (("--data.batch", "7"), "--data.batch 7"),
        (("--mesh.fsdp", "3"), "--mesh.fsdp 3"),
        (("--model.vocabulary", "77"), "--model.vocabulary"),
        (("--data.tokenizer.path", "none.json"), "none.json"),
        (("--data.tokenizer.path", "no_mask.txt"), "[MASK]"),
        (("--objective.next-sentence",), "--data.layout pairs"),
        (("--run.folder", "small.py"), "small.py"),
        (("--run.folder", "full"), "full"),
        (("--run.wandb", "project"), "wandb"),
    ],
)
def test_bad_options_are_refused(
    config: str, capsys: pytest.CaptureFixture, options: tuple[str, ...], sentence: str
) -> None:
    Path("empty").mkdir()
    Path("full").mkdir()
    Path("full/mine.txt").write_text("mine")
    Path("no_mask.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\n")
    assert sentence in refused(capsys, "train", config, *options)
    assert not Path("runs").exists()
    assert Path("full/mine.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("trian", "bert_tiny"), "train"),
        (("train",), "mlmjax configs"),
        (("train", "bert_tinny"), "bert_tiny"),
        (("train", "empty"), "config.json"),
        (("fill-mask", "empty", "a [MASK]"), "config.json"),
        (("fill-mask", "nowhere", "a [MASK]"), "nowhere"),
    ],
)
def test_bad_commands_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    arguments: tuple[str, ...],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    assert sentence in refused(capsys, *arguments)


def test_a_run_without_a_checkpoint_and_texts_that_do_not_fit(
    config: str, capsys: pytest.CaptureFixture
) -> None:
    main(["train", config])
    capsys.readouterr()
    assert "no [MASK]" in refused(capsys, "fill-mask", "runs/small", "no mask here")
    assert "32 positions" in refused(capsys, "fill-mask", "runs/small", "list " * 40 + "[MASK]")
    assert "--top" in refused(capsys, "fill-mask", "runs/small", "a [MASK]", "--top", "0")
    assert "run.seed: 0 -> 5" in refused(capsys, "train", config, "--run.seed", "5")
    Path("runs/small/checkpoints").rename("runs/elsewhere")
    assert "no checkpoint" in refused(capsys, "fill-mask", "runs/small", "a [MASK]")


def test_one_bad_line_does_not_end_the_others(
    config: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["train", config])
    capsys.readouterr()
    lines = "a [MASK]\nno mask\n\udcff [MASK]\nthe [MA\x01SK] of\nb [MASK]\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    with pytest.raises(SystemExit) as caught:
        main(["fill-mask", "runs/small", "--json"])
    said = capsys.readouterr()
    assert caught.value.code == 2
    answered = [json.loads(line)["text"] for line in said.out.splitlines()]
    assert answered == ["a [MASK]", "the [MA\x01SK] of", "b [MASK]"]
    assert "no [MASK]" in said.err
    assert "not UTF-8" in said.err
    assert "Did you mean --json?" in refused(capsys, "fill-mask", "runs/small", "--jsn", "a [MASK]")


DAMAGED = [
    ("config.json", b"\xff", "config.json cannot be read"),
    ("config.json", b'{"class": "mlmjax.modelz:Model"}', "mlmjax.modelz:Model"),
    ("config.json", b'{"class": 3}', "not by 3"),
    ("manifest.json", b"{", "manifest.json is missing or damaged"),
    ("metrics.jsonl", b"rubbish\n{}\n", "metrics.jsonl:1"),
]


def test_a_damaged_run_folder_is_named(config: str, capsys: pytest.CaptureFixture) -> None:
    main(["train", config])
    folder = Path("runs/small")
    Path(folder, "checkpoints", "12").rename(folder / "aside")  # something is left to train
    for name, content, sentence in DAMAGED:
        capsys.readouterr()
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(content)
        assert sentence in refused(capsys, "train", str(folder), "--trust-code")
        assert (folder / name).read_bytes() == content
        (folder / name).write_bytes(whole)


def test_a_config_file_that_fails_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fails.py").write_text("x = 1\nx / 0\n")
    Path("ends.py").write_text("import sys\nsys.exit('bye')\n")
    Path("binary.py").write_bytes(b"\x00\x01")
    assert "fails.py:2: ZeroDivisionError" in refused(capsys, "train", "fails.py")
    assert "ends.py:2: SystemExit: bye" in refused(capsys, "train", "ends.py")
    assert "None" not in refused(capsys, "train", "binary.py")


def test_examples_that_do_not_fit_are_left_out(config: str, capsys: pytest.CaptureFixture) -> None:
    main(["train", config, "--data.examples", "nothing hidden", "a [MASK]"])
    said = capsys.readouterr().out
    assert "Not filled: There is no [MASK]" in said
    assert "a [MASK]\n  ->" in said
