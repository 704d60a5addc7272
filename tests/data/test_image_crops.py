"""Crops lie in the image, have the asked areas and aspects, and depend on (seed, epoch, id) alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from made_images import noise, smooth
from PIL import Image
from scipy import stats

from mlmjax.data.image_crops import (
    Box,
    centre,
    random_crop,
    random_flip,
    reduction,
    resized,
)

SIDE = st.integers(1, 400)


@given(height=SIDE, width=SIDE, index=st.integers(0, 2**40), epoch=st.integers(0, 2**31))
def test_a_crop_lies_in_its_image_and_comes_again(height, width, index, epoch):
    def drawn(**changes):
        names = {"seed": 3, "epoch": epoch, "index": index} | changes
        return random_crop(height, width, (0.2, 1.0), **names)

    box = drawn()
    assert 0 <= box.left < box.right <= width
    assert 0 <= box.top < box.bottom <= height
    assert drawn() == box
    if min(height, width) > 50 and 0.75 < height / width < 4 / 3:
        assert box not in [drawn(seed=4), drawn(epoch=epoch + 1), drawn(index=index + 1)]


def test_crops_have_the_asked_distribution():
    """Of a square image nearly every first try is taken, so areas and aspects are those that were drawn."""
    size, least = 1000, 0.2
    boxes = [random_crop(size, size, (least, 0.6), seed=0, epoch=0, index=i) for i in range(2000)]
    area = np.array([box.height * box.width for box in boxes]) / size**2
    aspect = np.log([box.width / box.height for box in boxes])
    assert stats.kstest(area, stats.uniform(least, 0.6 - least).cdf).pvalue > 1e-3
    limit = np.log(4 / 3)
    assert stats.kstest(aspect, stats.uniform(-limit, 2 * limit).cdf).pvalue > 1e-3
    left = [box.left / (size - box.width) for box in boxes]
    assert stats.kstest(left, stats.uniform(0, 1).cdf).pvalue > 1e-3


def test_where_no_crop_fits_the_middle_is_taken():
    box = random_crop(10, 1000, (0.9, 1.0), seed=0, epoch=0, index=0)
    assert box.top == 0
    assert box.bottom == 10
    np.testing.assert_allclose(box.width, 10 * 4 / 3, rtol=1e-3)
    np.testing.assert_allclose((box.left + box.right) / 2, 500)


def test_half_are_mirrored():
    drawn = [random_flip(seed=0, epoch=e, index=i) for e in range(2) for i in range(2000)]
    assert abs(np.mean(drawn) - 0.5) < 4 * 0.5 / np.sqrt(len(drawn))
    assert drawn[:2000] != drawn[2000:]
    assert drawn[:50] == [random_flip(seed=0, epoch=0, index=i) for i in range(50)]


@given(height=SIDE, width=SIDE, size=st.tuples(SIDE, SIDE))
def test_the_middle_is_as_large_as_it_can_be(height, width, size):
    box = centre(height, width, size)
    np.testing.assert_allclose(box.height * size[1], box.width * size[0], rtol=1e-9)
    np.testing.assert_allclose(max(box.height / height, box.width / width), 1)
    assert box.left >= -1e-9
    assert box.top >= -1e-9
    np.testing.assert_allclose((box.left + box.right) / 2, width / 2)


def test_nothing_happens_to_an_image_of_the_asked_size():
    pixels = noise(5, 7, 3)
    assert resized(pixels, centre(5, 7, (5, 7)), (5, 7)) is pixels


@given(channels=st.integers(1, 5), bits=st.sampled_from([8, 16]), seed=st.integers(0, 20))
def test_resizing_is_the_same_for_every_kind(channels, bits, seed):
    """Each channel by itself, in real numbers; Pillow's own arithmetic in 8 bits rounds twice."""
    pixels = noise(13, 17, channels, seed=seed, bits=bits)
    box = Box(2.5, 1.25, 15.0, 12.0)
    found = resized(pixels, box, (6, 5))
    assert found.shape == (6, 5, channels)
    assert found.dtype == pixels.dtype
    for channel in range(channels):
        plane = Image.fromarray(pixels[..., channel].astype(np.float32))
        exact = np.asarray(plane.resize((5, 6), Image.Resampling.BICUBIC, box))
        exact = exact.clip(0, 2**bits - 1)
        assert np.abs(found[..., channel] - exact).max() <= (1.5 if bits == 8 else 0.51)


@given(scale=st.sampled_from([1, 2, 4, 8]))
def test_a_smaller_decoding_shows_the_same(scale):
    box = Box(16.0, 8.0, 16.0 + 64 * 2 * scale, 8.0 + 48 * 2 * scale)
    assert reduction(box, (48, 64)) == scale
    large = np.repeat(np.repeat(smooth(60, 76), 2 * scale, 0), 2 * scale, 1)
    small = np.repeat(np.repeat(smooth(60, 76), 2, 0), 2, 1)
    same = box.reduced(scale, *small.shape[:2])
    exact, found = resized(large, box, (48, 64)), resized(small, same, (48, 64))
    assert np.abs(exact.astype(int) - found).mean() < 1
