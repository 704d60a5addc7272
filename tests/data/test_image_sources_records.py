"""Parquet, ArrayRecord and TFDS: encoded images, and what a class is."""

import io
import json
import sys
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from made_images import encoded, noise, png
from made_records import example, write

from mlmjax.core.errors import UserError
from mlmjax.data.documents import raise_broken
from mlmjax.data.image_decoding import decode
from mlmjax.data.image_sources import ArrayRecordImages, ParquetImages, TfdsImages, open_images
from mlmjax.data.image_sources.tfds import _check_image

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # tensorflow_datasets: deprecated uses of protobuf
    import tensorflow_datasets as tfds

FILES = [encoded(noise(seed=i)) for i in range(9)]
LABELS = [i % 3 for i in range(9)]


def read(source, broken=raise_broken):
    return [picture for part in source.parts() for picture in part.read(broken)]


def check(pictures, labels):
    assert [picture.content for picture in pictures] == FILES
    assert [picture.label for picture in pictures] == labels


STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@pytest.mark.parametrize(
    "images",
    [
        pa.array(FILES),
        pa.array(FILES, pa.large_binary()),
        pa.array([{"bytes": file, "path": None} for file in FILES], STRUCT),
    ],
)
@pytest.mark.parametrize("labels", [LABELS, [f"k{label}" for label in LABELS]])
def test_parquet(tmp_path, images, labels):
    table = pa.table({"image": images, "label": labels, "other": ["x"] * 9})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=4)
    source = open_images(str(tmp_path))
    assert isinstance(source, ParquetImages)
    assert len(source.parts()) == 3
    assert sum(part.size for part in source.parts()) > 9 * 200
    check(read(source), labels)
    assert source.classes == ()
    check(read(open_images(str(tmp_path), label_field=None)), [None] * 9)


def test_parquet_with_the_names_of_classes(tmp_path):
    features = {"label": {"names": ["ant", "bee", "cow"], "_type": "ClassLabel"}}
    meta = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.table({"image": FILES, "label": LABELS}).replace_schema_metadata(meta)
    parquet.write_table(table, tmp_path / "a.parquet")
    source = open_images(str(tmp_path))
    assert source.classes == ("ant", "bee", "cow")
    check(read(source), LABELS)


def test_parquet_without_an_image(tmp_path):
    parquet.write_table(pa.table({"image": [FILES[0], None]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a.parquet, row 1 \(from 0\) holds no image"):
        read(open_images(str(tmp_path)))
    told = []
    assert len(read(open_images(str(tmp_path)), told.append)) == 1
    assert len(told) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"field": "pic"}, r"no column 'pic' \(--data.field\)"),
        ({"field": "label"}, r"holds int64, not image files .*image files: image"),
        ({"label_field": "kind"}, r"no column 'kind' \(--data.label-field\)"),
        ({"label_field": "share"}, r"holds double, not strings or integers"),
    ],
)
def test_parquet_columns_that_cannot_be_used(tmp_path, options, said):
    table = pa.table({"image": FILES, "label": LABELS, "share": [0.5] * 9})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(UserError, match=said):
        open_images(str(tmp_path), **options).parts()


@pytest.mark.parametrize("label", [lambda i: i, lambda i: f"k{i}"])
def test_array_record(tmp_path, label):
    labels = [label(i) for i in LABELS]
    raw = [each.encode() if isinstance(each, str) else each for each in labels]
    records = [example(image=f, label=one) for f, one in zip(FILES, raw, strict=True)]
    write(tmp_path / "a.array_record", *records)
    source = open_images(str(tmp_path))
    assert isinstance(source, ArrayRecordImages)
    check(read(source), labels)


def test_array_record_of_files(tmp_path):
    write(tmp_path / "a.array_record", *FILES)
    check(read(open_images(str(tmp_path), field="")), [None] * 9)
    with pytest.raises(UserError, match=r"record 0 .*no tf.train.Example.*--data.field ''"):
        read(open_images(str(tmp_path)))


@pytest.mark.parametrize(
    ("record", "options", "said"),
    [
        (
            example(image=FILES[0]),
            {"field": "pic"},
            r"no feature 'pic' \(--data.field\), only image",
        ),
        (example(image=7), {}, "'image' holds a number"),
        (example(image=FILES[0]), {"label_field": "kind"}, r"'kind' \(--data.label-field\)"),
        (example(image=FILES[0], label=0.5), {}, "holds a fraction"),
    ],
)
def test_a_record_that_cannot_be_used_is_told_or_left_out(tmp_path, record, options, said):
    write(tmp_path / "a.array_record", record)
    source = open_images(str(tmp_path), **options)
    with pytest.raises(UserError, match=said):
        read(source)
    told = []
    assert read(source, told.append) == []
    assert "a.array_record, record 0" in told[0]


class Insects(tfds.core.GeneratorBasedBuilder):
    """Nine images in two kinds of file, and two to test with."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=(None, None, 3)),
            "deep": tfds.features.Image(shape=(12, 9, 1), dtype=np.uint16),
            "label": tfds.features.ClassLabel(names=["ant", "bee", "cow"]),
            "side": {"image": tfds.features.Image(shape=(None, None, 3))},
            "number": np.int64,
            "title": tfds.features.Text(),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, manager):
        return {"train": self._examples(range(9)), "test": self._examples(range(2))}

    def _generate_examples(self, pipeline):
        raise NotImplementedError

    def _examples(self, numbers):
        for i in numbers:
            deep = png(noise(12, 9, 1, seed=i, bits=16))
            yield (
                i,
                {
                    "image": io.BytesIO(FILES[i]),
                    "deep": io.BytesIO(deep),
                    "label": LABELS[i],
                    "side": {"image": io.BytesIO(FILES[i])},
                    "number": i,
                    "title": f"t{i}",
                },
            )


@pytest.fixture(scope="module")
def insects(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = tfds.download.DownloadConfig(num_shards=2)
        Insects(data_dir=str(folder), file_format="array_record").download_and_prepare(
            download_config=config
        )
    assert "tensorflow" not in sys.modules
    return str(folder / "insects")


def test_tfds(insects):
    source = open_images(insects)
    assert isinstance(source, TfdsImages)
    assert source.classes == ("ant", "bee", "cow")
    pictures = sorted(read(source), key=lambda picture: FILES.index(picture.content))
    check(pictures, LABELS)
    assert {p.content for p in read(open_images(insects, split="test"))} == set(FILES[:2])
    assert len(read(open_images(insects, split="train[:4]"))) == 4
    inner = read(open_images(insects, field="side/image", label_field="number"))
    assert sorted(picture.label for picture in inner) == list(range(9))
    deep = {
        decode(p.content, bits=16).pixels.tobytes()
        for p in read(open_images(insects, field="deep"))
    }
    assert deep == {noise(12, 9, 1, seed=i, bits=16).tobytes() for i in range(9)}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"field": "pic"}, "no feature 'pic'.*features with images: deep, image, side/image"),
        ({"field": "number"}, "no image in the feature 'number'"),
        ({"label_field": "kind"}, r"no feature 'kind' \(--data.label-field\)"),
        ({"label_field": "side/image"}, "no string or integer in the feature"),
        ({"split": "dev"}, r"no split 'dev' \(--data.split\)"),
    ],
)
def test_tfds_features_that_cannot_be_used(insects, options, said):
    with pytest.raises(UserError, match=said):
        open_images(insects, **options)


def test_tfds_images_of_real_numbers():
    """Their files are no pictures: the bits of a pixel are those of a number."""
    depth = tfds.features.Image(shape=(12, 9, 1), dtype=np.float32)
    with pytest.raises(
        UserError, match=r"no image in the feature 'depth'.*features with images: none"
    ):
        _check_image({"depth": depth}, "depth", "rooms")
