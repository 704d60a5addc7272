"""Pictures of images side by side: every pixel is where it belongs, in the colour that it has."""

import numpy as np
import pytest
from PIL import Image

from mlmjax.core.errors import UserError
from mlmjax.report.images import GAP, LARGEST, MARGIN, UNSEEN, grid, write_png


def images(count: int, height: int, width: int, channels: int, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return draw.integers(0, 256, size=(count, height, width, channels)) / 255


def contains(picture: np.ndarray, tile: np.ndarray) -> bool:
    """Whether the tile lies somewhere in the picture, pixel for pixel."""
    windows = np.lib.stride_tricks.sliding_window_view(picture, tile.shape)
    first = np.argwhere((windows[:, :, 0, 0, 0, :] == tile[0, 0]).all(axis=-1))
    return any((picture[y : y + len(tile), x : x + tile.shape[1]] == tile).all() for y, x in first)


@pytest.mark.parametrize("blocks", [1, 2])
def test_each_pixel_of_a_small_image_is_a_square(blocks: int) -> None:
    columns = {"original": images(3, 8, 6, 1), "reconstruction": images(3, 8, 6, 1, seed=1)}
    picture = grid(columns, blocks=blocks, caption="a caption " * 30)
    for each in columns.values():
        for image in each:
            exact = np.rint(255 * image).astype(np.uint8).repeat(3, axis=2)
            assert contains(picture, exact.repeat(12, axis=0).repeat(12, axis=1))
    assert picture.dtype == np.uint8
    assert picture.shape[2] == 3


def test_a_row_holds_versions_of_one_image_and_columns_stand_in_order() -> None:
    white, black = np.ones((2, 96, 96, 3)), np.zeros((2, 96, 96, 3))
    black[1, ..., 0] = 1
    picture = grid({"a": white, "b": black})
    line = picture[-MARGIN - 20]  # through the second image
    red = np.flatnonzero((line == [255, 0, 0]).all(axis=1))
    assert (red == np.arange(MARGIN + 96 + GAP, MARGIN + 96 + GAP + 96)).all()
    assert (picture[-MARGIN - 20 - 96 - GAP, red] == 0).all()


def test_alpha_lies_over_white_and_values_outside_are_cut() -> None:
    grey = np.full((1, 100, 100, 2), 0.5)
    assert (grid({"": grey})[-MARGIN - 9, MARGIN + 9] == 191).all()
    clear = np.concatenate([images(1, 100, 100, 3), np.zeros((1, 100, 100, 1))], axis=-1)
    assert (grid({"": clear})[-MARGIN - 9, MARGIN + 9] == 255).all()
    beyond = np.array([7.0, -3.0, 0.0]) * np.ones((1, 100, 100, 1))
    assert (grid({"": beyond})[-MARGIN - 9, MARGIN + 9] == [255, 0, 0]).all()


@pytest.mark.parametrize("channels", range(1, 8))
def test_what_is_not_a_number_is_blue_and_many_channels_are_their_mean(channels: int) -> None:
    image = np.full((1, 100, 100, channels), 0.25)
    if channels > 4:
        image[..., 0] = 0.25 + 0.25 * channels
        assert (grid({"": image.clip(0, 1)})[-MARGIN - 9, MARGIN + 9] > 64).all()
    image[:, 50:] = np.nan
    picture = grid({"": image})
    assert (picture[-MARGIN - 9, MARGIN + 9] == UNSEEN).all()
    assert (picture[-MARGIN - 91, MARGIN + 9] != UNSEEN).any()


def test_large_images_become_smaller_and_keep_their_shape() -> None:
    shape = grid({"": np.zeros((1, 4 * LARGEST, 2 * LARGEST, 3))}).shape
    assert shape[0] - grid({"": np.zeros((1, 100, 50, 3))}).shape[0] == LARGEST - 100
    assert shape[1] == 2 * MARGIN + LARGEST // 2 + GAP - GAP


def test_a_caption_is_wrapped_and_makes_the_picture_taller() -> None:
    image = {"": np.zeros((1, 96, 96, 1))}
    plain, said, longer = (
        grid(image, caption=text) for text in ("", "of it", "so many words " * 9)
    )
    assert plain.shape[0] < said.shape[0] < longer.shape[0]
    assert plain.shape[1] == longer.shape[1]
    assert (said[-14:] < 200).any()  # ink


def test_columns_of_different_images_are_no_picture() -> None:
    with pytest.raises(ValueError, match="same images"):
        grid({"a": np.zeros((1, 8, 8, 1)), "b": np.zeros((2, 8, 8, 1))})
    with pytest.raises(ValueError, match="at least one"):
        grid({"a": np.zeros((0, 8, 8, 1))})


def test_a_file_holds_the_pixels_and_is_written_whole(tmp_path) -> None:
    pixels = np.rint(255 * images(1, 20, 30, 3)[0]).astype(np.uint8)
    path = tmp_path / "a.png"
    path.write_bytes(b"before")
    write_png(path, pixels)
    assert (np.asarray(Image.open(path)) == pixels).all()
    assert [each.name for each in tmp_path.iterdir()] == ["a.png"]
    with pytest.raises(UserError, match=r"nowhere/a\.png cannot be written: No such file"):
        write_png(tmp_path / "nowhere" / "a.png", pixels)
