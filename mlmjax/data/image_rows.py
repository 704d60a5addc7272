"""Images in ArrayRecord: written in order, read at random, shown as a batch needs them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter
from jaxtyping import Int, UInt

from mlmjax.core.errors import UserError
from mlmjax.data.draws import words
from mlmjax.data.image_crops import centre, random_crop, random_flip, reduction, resized
from mlmjax.data.image_decoding import Pixels, convert, decode
from mlmjax.data.rows import OPEN, Arrays
from mlmjax.data.sources.lines import UnreadableError

HEADER = np.dtype([("height", "<u4"), ("width", "<u4"), ("channels", "<u2"), ("bits", "u1")])
"""What stands before an image in its record. Where the bits are 0 a file follows as it came, else pixels:
row after row, of 16 bits in little-endian order. Height and width are those of the upright image."""

_TYPES: dict[int, np.dtype] = {8: np.dtype("u1"), 16: np.dtype("<u2")}


@dataclass(frozen=True)
class View:
    """How images are shown.

    Attributes:
        size: height and width.
        channels: wanted; see :func:`~mlmjax.data.image_decoding.convert`.
        bits: 8 or 16.
        background: grey value behind what is transparent.
        crop: least and largest share of the area of a random part; none: the largest part in the middle.
        flip: whether half of the images are mirrored.
    """

    size: tuple[int, int]
    channels: int
    bits: int
    background: int = 255
    crop: tuple[float, float] | None = None
    flip: bool = False

    @property
    def dtype(self) -> np.dtype:
        """Of a pixel."""
        return _TYPES[self.bits]

    def fit(self, pixels: Pixels) -> Pixels:
        """An image as it is shown where nothing is random."""
        shown = self.convert(pixels)
        return resized(shown, centre(shown.shape[0], shown.shape[1], self.size), self.size)

    def convert(self, pixels: Pixels) -> Pixels:
        """The whole image with the wanted channels and bits."""
        return convert(pixels, channels=self.channels, bits=self.bits, background=self.background)


class ImageWriter:
    """Appends images to a file, each a record of its own so that any can be read alone."""

    def __init__(self, path: Path) -> None:
        self._writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")

    def write(self, image: Pixels | bytes, *, height: int, width: int) -> None:
        """Append pixels, or a file of an image of that size."""
        head = np.zeros((), HEADER)
        head["height"], head["width"] = height, width
        if isinstance(image, bytes):
            self._writer.write(head.tobytes() + image)
            return
        head["channels"], head["bits"] = image.shape[2], 8 * image.dtype.itemsize
        self._writer.write(head.tobytes() + image.astype(_TYPES[int(head["bits"])]).tobytes())

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()


class ImageRows:
    """Some images of some files, read at random and from any number of threads."""

    def __init__(
        self,
        paths: Sequence[Path],
        sizes: Sequence[int],
        *,
        chosen: Int[np.ndarray, " rows"],
        view: View,
        fitted: bool = False,
        labels: Int[np.ndarray, " rows"] | None = None,
    ) -> None:
        """Open images; nothing is read yet.

        Args:
            paths: files that :class:`ImageWriter` wrote.
            sizes: images in each.
            chosen: the images that are meant, counted through all files; an example id is a place in here.
            view: how they are shown.
            fitted: whether all are pixels already as the view shows them.
            labels: the class of each chosen image, to be in batches; none: batches hold no classes.
        """
        self.view = view
        self.streams = [(0, len(chosen))]
        self.empty = {"labels": -1}
        self._paths, self._sizes, self._chosen = list(paths), list(sizes), chosen
        self._fitted, self._labels = fitted, labels
        self._ends = np.cumsum([0, *sizes])
        self._reader = lru_cache(OPEN)(self._open)

    def __len__(self) -> int:
        return len(self._chosen)

    def shown(self, view: View) -> "ImageRows":
        """The same images in another view, of the same size and channels."""
        return ImageRows(
            self._paths,
            self._sizes,
            chosen=self._chosen,
            view=view,
            fitted=self._fitted,
            labels=self._labels,
        )

    def assemble(
        self, index: Int[np.ndarray, " batch"], epoch: Int[np.ndarray, " batch"], *, seed: int
    ) -> Arrays:
        """Some images in some epochs: a part of a batch.

        Returns:
            ``pixels`` uint8 or uint16 [batch, height, width, channels], 0 to the largest; ``valid`` bool
            [batch]; ``id`` uint32 [batch, 2] (high and low word of the index); ``epoch`` int32 [batch]; where
            labels are asked for, ``labels`` int32 [batch].

        Raises:
            UserError: a file is damaged.
        """
        places = list(zip(index.tolist(), epoch.tolist(), strict=True))
        labels = {} if self._labels is None else {"labels": self._labels[index].astype(np.int32)}
        return {
            "pixels": self._pixels(index, places, seed),
            "valid": np.ones(len(index), bool),
            "id": words(index),
            "epoch": epoch.astype(np.int32),
            **labels,
        }

    def _pixels(
        self, index: Int[np.ndarray, " batch"], places: list[tuple[int, int]], seed: int
    ) -> UInt[np.ndarray, "batch height width channels"]:
        view, records = self.view, self.read(index)
        shape = (*view.size, view.channels)
        found = np.empty((len(records), *shape), view.dtype)
        if self._fitted:
            laid = np.dtype([("head", HEADER), ("pixels", view.dtype, shape)])
            found[:] = np.frombuffer(b"".join(records), laid)["pixels"]
        for row, (record, (number, epoch)) in enumerate(zip(records, places, strict=True)):
            if not self._fitted:
                found[row] = self._shown(record, number, epoch, seed)
            if view.flip and random_flip(seed=seed, epoch=epoch, index=number):
                found[row] = found[row, :, ::-1].copy()
        return found

    def _shown(self, record: bytes, index: int, epoch: int, seed: int) -> Pixels:
        view = self.view
        head = np.frombuffer(record, HEADER, 1)[0]
        height, width = int(head["height"]), int(head["width"])
        if view.crop is None:
            box = centre(height, width, view.size)
        else:
            box = random_crop(height, width, view.crop, seed=seed, epoch=epoch, index=index)
        try:
            pixels, scale = _content(record, head, view, reduction(box, view.size))
        except UnreadableError as error:
            raise _damaged(self._paths[0].parent, error) from error
        shown = view.convert(pixels)
        return resized(shown, box.reduced(scale, shown.shape[0], shown.shape[1]), view.size)

    def read(self, index: Int[np.ndarray, " rows"]) -> list[bytes]:
        """The records of some images, as :class:`ImageWriter` wrote them.

        Raises:
            UserError: a file is damaged.
        """
        wanted = self._chosen[index]
        found: list[bytes] = [b""] * len(wanted)
        shards = np.searchsorted(self._ends, wanted, "right") - 1
        for shard in np.unique(shards).tolist():
            places = np.flatnonzero(shards == shard).tolist()
            path = self._paths[shard]
            try:
                records = self._reader(path).read((wanted[places] - self._ends[shard]).tolist())
            except (RuntimeError, ValueError) as error:
                raise _damaged(path, error) from error
            for place, record in zip(places, records, strict=True):
                found[place] = record
        return found

    @staticmethod
    def _open(path: Path) -> ArrayRecordReader:
        return ArrayRecordReader(str(path), "readahead_buffer_size:0")


def _content(record: bytes, head: np.void, view: View, reduce: int) -> tuple[Pixels, int]:
    """The pixels of a record, and how much smaller they are than the image."""
    body = memoryview(record)[HEADER.itemsize :]
    if head["bits"]:
        shape = (int(head["height"]), int(head["width"]), int(head["channels"]))
        pixels = np.frombuffer(body, _TYPES[int(head["bits"])])
        return pixels.reshape(shape), 1
    decoded = decode(bytes(body), bits=view.bits, reduce=reduce)
    return decoded.pixels, decoded.scale


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(
        f"The prepared images {path} cannot be read ({error}). Delete the folder and run the command again."
    )
