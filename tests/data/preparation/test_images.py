"""Images are read once, whatever the number of processes; copies lie on one side; what is damaged is found."""

import hashlib

import numpy as np
import pytest
from made_images import encoded, noise, smooth, write_folder, write_idx

from mlmjax.core.errors import UserError
from mlmjax.data.images import ImageData
from mlmjax.data.preparation import image_records, images


def data(root, cache, **options):
    options = {"size": (8, 6), "heldout": 0.3, "workers": 1} | options
    return ImageData(root=str(root), cache=str(cache), **options)


def content(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def shown(prepared, split):
    return np.concatenate([batch["pixels"] for batch in prepared.examples(split, batch=64)])


@pytest.fixture
def folder(tmp_path):
    images = {f"k{i % 3}/{i:02}": noise(8, 6, seed=i) for i in range(30)}
    return write_folder(tmp_path / "images", images)


def test_every_image_is_there_once_with_its_label(folder, tmp_path):
    found = data(folder, tmp_path / "c").prepare()
    assert len(found.train) + len(found.heldout) == 30
    assert found.classes == ("k0", "k1", "k2")
    seen = []
    for split in ("train", "heldout"):
        labels = found.labels(split)
        for pixels, label in zip(shown(found, split), labels, strict=True):
            (number,) = [i for i in range(30) if (noise(8, 6, seed=i) == pixels).all()]
            assert number % 3 == label
            seen.append(number)
        counted = found.manifest["splits"][split]
        assert counted["images"] == counted["labelled"] == len(labels)
        assert counted["classes"] == np.bincount(labels, minlength=3).tolist()
    assert sorted(seen) == list(range(30))


def test_labels_are_in_no_batch(folder, tmp_path):
    found = data(folder, tmp_path / "c").prepare()
    for batch in (
        next(found.batches(seed=0, batch=4, start=0, stop=1, threads=1)),
        next(found.heldout_batches(seed=0, batch=4, threads=1)),
        next(found.examples("train", batch=4)),
    ):
        assert batch.keys() == {"pixels", "valid", "id", "epoch"}


@pytest.mark.parametrize("options", [{}, {"crop": (0.2, 1.0)}])
def test_bytes_do_not_depend_on_the_number_of_processes(folder, tmp_path, monkeypatch, options):
    monkeypatch.setattr(images, "TASK", 2000)
    one = data(folder, tmp_path / "a", **options).prepare().folder
    two = data(folder, tmp_path / "b", workers=2, **options).prepare().folder
    assert len(list(one.glob("*.array_record"))) > 2
    assert content(one) == content(two)


def test_what_is_finished_is_not_done_again(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(images, "TASK", 1000)
    expected = content(data(folder, tmp_path / "a").prepare().folder)
    fill = image_records.Records.fill
    done = []

    def broken_off(records, task, progress=None):
        if task.number == 3:
            raise KeyboardInterrupt
        done.append(task.number)
        fill(records, task, progress)

    monkeypatch.setattr(image_records.Records, "fill", broken_off)
    with pytest.raises(KeyboardInterrupt):
        data(folder, tmp_path / "b").prepare()
    assert done == [0, 1, 2]
    (left,) = (tmp_path / "b").iterdir()
    assert left.name.endswith(".unfinished")
    monkeypatch.setattr(image_records.Records, "fill", fill)
    counted = []
    monkeypatch.setattr(
        image_records.Records,
        "fill",
        lambda *each, **more: (counted.append(each[1].number), fill(*each, **more)),
    )
    again = data(folder, tmp_path / "b").prepare().folder
    assert content(again) == expected
    assert not set(counted) & {0, 1, 2}
    counted.clear()
    data(folder, tmp_path / "b").prepare()
    assert counted == []


def test_equal_images_lie_on_one_side_in_whatever_file(tmp_path):
    files = {}
    for i in range(20):
        pixels = noise(8, 6, seed=i)
        files |= {f"{i}.png": encoded(pixels), f"{i}.bmp": encoded(pixels, "BMP")}
    found = data(write_folder(tmp_path / "images", files), tmp_path / "c").prepare()
    sides = [{one.tobytes() for one in shown(found, split)} for split in ("train", "heldout")]
    assert not sides[0] & sides[1]
    assert len(found.train) + len(found.heldout) == 40
    assert found.manifest["images"]["copies"] == 20
    assert found.manifest["split_by"] == "content"


def test_the_split_does_not_depend_on_the_other_images(folder, tmp_path):
    before = {one.tobytes() for one in shown(data(folder, tmp_path / "c").prepare(), "heldout")}
    write_folder(folder, {f"k0/more{i}": noise(8, 6, seed=100 + i) for i in range(10)})
    after = {one.tobytes() for one in shown(data(folder, tmp_path / "c").prepare(), "heldout")}
    assert len(before - after) <= 1  # the lowest hash is held out in any case


def test_a_part_of_its_own_is_held_out_and_not_trained_on(tmp_path):
    made = write_idx(tmp_path / "idx", size=(8, 6))
    images, labels = made["t10k"]
    found = data(tmp_path / "idx", tmp_path / "c", channels=1, heldout=0.9).prepare()
    np.testing.assert_array_equal(shown(found, "heldout")[..., 0], images)
    np.testing.assert_array_equal(shown(found, "train")[..., 0], made["train"][0])
    np.testing.assert_array_equal(found.labels("heldout"), labels)
    assert found.manifest["split_by"] == "source"
    assert found.classes == ("0", "1", "2")


def test_a_held_out_image_is_taken_out_of_the_training_part(tmp_path):
    files = {f"train/{i}": noise(8, 6, seed=i) for i in range(6)}
    files |= {f"test/{i}": noise(8, 6, seed=4 + i) for i in range(4)}
    found = data(write_folder(tmp_path / "images", files), tmp_path / "c").prepare()
    assert (len(found.train), len(found.heldout)) == (4, 4)
    assert found.manifest["images"]["in_both"] == 2
    assert found.labels("train") is None
    assert found.classes == ()


def test_images_without_a_class_beside_others(tmp_path):
    files = {f"a/{i}": noise(8, 6, seed=i) for i in range(6)}
    files |= {f"{i}": noise(8, 6, seed=9 + i) for i in range(6)}
    found = data(write_folder(tmp_path / "images", files), tmp_path / "c").prepare()
    labels = np.concatenate([found.labels("train"), found.labels("heldout")])
    assert np.bincount(labels + 1).tolist() == [6, 6]


def test_what_cannot_be_read_is_told_or_left_out(folder, tmp_path):
    whole = encoded(smooth(), "JPEG")
    write_folder(folder, {"k0/cut.jpg": whole[: len(whole) // 2], "k0/none.png": b"hello"})
    write_folder(folder, {"k1/tiny": noise(5, 6)})
    with pytest.raises(UserError, match=r"k0/cut.jpg: a damaged image: .*--data.on-error skip"):
        data(folder, tmp_path / "c").prepare()
    assert not list((tmp_path / "c").iterdir())
    found = data(folder, tmp_path / "c", on_error="skip", smallest=(6, 6)).prepare()
    counts = found.manifest["images"]
    assert {name: counts[name] for name in ("read", "broken", "small", "kept")} == {
        "read": 33,
        "broken": 2,
        "small": 1,
        "kept": 30,
    }
    assert [m.split(folder.name + "/")[1].split(" ")[0] for m in found.manifest["broken"]] == [
        "k0/cut.jpg:",
        "k0/none.png:",
        "k1/tiny.png",
    ]


def test_channels_that_differ_are_refused_or_converted(folder, tmp_path):
    write_folder(folder, {"k0/grey": noise(8, 6, 1)})
    with pytest.raises(UserError, match=r"1 \(.*grey.png\), 3 \(.*png\).*--data.mixed convert"):
        data(folder, tmp_path / "c").prepare()
    found = data(folder, tmp_path / "c", mixed="convert").prepare()
    table = np.concatenate([shown(found, split) for split in ("train", "heldout")])
    grey = np.repeat(noise(8, 6, 1), 3, axis=-1)
    assert (table == grey).all(axis=(1, 2, 3)).sum() == 1
    assert found.manifest["channels"] == {"1": 1, "3": 30}


def test_channels_that_differ_between_tasks(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(images, "TASK", 1)
    write_folder(folder, {"k2/z": noise(8, 6, 4)})
    with pytest.raises(UserError, match=r"3 \(.*00.png\), 4 \(.*z.png\)"):
        data(folder, tmp_path / "c").prepare()


def test_arrays_of_many_channels(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 65536, (12, 8, 6, 7), np.uint16)
    np.savez(tmp_path / "a.npz", image=pixels)
    found = data(tmp_path / "a.npz", tmp_path / "c", channels=7, bits=16).prepare()
    table = np.concatenate([shown(found, split) for split in ("train", "heldout")])
    assert {one.tobytes() for one in table} == {one.tobytes() for one in pixels}
    with pytest.raises(UserError, match=r"7 channels, and 3 are asked for: set --data.channels 7"):
        data(tmp_path / "a.npz", tmp_path / "c").prepare()


def test_the_record_changes_with_what_it_is_made_of(folder, tmp_path):
    def fingerprint(**options):
        return data(folder, tmp_path / "c", **options).prepare().fingerprint

    first = fingerprint()
    others = [
        fingerprint(size=(6, 6)),
        fingerprint(channels=1),
        fingerprint(bits=16),
        fingerprint(heldout=0.4),
        fingerprint(crop=(0.5, 1.0)),
    ]
    assert len({first, *others}) == 6
    assert fingerprint(flip=True) == fingerprint(batch=3) == first
    assert fingerprint(crop=(0.2, 1.0), size=(6, 6)) == others[-1]
    write_folder(folder, {"k0/new": noise(8, 6, seed=99)})
    assert fingerprint() != first


def test_too_few_images(tmp_path):
    root = write_folder(tmp_path / "images", {"a": noise(8, 6), "b": noise(8, 6)})
    with pytest.raises(UserError, match=r"no image to hold out in .*give more different images"):
        data(root, tmp_path / "c").prepare()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.png").write_bytes(b"x")
    with pytest.raises(UserError, match=r"of 1 images: 1 cannot be read"):
        data(tmp_path / "broken", tmp_path / "c", on_error="skip").prepare()


def test_an_image_smaller_than_a_patch_is_named(folder, tmp_path):
    write_folder(folder, {"k0/small": noise(3, 6)})
    found = data(folder, tmp_path / "c").prepare()
    found.check_patch((3, 6))
    with pytest.raises(UserError, match=r"small.png has a height of 3 .*--data.smallest 4 4"):
        found.check_patch((4, 4))
    with pytest.raises(UserError, match="has a width of 6"):
        found.check_patch((3, 7))


def test_a_crop_from_more_to_less():
    with pytest.raises(ValueError, match="give the smaller share first"):
        ImageData(crop=(1.0, 0.5))
