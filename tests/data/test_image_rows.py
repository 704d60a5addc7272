"""Batches of images: the order and the threads of text, crops and flips keyed on (seed, epoch, id)."""

import numpy as np
import pytest
from made_images import encoded, noise, smooth, write_folder

from mlmjax.core.errors import UserError
from mlmjax.data.image_rows import ImageRows, ImageWriter, View
from mlmjax.data.images import ImageData
from mlmjax.data.pipeline import batches, heldout_batches


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Forty images of three sizes, half of them JPEG."""
    sizes = [(20, 30), (33, 21), (48, 64)]
    images = {f"{i:02}": noise(*sizes[i % 3], seed=i) for i in range(20)}
    photos = {f"{i:02}.jpg": encoded(smooth(*sizes[i % 3], seed=i), "JPEG") for i in range(20, 40)}
    return write_folder(tmp_path_factory.mktemp("images"), images | photos)


@pytest.fixture(scope="module")
def opened(folder, tmp_path_factory):
    cache = str(tmp_path_factory.mktemp("cache"))

    def open(**options):
        data = ImageData(root=str(folder), size=(16, 12), batch=8, heldout=0.3, cache=cache)
        return data.updated(**options).prepare()

    return open


RANDOM = {"crop": (0.2, 1.0), "flip": True}
KINDS = [{}, {"flip": True}, RANDOM, {**RANDOM, "bits": 16, "channels": 1}]


def same(first, second):
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


@pytest.mark.parametrize("options", KINDS)
def test_batches_have_the_shapes_that_the_config_tells(opened, options):
    found = opened(**options)
    batch = next(found.batches(seed=0, batch=8, start=0, stop=1, threads=1))
    spec = ImageData(size=(16, 12), batch=8, **options).spec()
    assert {name: (v.shape, v.dtype) for name, v in batch.items()} == {
        name: (s.shape, s.dtype) for name, s in spec.items()
    }
    assert batch["valid"].all()


@pytest.mark.parametrize("options", KINDS)
def test_a_restart_on_other_hosts_gives_the_same_batches(opened, options):
    rows = opened(**options).train
    whole = list(batches(rows, seed=3, batch=8, stop=12))
    for first, second in zip(
        whole[9:], batches(rows, seed=3, batch=8, start=9, stop=12, threads=1), strict=True
    ):
        same(first, second)
    parts = [
        list(batches(rows, seed=3, batch=8, start=9, stop=12, places=range(2 * i, 2 * i + 2)))
        for i in range(4)
    ]
    for batch, *slices in zip(whole[9:], *parts, strict=True):
        same(batch, {name: np.concatenate([s[name] for s in slices]) for name in batch})


def test_what_is_random_depends_on_seed_epoch_and_id(opened):
    rows = opened(**RANDOM).train
    index, epoch = np.arange(len(rows)), np.zeros(len(rows), np.int64)
    first = rows.assemble(index, epoch, seed=0)["pixels"]
    np.testing.assert_array_equal(rows.assemble(index, epoch, seed=0)["pixels"], first)
    alone = rows.assemble(index[5:6], epoch[5:6], seed=0)["pixels"]
    np.testing.assert_array_equal(alone[0], first[5])
    for other in (
        rows.assemble(index, epoch + 1, seed=0),
        rows.assemble(index, epoch, seed=1),
    ):
        assert (other["pixels"] != first).any(axis=(1, 2, 3)).all()


def test_a_flip_alone_mirrors_half_of_the_images(opened):
    plain, mirrored = opened().train, opened(flip=True).train
    index = np.arange(len(plain))
    still = plain.assemble(index, index * 0, seed=0)["pixels"]
    share = []
    for epoch in range(20):
        found = mirrored.assemble(index, np.full(len(index), epoch), seed=0)["pixels"]
        turned = (found == still[:, :, ::-1]).all(axis=(1, 2, 3))
        assert (turned | (found == still).all(axis=(1, 2, 3))).all()
        share.append(turned.mean())
    assert abs(np.mean(share) - 0.5) < 4 * 0.5 / np.sqrt(20 * len(index))


def test_written_as_shown_or_as_they_came_they_look_the_same(opened):
    """Without a random part images are scaled when they are prepared, else when they are read."""
    for split in ("train", "heldout"):
        first = list(opened().examples(split, batch=7))
        second = list(opened(**RANDOM).examples(split, batch=7))
        assert [len(one["id"]) for one in first] == [len(one["id"]) for one in second]
        for one, two in zip(first, second, strict=True):
            same(one, two)


@pytest.mark.parametrize("hosts", [1, 4])
def test_held_out_images_come_once_and_are_never_random(opened, hosts):
    found = opened(**RANDOM)
    parts = [
        list(
            heldout_batches(
                found.heldout, seed=7, batch=8, places=range(8 * i // hosts, 8 * (i + 1) // hosts)
            )
        )
        for i in range(hosts)
    ]
    order, pixels = [], []
    for step in zip(*parts, strict=True):
        for batch in step:
            assert batch["pixels"].shape[0] == 8 // hosts
            assert not batch["pixels"][~batch["valid"]].any()
            order += batch["id"][batch["valid"], 1].tolist()
            pixels.append(batch["pixels"][batch["valid"]])
    assert order == list(range(len(found.heldout)))
    expected = np.concatenate([b["pixels"] for b in found.examples("heldout", batch=64)])
    np.testing.assert_array_equal(np.concatenate(pixels), expected)


def test_the_middle_of_an_image_of_the_asked_aspect_is_all_of_it(opened, folder):
    """Pixels come out of the files untouched where nothing has to be scaled."""
    found = opened(size=(20, 30))
    table = np.concatenate(
        [b["pixels"] for s in ("train", "heldout") for b in found.examples(s, batch=64)]
    )
    for number in (0, 3, 6):
        expected = noise(20, 30, seed=number)
        assert (table == expected).all(axis=(1, 2, 3)).sum() == 1


def test_a_large_photo_is_decoded_smaller_and_looks_the_same(tmp_path):
    pixels = np.repeat(np.repeat(smooth(60, 80), 8, 0), 8, 1)
    content = encoded(pixels, "JPEG", quality=95)
    path = tmp_path / "images.array_record"
    writer = ImageWriter(path)
    writer.write(content, height=480, width=640)
    writer.write(pixels, height=480, width=640)
    writer.close()
    view = View((30, 40), 3, 8)
    rows = ImageRows([path], [2], chosen=np.arange(2), view=view)
    photo, exact = rows.assemble(np.arange(2), np.zeros(2, np.int64), seed=0)["pixels"].astype(int)
    assert np.abs(photo - exact).mean() < 2


def test_a_damaged_cache_is_told(tmp_path):
    path = tmp_path / "images.array_record"
    writer = ImageWriter(path)
    for number in range(3):
        writer.write(encoded(noise(seed=number)), height=12, width=9)
    writer.close()
    path.write_bytes(path.read_bytes()[:300])
    rows = ImageRows([path], [3], chosen=np.arange(3), view=View((8, 8), 3, 8))
    with pytest.raises(UserError, match="Delete the folder"):
        rows.assemble(np.arange(3), np.zeros(3, np.int64), seed=0)
    writer = ImageWriter(path)
    writer.write(b"no image", height=12, width=9)
    writer.close()
    rows = ImageRows([path], [1], chosen=np.arange(1), view=View((8, 8), 3, 8))
    with pytest.raises(UserError, match="Delete the folder"):
        rows.assemble(np.arange(1), np.zeros(1, np.int64), seed=0)
