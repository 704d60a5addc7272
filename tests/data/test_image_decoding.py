"""Files come out as they are, or are refused by name."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_images import encoded, noise, png, smooth
from PIL import Image

from mlmjax.data.image_decoding import convert, decode
from mlmjax.data.sources.lines import UnreadableError


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "PPM", "TGA"])
@pytest.mark.parametrize("channels", [1, 3])
def test_what_loses_nothing_comes_out_exactly(format, channels):
    pixels = noise(channels=channels)
    found = decode(encoded(pixels, format))
    np.testing.assert_array_equal(found.pixels, pixels)
    assert found.mode == ("L" if channels == 1 else "RGB")


@pytest.mark.parametrize("channels", [2, 4])
def test_alpha_comes_out_exactly(channels):
    pixels = noise(channels=channels)
    np.testing.assert_array_equal(decode(encoded(pixels, "PNG")).pixels, pixels)


@pytest.mark.parametrize("options", [("JPEG", {"quality": 95}), ("WEBP", {}), ("AVIF", {})])
def test_what_loses_something_comes_out_nearly(options):
    format, more = options
    pixels = smooth()
    found = decode(encoded(pixels, format, **more)).pixels
    assert np.abs(found.astype(int) - pixels).mean() < 4


def test_one_bit_is_black_and_white():
    pixels = np.array([[[0], [255]], [[255], [255]]], np.uint8)
    found = decode(encoded(pixels, mode="1"))
    assert found.mode == "1"
    np.testing.assert_array_equal(found.pixels, pixels)


def test_a_palette_gives_its_colours():
    colours = np.array([[255, 0, 0], [0, 200, 10], [1, 2, 3]], np.uint8)
    image = Image.fromarray(np.array([[0, 1], [2, 1]], np.uint8)).convert("L")
    image.putpalette(colours.tobytes())
    expected = colours[[[0, 1], [2, 1]]]
    for format in ("PNG", "GIF"):
        found = decode(encoded(image, format))
        assert found.mode == "P"
        np.testing.assert_array_equal(found.pixels, expected)
    transparent = decode(encoded(image, "PNG", transparency=1)).pixels
    np.testing.assert_array_equal(transparent[..., :3], expected)
    np.testing.assert_array_equal(transparent[..., 3], [[255, 0], [255, 0]])


def test_a_transparent_colour_becomes_alpha():
    grey = np.array([[[7], [8]]], np.uint8)
    found = decode(encoded(grey, "PNG", transparency=8)).pixels
    np.testing.assert_array_equal(found, [[[7, 255], [8, 0]]])


@pytest.mark.parametrize("format", ["JPEG", "TIFF"])
def test_cmyk_comes_out_in_its_colours(format):
    ink = np.zeros((16, 16, 4), np.uint8)
    ink[:8, :, 0] = 255  # cyan above
    ink[8:, :, 1] = ink[8:, :, 2] = 255  # magenta and yellow, which are red, below
    options = {"quality": 95} if format == "JPEG" else {}
    found = decode(encoded(Image.fromarray(ink, "CMYK"), format, **options))
    assert found.mode == "CMYK"
    expected = np.zeros((16, 16, 3))
    expected[:8], expected[8:] = (0, 255, 255), (255, 0, 0)
    assert np.abs(found.pixels[2:6].astype(int) - expected[2:6]).max() <= 8
    assert np.abs(found.pixels[10:14].astype(int) - expected[10:14]).max() <= 8


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_sixteen_bits_come_out_exactly(channels):
    pixels = noise(channels=channels, bits=16)
    np.testing.assert_array_equal(decode(png(pixels), bits=16).pixels, pixels)
    as_bytes = convert(decode(png(pixels)).pixels, channels=channels, bits=8)
    np.testing.assert_array_equal(as_bytes, np.rint(pixels / 257))


def test_sixteen_bits_of_other_formats():
    pixels = noise(channels=1, bits=16)
    for format in ("TIFF", "PPM", "PNG"):
        found = decode(encoded(Image.fromarray(pixels[..., 0]), format), bits=16)
        np.testing.assert_array_equal(found.pixels, pixels)


def test_sixteen_bits_with_alpha_are_read_in_eight_or_refused():
    pixels = noise(channels=2, bits=16)
    found = decode(png(pixels), bits=8).pixels
    np.testing.assert_array_equal(found, pixels >> 8)
    with pytest.raises(UnreadableError, match=r"only 8 can be read.*--data.bits 8"):
        decode(png(pixels), bits=16)


def test_what_would_not_come_out_right_is_refused():
    reals = Image.fromarray(np.ones((4, 4), np.float32))
    whole = Image.fromarray(np.ones((4, 4), np.int32))
    with pytest.raises(UnreadableError, match="real numbers"):
        decode(encoded(reals, "TIFF"))
    with pytest.raises(UnreadableError, match="32 bits"):
        decode(encoded(whole, "TIFF"))
    with pytest.raises(UnreadableError, match="transparent colour"):
        decode(png(noise(channels=1, bits=16), chunks=[(b"tRNS", b"\1\2")]), bits=16)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "AVIF", "PPM"])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_a_file_that_is_cut_off_is_refused(format, share):
    whole = encoded(noise(64, 64), format)
    with pytest.raises(UnreadableError):
        decode(whole[: int(share * len(whole))])


@given(content=st.binary(max_size=200))
def test_what_is_no_image_is_refused(content):
    for start in (b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"BM", b"GIF89a", b"II*\0"):
        with pytest.raises(UnreadableError):
            decode(start + content)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_is_upright(orientation):
    pixels = smooth(24, 40)
    exif = Image.Exif()
    exif[274] = orientation
    found = decode(encoded(pixels, "PNG", exif=exif)).pixels
    # What the camera's sensor saw, if the scene is ``found``: the table in Exif 2.3, section 4.6.4.
    sensor = {
        1: found,
        2: found[:, ::-1],
        3: found[::-1, ::-1],
        4: found[::-1],
        5: found.swapaxes(0, 1),
        6: np.rot90(found),
        7: found[::-1, ::-1].swapaxes(0, 1),
        8: np.rot90(found, -1),
    }[orientation]
    np.testing.assert_array_equal(sensor, pixels)


@pytest.mark.parametrize(("asked", "scale"), [(1, 1), (2, 2), (3, 2), (4, 4), (8, 8)])
def test_jpeg_comes_out_smaller(asked, scale):
    pixels = smooth(97, 131)
    found = decode(encoded(pixels, "JPEG", quality=95), reduce=asked)
    assert found.scale == scale
    assert found.pixels.shape == (-(-97 // scale), -(-131 // scale), 3)
    middle = found.pixels[48 // scale, 64 // scale].astype(int)
    assert np.abs(middle - pixels[48, 64]).max() < 40
    assert decode(encoded(pixels), reduce=8).scale == 1


CHANNELS = st.integers(1, 4)


@given(has=CHANNELS, wanted=CHANNELS, bits=st.sampled_from([8, 16]), seed=st.integers(0, 99))
def test_conversion(has, wanted, bits, seed):
    pixels = noise(3, 4, has, seed=seed, bits=bits)
    found = convert(pixels, channels=wanted, bits=bits)
    assert found.shape == (3, 4, wanted)
    assert found.dtype == pixels.dtype
    if has == wanted:
        np.testing.assert_array_equal(found, pixels)
    if wanted in (2, 4) and has in (2, 4):
        np.testing.assert_array_equal(found[..., -1], pixels[..., -1])
    if wanted in (2, 4) and has in (1, 3):
        assert (found[..., -1] == 2**bits - 1).all()
    if has in (1, 2) and wanted == 4:
        assert (found[..., :3] == pixels[..., :1]).all()
    if has == 3 and wanted == 1:
        weights = (0.299, 0.587, 0.114)
        luma = sum(w * pixels[..., i].astype(float) for i, w in enumerate(weights))
        assert np.abs(found[..., 0] - luma).max() <= 0.5 + 1e-6


@given(grey=st.integers(0, 255), alpha=st.integers(0, 255), background=st.integers(0, 255))
def test_alpha_is_laid_over_the_background(grey, alpha, background):
    pixels = np.array([[[grey, alpha]]], np.uint8)
    found = convert(pixels, channels=1, bits=8, background=background)[0, 0, 0]
    expected = (grey * alpha + background * (255 - alpha)) / 255
    assert abs(float(found) - expected) <= 0.5 + 1e-9


@given(value=st.integers(0, 255))
def test_eight_bits_to_sixteen_and_back(value):
    pixels = np.full((1, 1, 1), value, np.uint8)
    deep = convert(pixels, channels=1, bits=16)
    assert deep[0, 0, 0] / 65535 == value / 255
    np.testing.assert_array_equal(convert(deep, channels=1, bits=8), pixels)
