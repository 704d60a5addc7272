"""What is given to a trained model, picture files or texts, as batches that it reads."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from mlmjax.core.errors import UserError
from mlmjax.data.documents import normalise
from mlmjax.data.image_decoding import Pixels, decode
from mlmjax.data.image_rows import View
from mlmjax.data.image_sources.folder import is_image
from mlmjax.data.images import ImageData
from mlmjax.data.sources.lines import UnreadableError
from mlmjax.evaluation.features import OF_IMAGES
from mlmjax.training.folder import Run

Arrays = dict[str, np.ndarray]


def picture_files(given: Sequence[str]) -> list[Path]:
    """The files that are given, and of folders all files in them that are named as images, in the order of names.

    Raises:
        UserError: there is nothing at a place, or no image in a folder.
    """
    found: list[Path] = []
    for each in given:
        path = Path(each)
        if not path.is_dir():
            if not path.exists():
                raise UserError(f"There is no image {each}.")
            found.append(path)
            continue
        inside = sorted(one for one in path.rglob("*") if is_image(one.name) and one.is_file())
        if not inside:
            raise UserError(f"The folder {each} holds no image.")
        found += inside
    return found


def picture_batches(run: Run, paths: Sequence[Path], *, batch: int = 32) -> Iterator[Arrays]:
    """Pictures as the model reads them: the largest part in the middle, scaled to its size.

    Args:
        run: a model of images and its config.
        paths: of the files.
        batch: pictures in a batch; the last may have fewer.

    Returns:
        ``pixels``, ``valid``, ``id`` (the picture's number) and ``epoch`` (0).

    Raises:
        UserError: a file is no image, damaged, or smaller than a patch; it is named.
    """
    data, model = run.config.data, run.model
    if not isinstance(data, ImageData) or not isinstance(model, OF_IMAGES):
        raise UserError(
            f"The run is of {type(data).__name__} and {type(model).__name__}; pictures need one of ImageData "
            "and a masked autoencoder, or a classifier with the encoder of one."
        )
    encoder = model.config.encoder
    view = replace(data.view(), size=encoder.image, crop=None, flip=False)
    for first in range(0, len(paths), batch):
        some = paths[first : first + batch]
        pixels = np.stack([_picture(path, view, encoder.patch) for path in some])
        numbers = np.arange(first, first + len(some), dtype=np.uint32)
        yield {
            "pixels": pixels,
            "valid": np.ones(len(some), bool),
            "id": np.stack([np.zeros_like(numbers), numbers], axis=1),
            "epoch": np.zeros(len(some), np.int32),
        }


def _picture(path: Path, view: View, patch: tuple[int, int]) -> Pixels:
    try:
        pixels = decode(path.read_bytes(), bits=view.bits).pixels
    except UnreadableError as error:
        raise UserError(f"{path}: {error}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error
    height, width, channels = pixels.shape
    if height < patch[0] or width < patch[1]:
        raise UserError(
            f"{path} is of {height}×{width} pixels, smaller than a patch of the model ({patch[0]}×{patch[1]}): "
            "give a larger picture."
        )
    if max(channels, view.channels) > 4 and channels != view.channels:
        raise UserError(
            f"{path} has {channels} channels, and the model reads {view.channels}; no file of a picture has as "
            "many."
        )
    return view.fit(pixels)


def text_batches(run: Run, texts: Sequence[str], *, batch: int = 32) -> Iterator[Arrays]:
    """Texts as rows, [CLS] before and [SEP] after each; a literal [MASK] is text.

    Args:
        run: a model of text with its tokenizer and config.
        texts: normalised here, as the training texts were.
        batch: texts in a batch; the last may have fewer.

    Returns:
        ``tokens``, ``segments`` and ``valid``, all rows of one length.

    Raises:
        UserError: a text is longer than the model's rows, is empty, or is not UTF-8; it is quoted.
    """
    assert run.tokenizer is not None
    vocabulary, longest = run.tokenizer.vocabulary, run.model.config.positions
    for text in texts:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UserError(f"The text is not UTF-8: {text!r}") from error
    encoded = [each.ids for each in run.tokenizer.encode([normalise(text) for text in texts])]
    for text, ids in zip(texts, encoded, strict=True):
        if not len(ids):
            raise UserError(f"There is no token in the text {text!r}.")
        if len(ids) + 2 > longest:
            raise UserError(
                f"The text has {len(ids) + 2} tokens, the model {longest} positions: {text!r}"
            )
    # One shape, so that the program is compiled once.
    most = max(map(len, encoded), default=0) + 2
    length = min(-(-most // 32) * 32, longest)
    for first in range(0, len(texts), batch):
        some = encoded[first : first + batch]
        tokens = np.full((len(some), length), vocabulary.padding, np.int32)
        for row, ids in zip(tokens, some, strict=True):
            row[: len(ids) + 2] = [vocabulary.start, *ids, vocabulary.separator]
        used = np.array([len(ids) + 2 for ids in some])
        yield {
            "tokens": tokens,
            "segments": np.zeros_like(tokens),
            "valid": np.arange(length) < used[:, None],
        }
