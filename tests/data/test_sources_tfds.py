"""Datasets of TFDS, made and read without TensorFlow."""

import json
import pickle
import shutil
import sys
import warnings

import numpy as np
import pytest

from mlmjax.core.errors import UserError
from mlmjax.data.documents import documents_of
from mlmjax.data.sources import Fields, TextSource, TfdsDataset, files

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # tensorflow_datasets: deprecated uses of protobuf
    import tensorflow_datasets as tfds

TEXTS = [f"Text {number}: ü." for number in range(100)]


class Books(tfds.core.GeneratorBasedBuilder):
    """A hundred texts, and three more to validate with."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "text": tfds.features.Text(),
            "maybe": tfds.features.Text(optional=True),
            "number": np.int64,
            "share": np.float32,
            "words": tfds.features.Sequence(tfds.features.Text()),
            "author": {"name": tfds.features.Text(), "born": np.int32},
            "cover": tfds.features.Tensor(shape=(2,), dtype=np.uint8),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, manager):
        return {"train": self._examples(TEXTS), "validation": self._examples(TEXTS[:3])}

    def _generate_examples(self, pipeline):
        raise NotImplementedError

    def _examples(self, texts):
        for number, text in enumerate(texts):
            yield (
                number,
                {
                    "text": text,
                    "maybe": None if number % 2 else "m",
                    "number": number,
                    "share": 0.5,
                    "words": ["a", "b"],
                    "author": {"name": f"A{number % 5}", "born": 1900},
                    "cover": np.zeros(2, np.uint8),
                },
            )


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """The folder with all of the datasets; nothing is downloaded."""
    assert "tensorflow" not in sys.modules
    folder = tmp_path_factory.mktemp("tfds")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = tfds.download.DownloadConfig(num_shards=3)
        Books(data_dir=str(folder), file_format="array_record").download_and_prepare(
            download_config=config
        )
    return folder / "books"


@pytest.fixture
def folder(prepared, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(prepared, tmp_path / "books")


def by_tfds(folder, split):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = tfds.builder_from_directory(folder).as_data_source(split)
        return [source[number] for number in range(len(source))]


@pytest.mark.parametrize("split", ["train", "validation", "train[:35%]", "train[40:]+validation"])
def test_the_examples_of_a_split(prepared, split):
    expected = by_tfds(prepared / "1.0.0", split)
    source = TfdsDataset(str(prepared / "1.0.0"), Fields(id="number", group="author/name"), split)
    found = [(d.text.encode(), d.id, d.group.encode()) for d in documents_of(source)]
    assert found == [(e["text"], str(e["number"]), e["author"]["name"]) for e in expected]
    assert "tensorflow" not in sys.modules


def test_a_feature_that_may_be_absent(prepared):
    source = TfdsDataset(str(prepared), Fields("maybe"))
    expected = [example["maybe"] for example in by_tfds(prepared / "1.0.0", "train")]
    assert [d.text and d.text.encode() for d in documents_of(source)] == expected
    assert expected.count(None) == 50


def test_parts(prepared, monkeypatch):
    whole = list(documents_of(TfdsDataset(str(prepared), Fields())))
    monkeypatch.setattr(files, "PART", 50_000)
    parts = pickle.loads(pickle.dumps(TfdsDataset(str(prepared), Fields()).parts()))
    assert len(parts) > 6
    assert [document for part in parts for document in part.read(pytest.fail)] == whole
    assert sorted(document.text for document in whole) == sorted(TEXTS)
    assert whole[0].place.endswith("books-train.array_record-00000-of-00003, record 0")


def test_a_folder_with_a_dataset_is_found(prepared):
    for root in (prepared, prepared / "1.0.0", prepared.parent):
        source = TextSource(root=str(root)).open()
        assert isinstance(source, TfdsDataset)
        assert str(source) == str(root)
    first = source.digest()
    assert TfdsDataset(str(prepared), Fields(), "validation").digest() != first
    assert TfdsDataset(str(prepared), Fields("maybe")).digest() != first


def told(folder, match, fields=None, split="train"):
    with pytest.raises(UserError, match=match):
        TfdsDataset(str(folder), fields or Fields(), split)


def test_features_and_splits_that_are_not_there(prepared):
    texts = r"author/name, maybe, text\."
    told(prepared, f"no feature 'body' .--data.field.; features with text: {texts}", Fields("body"))
    for name in ("number", "words", "cover", "share"):
        told(prepared, f"has no text in the feature '{name}' .--data.field", Fields(name))
    told(
        prepared,
        "no text or an integer in the feature 'share' .--data.id-field",
        Fields(id="share"),
    )
    told(prepared, "no feature 'x' .--data.group-field.; .*author/born", Fields(group="x"))
    for split in ("test", "train[", "train[:x%]"):
        told(prepared, r"no split '.*' .--data.split.; there are train, validation\.", split=split)


def test_folders_without_a_finished_dataset(folder, tmp_path, monkeypatch):
    version = folder / "1.0.0"
    told(version / "dataset_info.json", "holds no finished TFDS dataset .*dataset_info.json lies")
    told("memory://nothing/*", "No file matches")
    shutil.copytree(version, folder / "2.0.0")
    told(folder, "holds several TFDS datasets .--data.root.: 1.0.0/, 2.0.0/. Choose one")
    shutil.rmtree(folder / "2.0.0")

    info = json.loads((version / "dataset_info.json").read_text())
    (version / "dataset_info.json").write_text(json.dumps({**info, "fileFormat": "tfrecord"}))
    told(folder, "a TFDS dataset in tfrecord files .*file_format='array_record'")
    (version / "dataset_info.json").write_text('{"name": ')
    told(folder, "cannot be read as a TFDS dataset .--data.root.: ")
    (version / "dataset_info.json").write_text(json.dumps(info))
    (version / "books-train.array_record-00001-of-00003").unlink()
    told(folder, r"1.0.0/books-train.array_record-00001-of-00003 cannot be read .*: No such file")
    (version / "features.json").unlink()
    told(folder, "cannot be read as a TFDS dataset")

    (version / "dataset_info.json").unlink()
    told(folder, "no finished TFDS dataset .--data.root.: give the folder of a version")
    version.rename(folder / "incomplete.ABC_1.0.0")
    told(
        folder, "no finished TFDS dataset .--data.root.: its preparation was not brought to an end"
    )
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    (folder / "incomplete.ABC_1.0.0").rename(version)
    (version / "dataset_info.json").write_text(json.dumps(info))
    told(folder, r"without TensorFlow: pip install 'mlmjax\[tfds\]'")
