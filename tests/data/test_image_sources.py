"""Folders, idx and npz: which images there are, of which class, and which are held out."""

import gzip

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from made_images import encoded, idx, noise, write_folder, write_idx

from mlmjax.core.errors import UserError
from mlmjax.data.documents import raise_broken
from mlmjax.data.image_decoding import decode
from mlmjax.data.image_sources import Digits, IdxFiles, ImageFolder, NpzFile, open_images


def read(source):
    return [picture for part in source.parts() for picture in part.read(raise_broken)]


def test_the_digits():
    pictures = read(open_images(None))
    assert len(pictures) == 1797
    assert {picture.content.shape for picture in pictures} == {(8, 8, 1)}
    values = np.unique(np.stack([picture.content for picture in pictures]))
    np.testing.assert_array_equal(values, np.rint(np.arange(17) * 255 / 16))
    assert {picture.label for picture in pictures} == set(range(10))
    assert Digits().digest() == Digits().digest()


def test_folders_are_classes(tmp_path):
    images = {f"{kind}/{i}": noise(seed=i) for kind in ("dog", "cat") for i in range(2)}
    write_folder(tmp_path, images | {"top": noise(seed=9), "cat/deep/er": noise(seed=8)})
    (tmp_path / "notes.txt").write_text("not an image")
    (tmp_path / "cat" / "._0.png").write_bytes(b"a Mac left this")
    source = open_images(str(tmp_path))
    assert isinstance(source, ImageFolder)
    pictures = read(source)
    shown = [(p.place.removeprefix(f"{tmp_path}/"), p.label) for p in pictures]
    assert shown == [
        ("cat/0.png", "cat"),
        ("cat/1.png", "cat"),
        ("cat/deep/er.png", "cat"),
        ("dog/0.png", "dog"),
        ("dog/1.png", "dog"),
        ("top.png", None),
    ]
    assert {picture.side for picture in pictures} == {None}
    assert source.ignored == 2
    np.testing.assert_array_equal(decode(pictures[1].content).pixels, noise(seed=1))


@pytest.mark.parametrize(
    ("parts", "heldout"),
    [
        (("train", "val"), "val"),
        (("train", "test"), "test"),
        (("Training", "val", "test"), "val"),
        (("train",), None),
    ],
)
def test_folders_that_are_parts(tmp_path, parts, heldout):
    images = {f"{part}/{k}/{i}": noise(seed=i) for part in parts for k in "ab" for i in range(2)}
    pictures = read(open_images(str(write_folder(tmp_path, images))))
    assert {picture.label for picture in pictures} == {"a", "b"}
    for picture in pictures:
        part = picture.place.removeprefix(f"{tmp_path}/").split("/")[0]
        assert part in (parts[0], heldout)
        expected = "heldout" if part == heldout else "train"
        assert picture.side == (expected if heldout else None)


def test_a_class_may_be_called_train(tmp_path):
    images = {f"{kind}/{i}": noise(seed=i) for kind in ("train", "plane") for i in range(2)}
    pictures = read(open_images(str(write_folder(tmp_path, images))))
    assert {picture.label for picture in pictures} == {"train", "plane"}


def test_parts_without_one_to_train_on(tmp_path):
    write_folder(tmp_path, {"val/a": noise(), "test/a": noise()})
    with pytest.raises(UserError, match=r"no folder train \(--data.root\)"):
        open_images(str(tmp_path))


def test_a_pattern_takes_files_of_any_name(tmp_path):
    content = encoded(noise())
    write_folder(tmp_path, {"a/one.bin": content, "b/two.bin": content, "b/three.png": content})
    pictures = read(open_images(str(tmp_path / "*" / "*.bin")))
    assert [(p.place[-9:], p.label) for p in pictures] == [("a/one.bin", "a"), ("b/two.bin", "b")]
    (alone,) = read(open_images(str(tmp_path / "a" / "one.bin")))
    assert alone.label is None


def test_a_digest_changes_with_names_and_pixels(tmp_path):
    def digest():
        return open_images(str(tmp_path)).digest()

    write_folder(tmp_path, {"a/1": noise(), "b/2": noise(seed=2)})
    found = [digest()]
    write_folder(tmp_path, {"b/2": noise(seed=3)})
    found.append(digest())
    (tmp_path / "b").rename(tmp_path / "c")
    found.append(digest())
    assert len(set(found)) == 3
    assert digest() == found[-1]


def test_remote_folders_are_read(tmp_path):
    system = MemoryFileSystem()
    write_idx(tmp_path)
    for path in tmp_path.iterdir():
        system.pipe(f"/images/idx/{path.name}", path.read_bytes())
    for kind in ("cat", "dog"):
        system.pipe(f"/images/files/{kind}/a.png", encoded(noise()))
    pictures = read(open_images("memory://images/files"))
    assert [picture.label for picture in pictures] == ["cat", "dog"]
    assert pictures[0].content == encoded(noise())
    local, remote = (read(open_images(root)) for root in (str(tmp_path), "memory://images/idx"))
    assert [p.label for p in local] == [p.label for p in remote]
    same = [(a.content == b.content).all() for a, b in zip(local, remote, strict=True)]
    assert all(same)


@pytest.mark.parametrize("packed", [True, False])
def test_idx(tmp_path, packed):
    made = write_idx(tmp_path / "raw", packed=packed)
    source = open_images(str(tmp_path))
    assert isinstance(source, IdxFiles)
    pictures = read(source)
    for side, part in (("train", "train"), ("heldout", "t10k")):
        images, labels = made[part]
        mine = [picture for picture in pictures if picture.side == side]
        np.testing.assert_array_equal(np.stack([p.content for p in mine])[..., 0], images)
        assert [p.label for p in mine] == labels.tolist()
    assert [p.side for p in pictures] == ["train"] * 30 + ["heldout"] * 10
    assert source.ignored == 0


def test_idx_of_one_part_without_labels(tmp_path):
    made = write_idx(tmp_path, labels=False)
    pictures = read(open_images(str(tmp_path / "train-images-idx3-ubyte.gz")))
    assert {(picture.side, picture.label) for picture in pictures} == {(None, None)}
    np.testing.assert_array_equal(pictures[3].content[..., 0], made["train"][0][3])


def test_idx_in_colour(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), np.uint8)
    (tmp_path / "images-idx4-ubyte").write_bytes(idx(images))
    pictures = read(open_images(str(tmp_path)))
    np.testing.assert_array_equal(np.stack([p.content for p in pictures]), images)


def test_idx_that_is_damaged(tmp_path):
    def refused():
        with pytest.raises(UserError) as caught:
            read(open_images(str(tmp_path)))
        return str(caught.value)

    def rewrite(change):
        write_idx(tmp_path, packed=False)
        path = tmp_path / "train-images-idx3-ubyte"
        path.write_bytes(change(path.read_bytes()))

    rewrite(lambda content: content[:-7])
    assert "train-images-idx3-ubyte is cut off: 7 bytes are missing" in refused()
    rewrite(lambda content: content + b"x")
    assert "goes on behind its last image" in refused()
    rewrite(lambda content: b"GIF89a" + content)
    assert "is no file in the idx format" in refused()
    rewrite(lambda content: idx(np.zeros((30, 6, 5), np.float32), 13))
    assert "numbers of type >f4" in refused()
    write_idx(tmp_path, packed=False)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(29, np.uint8)))
    said = refused()
    assert "holds 30 images" in said
    assert "29 labels" in said
    write_idx(tmp_path)
    (tmp_path / "letters-train-images-idx3-ubyte.gz").write_bytes(
        gzip.compress(idx(np.zeros((1, 2, 2), np.uint8)))
    )
    assert "several sets" in refused()


ARRAY = np.random.default_rng(0).integers(0, 256, (7, 5, 6, 3), np.uint8)
LABELS = np.arange(7) % 3


@pytest.mark.parametrize(
    "names",
    [
        {"image": ARRAY, "label": LABELS},
        {"images": ARRAY, "labels": LABELS},
        {"x_train": ARRAY, "y_train": LABELS},
        {"train_images": ARRAY, "train_labels": LABELS[:, None]},
    ],
)
def test_npz(tmp_path, names):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, **names)
    source = open_images(str(tmp_path))
    assert isinstance(source, NpzFile)
    pictures = read(source)
    np.testing.assert_array_equal(np.stack([p.content for p in pictures]), ARRAY)
    assert [p.label for p in pictures] == LABELS.tolist()
    assert {p.side for p in pictures} == {None}


def test_npz_with_a_part_of_its_own(tmp_path):
    names = {"x_train": ARRAY, "y_train": LABELS, "x_test": ARRAY[:2, ..., 0], "y_test": LABELS[:2]}
    np.savez(tmp_path / "a.npz", **names)
    pictures = read(open_images(str(tmp_path / "a.npz")))
    assert [p.side for p in pictures] == ["train"] * 7 + ["heldout"] * 2
    assert pictures[-1].content.shape == (5, 6, 1)
    medical = {f"{part}_images": ARRAY for part in ("train", "val", "test")}
    np.savez(tmp_path / "b.npz", **medical)
    held = [p for p in read(open_images(str(tmp_path / "b.npz"))) if p.side == "heldout"]
    assert "val_images" in held[0].place


def test_npz_of_other_kinds(tmp_path):
    path = tmp_path / "a.npz"
    deep = ARRAY.astype(np.uint16) * 200
    for stored, expected in (
        (deep, deep),
        (deep.astype(">u2"), deep),
        (ARRAY > 99, (ARRAY > 99) * 255),
    ):
        np.savez(path, picture=stored, kind=np.array([f"k{i % 2}" for i in range(7)]))
        pictures = read(open_images(str(path), field="picture", label_field="kind"))
        np.testing.assert_array_equal(np.stack([p.content for p in pictures]), expected)
        assert pictures[1].label == "k1"


@pytest.mark.parametrize(
    ("names", "options", "said"),
    [
        (
            {"other": ARRAY},
            {},
            "has no array 'image', 'x_train' or 'train_images'; there are other",
        ),
        ({"image": ARRAY}, {"field": "pic"}, r"no array 'pic' \(--data.field\)"),
        ({"image": ARRAY}, {"label_field": "kind"}, r"no array 'kind' \(--data.label-field\)"),
        ({"image": ARRAY / 255}, {}, "float64.*bring them to uint8"),
        ({"image": ARRAY[0, 0]}, {}, "6×3, which is not one of images"),
        ({"image": ARRAY.transpose(0, 3, 1, 2)}, {}, "channels seem to come before"),
        ({"image": ARRAY, "label": LABELS[:5]}, {}, "labels of 5 for 7 images"),
        ({"image": ARRAY, "label": LABELS / 2}, {}, "labels of type float64"),
        ({"image": np.array([None])}, {}, "cannot be read"),
    ],
)
def test_npz_that_cannot_be_used(tmp_path, names, options, said):
    np.savez(tmp_path / "a.npz", **names)
    with pytest.raises(UserError, match=said):
        read(open_images(str(tmp_path / "a.npz"), **options))


def test_npz_that_is_none(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK\3\4 cut off")
    with pytest.raises(UserError, match="is no npz file, or damaged"):
        open_images(str(tmp_path))
    np.savez(tmp_path / "b.npz", image=ARRAY)
    with pytest.raises(UserError, match="give one file of arrays"):
        open_images(str(tmp_path))


def test_kinds_are_not_guessed_between(tmp_path):
    write_folder(tmp_path, {"a": noise()})
    np.savez(tmp_path / "b.npz", image=ARRAY)
    with pytest.raises(UserError, match=r"a.png \(folder\), b.npz \(npz\).*--data.format"):
        open_images(str(tmp_path))
    assert len(read(open_images(str(tmp_path), "folder"))) == 1
    assert len(read(open_images(str(tmp_path), "npz"))) == 7


@pytest.mark.parametrize("format", ["folder", "idx", "npz", "parquet", "array_record", "tfds"])
def test_an_empty_folder(tmp_path, format):
    with pytest.raises(UserError, match=r"--data\.root"):
        open_images(str(tmp_path), format)
