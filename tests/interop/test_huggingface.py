"""Weights in and out: parity with transformers, round trips, and folders that cannot be used."""

import importlib.util
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import mlmjax
from mlmjax.cli import main
from mlmjax.core.errors import UserError
from mlmjax.interop.huggingface.importing import import_run
from mlmjax.sharding import MeshConfig
from mlmjax.training.folder import RunFolder
from tests.interop.parity import check, write_folder

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = sorted(path.stem for path in GOLDEN.glob("huggingface_*.npz"))
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "##s", "on", "mat", ".")


def golden(name: str) -> dict[str, np.ndarray]:
    return dict(np.load(GOLDEN / f"{name}.npz"))


def folder_of(name: str, folder: Path, *, tokenizer: bool = True) -> Path:
    """A golden case's model folder, with a tokenizer of its size."""
    case = golden(name)
    write_folder(case, folder)
    if tokenizer:
        size = json.loads(str(case["config"]))["vocab_size"]
        words = [*WORDS, *(f"w{i}" for i in range(size - len(WORDS)))]
        (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return folder


@pytest.mark.parametrize("name", CASES)
def test_golden_parity(name: str, tmp_path: Path) -> None:
    check(golden(name), tmp_path / "model")


@pytest.mark.skipif(
    not (importlib.util.find_spec("torch") and importlib.util.find_spec("transformers")),
    reason="needs the extra parity",
)
def test_live_parity(tmp_path: Path) -> None:
    from tests.golden.make_huggingface import cases

    for name, case in cases():
        check(case, tmp_path / name)


@pytest.mark.parametrize("name", [name for name in CASES if "packed" not in name])
def test_round_trip_is_bit_for_bit(name: str, tmp_path: Path) -> None:
    source = folder_of(name, tmp_path / "model", tokenizer=False)
    mlmjax.to_huggingface(mlmjax.from_huggingface(source), tmp_path / "back")
    before, after = ((f / "model.safetensors").read_bytes() for f in (source, tmp_path / "back"))
    assert before == after
    old, new = (json.loads((f / "config.json").read_text()) for f in (source, tmp_path / "back"))
    assert {**old, "dtype": "float32"} == {name: new[name] for name in old}


def test_half_precision_buffers_and_old_names_come_back(tmp_path: Path) -> None:
    source = folder_of("huggingface_bert_encoder", tmp_path / "model", tokenizer=False)
    tensors = load_file(source / "model.safetensors")
    rows = tensors["embeddings.position_embeddings.weight"].shape[0]
    changed = {
        k.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): v.astype(np.float16)
        for k, v in tensors.items()
    }
    changed["embeddings.position_ids"] = np.arange(rows)[None]
    save_file(changed, source / "model.safetensors", metadata={"format": "pt"})
    run = mlmjax.from_huggingface(source)
    assert run.untrained == ("mlm", "next_sentence")
    mlmjax.to_huggingface(run, tmp_path / "back")
    back = load_file(tmp_path / "back/model.safetensors")
    assert back.keys() == changed.keys()
    for name, tensor in changed.items():
        np.testing.assert_array_equal(back[name], tensor, strict=True)


def test_sharded_files_and_a_mesh(tmp_path: Path) -> None:
    source = folder_of("huggingface_bert_encoder", tmp_path / "model", tokenizer=False)
    whole = mlmjax.from_huggingface(source)
    tensors = load_file(source / "model.safetensors")
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, some in parts.items():
        save_file({name: tensors[name] for name in some}, source / file)
    where = {name: file for file, some in parts.items() for name in some}
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (source / "model.safetensors").unlink()
    mesh = MeshConfig(data=1, fsdp=8).make()
    cut = mlmjax.from_huggingface(source, mesh=mesh)
    ours, theirs = (each.model.encoder.layers.up.kernel[...] for each in (cut, whole))
    np.testing.assert_array_equal(ours, theirs)
    assert ours.addressable_shards[0].data.size * 8 == ours.size


def test_an_imported_run_is_used_trained_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = folder_of("huggingface_bert_encoder", tmp_path / "model")
    run, out = tmp_path / "run", tmp_path / "out"
    main(["import", str(source), "--out", str(run)])
    assert "no mlm, no next_sentence" in capsys.readouterr().out
    before = mlmjax.load(run)
    with pytest.raises(UserError, match="no masked-token head"):
        mlmjax.fill_mask(before, "the [MASK] sat")
    with pytest.raises(UserError, match="BertForMaskedLM needs mlm"):
        mlmjax.to_huggingface(before, out, architecture="BertForMaskedLM")
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"the cat sat on mat w{i} w{i + 1} ." * 3 for i in range(12)))
    options = f"--data.root {text} --data.length 8 --data.batch 8 --run.steps 2 --data.workers 1"
    rate = "--optimizer.learning-rate.peak 0.01 --optimizer.learning-rate.warmup 0"
    main(
        [
            "train",
            str(run),
            *options.split(),
            *rate.split(),
            "--data.cache",
            str(tmp_path / "cache"),
        ]
    )
    after = mlmjax.load(run)
    assert after.step == 2
    assert not after.untrained
    assert RunFolder(run).imported()["architecture"] == "BertModel"
    kernels = [each.model.encoder.layers.up.kernel[...] for each in (before, after)]
    assert 0 < abs(kernels[0] - kernels[1]).max() < 0.1
    assert mlmjax.fill_mask(after, "the [MASK] sat").masks
    main(["export", str(run), "--out", str(out)])
    with safe_open(out / "model.safetensors", framework="numpy") as file:
        assert "bert.embeddings.word_embeddings.weight" in file.keys()  # noqa: SIM118
    again = mlmjax.from_huggingface(out)
    same = jax.tree.map(
        lambda a, b: np.array_equal(a, b),
        *(each.model.mlm.dense.kernel[...] for each in (after, again)),
    )
    assert same


def with_byte_level_bpe(folder: Path) -> Path:
    """A RoBERTa of the golden vocab.json's size, with the vocabulary in two files as older folders have it."""
    write_folder(golden("huggingface_roberta_mlm"), folder)
    record = json.loads((GOLDEN / "roberta_tokenizer.json").read_text())
    for name, text in record["files"].items():
        (folder / name).write_text(text)
    size, weights = len(json.loads(record["files"]["vocab.json"])), folder / "model.safetensors"
    tensors, entries = load_file(weights), json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(entries | {"vocab_size": size}))
    more = {
        name: np.resize(tensor, (size, *tensor.shape[1:]))
        for name, tensor in tensors.items()
        if tensor.shape[:1] == (entries["vocab_size"],)
    }
    save_file(tensors | more, weights, metadata={"format": "pt"})
    return folder


def test_a_folder_with_vocab_json_and_merges_is_imported_and_comes_back(tmp_path: Path) -> None:
    source = with_byte_level_bpe(tmp_path / "model")
    import_run(source, tmp_path / "run")
    run = mlmjax.load(tmp_path / "run")
    assert mlmjax.fill_mask(run, "the <mask> of the array").masks
    mlmjax.to_huggingface(run, tmp_path / "back")
    for name in ("vocab.json", "merges.txt", "model.safetensors"):
        assert (tmp_path / "back" / name).read_bytes() == (source / name).read_bytes()


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt"])
def test_half_of_a_byte_level_vocabulary_is_refused_by_name(name: str, tmp_path: Path) -> None:
    source = with_byte_level_bpe(tmp_path / "model")
    (source / name).unlink()
    with pytest.raises(UserError, match=rf"lacks .*model/{name}, without which"):
        import_run(source, tmp_path / "run")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model"]


def _broken(tmp_path: Path, what: str) -> tuple[Path, str]:
    source = folder_of("huggingface_bert_mlm", tmp_path / "model")
    weights, config = source / "model.safetensors", source / "config.json"
    tensors, entries = load_file(weights), json.loads(config.read_text())
    key = "bert.encoder.layer.1.output.dense.weight"
    if what == "missing":
        del tensors[key]
        message = rf"lacks {key} \(10, 14\)"
    elif what == "extra":
        tensors["odd.weight"] = np.zeros((2, 3), np.float32)
        message = r"odd.weight \(2, 3\)"
    elif what == "shape":
        tensors[key] = np.zeros((10, 15), np.float32)
        message = rf"{key} is \(10, 15\) and not \(10, 14\)"
    elif what == "untied":
        tensors["cls.predictions.decoder.weight"] = np.ones((41, 10), np.float32)
        message = "decoder.weight is not a copy"
    elif what == "architecture":
        entries["architectures"] = ["GPT2LMHeadModel"]
        message = "GPT2LMHeadModel is not supported; supported are BertForMaskedLM"
    elif what == "config":
        entries["hidden_size"] = 11
        message = "config.json.*hidden|hidden.*config.json|does not fit"
    elif what == "relative":
        entries["position_embedding_type"] = "relative_key"
        message = "position_embedding_type is 'relative_key'"
    elif what == "tokenizer":
        with (source / "vocab.txt").open("a") as file:
            file.write("more\n")
        message = "has 42 tokens, and the model's token table 41 rows"
    elif what == "no tokenizer":
        (source / "vocab.txt").unlink()
        message = "holds no tokenizer"
    save_file(tensors, weights)
    config.write_text(json.dumps(entries))
    if what == "truncated":
        weights.write_bytes(weights.read_bytes()[:-10])
        message = "truncated"
    elif what == "pickle":
        weights.rename(source / "pytorch_model.bin")
        message = "is a pickle, which could run code"
    elif what == "damaged config":
        config.write_text("{")
        message = "config.json cannot be read"
    return source, message


@pytest.mark.parametrize(
    "what",
    [
        "missing",
        "extra",
        "shape",
        "untied",
        "architecture",
        "config",
        "relative",
        "tokenizer",
        "no tokenizer",
        "truncated",
        "pickle",
        "damaged config",
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_and_nothing_is_left(
    what: str, tmp_path: Path
) -> None:
    source, message = _broken(tmp_path, what)
    with pytest.raises(UserError, match=message):
        import_run(source, tmp_path / "run")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model"]


def test_an_output_folder_that_exists_is_refused(tmp_path: Path) -> None:
    source = folder_of("huggingface_bert_mlm", tmp_path / "model")
    with pytest.raises(UserError, match="exists: choose another"):
        import_run(source, source)
    with pytest.raises(UserError, match="exists: choose another"):
        mlmjax.to_huggingface(mlmjax.from_huggingface(source), source)
