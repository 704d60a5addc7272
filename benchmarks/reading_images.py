"""Reading images: images a second on one core, and the share of a `mae_fashion` step that waits for them.

    python benchmarks/reading_images.py --root /usr/share/datasets/fashion-mnist

Fashion-MNIST is read as `mae_fashion` does, from its idx files, and as JPEG files of four times the height and
width (112 by 112), which are decoded, cropped and mirrored anew in every batch. Beside these, photographs of 500 by
375 pixels are decoded and cropped to 224 by 224, as for ImageNet. Batches are read as in training: in random order,
by the reading threads. Steps are those of the config, on all cores, which the reading threads share; waiting is the
time until a batch is there, as in train/data_wait_seconds.

Prediction: pixels that are written as they are shown take 15 µs an image, so 60,000 images/s; a crop of 28 by 28
pixels 80 µs, of which Pillow's calls are most, so 12,000; a JPEG of 112 by 112 takes 200 µs, so 5,000; a photograph
8 ms, most of it in libjpeg and the resampling, so 120. A step of 256 images takes half a second on two cores. Then
JPEGs take a tenth of the cores' time, and since eight batches are read ahead, waiting is far below 5%.
"""

import argparse
import os
import statistics
import tempfile
import time
from itertools import islice
from pathlib import Path

import jax
import numpy as np
from PIL import Image

from mlmjax.data.images import ImageData
from mlmjax.experiment import Experiment, load_experiment
from mlmjax.training.step import Program

CROP = {"crop": (0.2, 1.0), "flip": True}


def write_jpegs(data: ImageData, folder: Path, *, count: int, scale: int) -> None:
    """Some training images of a data set, enlarged, as JPEG files in folders of their classes."""
    prepared = data.prepare()
    some = islice(prepared.examples("train", batch=256), -(-count // 256))
    pixels = np.concatenate([batch["pixels"] for batch in some])
    labels = prepared.labels("train")
    assert labels is not None
    for number, (image, label) in enumerate(zip(pixels[:count], labels[:count], strict=True)):
        path = folder / str(label) / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        found = Image.fromarray(image[..., 0])
        found.resize((scale * found.width, scale * found.height), Image.Resampling.BICUBIC).save(
            path, quality=90
        )


def write_photographs(folder: Path, *, count: int) -> None:
    """JPEG files of 500 by 375 pixels with about as many bytes as a photograph has."""
    folder.mkdir()
    for number in range(count):
        rng = np.random.default_rng(number)
        coarse = Image.fromarray(rng.integers(0, 256, (47, 63, 3), np.uint8))
        smooth = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC), np.int16)
        noisy = (smooth + rng.normal(0, 8, smooth.shape)).clip(0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / f"{number:04}.jpg", quality=90)


def images_per_second(data: ImageData, *, seconds: float) -> float:
    """Images a second of the batches of some data, read by one thread on one core."""
    prepared = data.prepare()
    stream = prepared.batches(seed=0, batch=data.batch, start=0, stop=10**9, threads=1)
    for _ in range(10):  # those that are read ahead
        next(stream)
    images, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        images += len(next(stream)["id"])
    found = images / (time.perf_counter() - start)
    stream.close()
    return found


def step_and_wait(experiment: Experiment, *, steps: int) -> tuple[float, float]:
    """Seconds of a training step, and those of them that wait for the batch; the first two are left out."""
    data, prepared = experiment.data, experiment.data.prepare()
    program = Program.of(experiment.fitted(None))
    compiled = program.step().lower(program.state, program.batch).compile()
    state = program.initial_state()
    stream = prepared.batches(
        seed=0, batch=data.batch, start=0, stop=steps + 2, threads=data.threads
    )
    waited = begin = 0.0
    for step in range(steps + 2):
        if step == 2:
            waited, begin = 0.0, time.perf_counter()
        asked = time.perf_counter()
        batch = next(stream)
        waited += time.perf_counter() - asked
        state, report = compiled(state, program.place(batch))
        jax.block_until_ready(report)
    seconds = time.perf_counter() - begin
    stream.close()
    return seconds / steps, waited / steps


def main() -> None:
    parser = argparse.ArgumentParser(description="Images a second, and time that waits for them.")
    parser.add_argument("--root", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    asked = parser.parse_args()
    cores = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        experiment = load_experiment("mae_fashion")
        base = experiment.data.updated(root=asked.root, cache=str(place / "cache"))
        assert isinstance(base, ImageData)
        write_jpegs(base, place / "jpeg", count=6000, scale=4)
        write_photographs(place / "photographs", count=200)
        jpegs = base.updated(root=str(place / "jpeg"), **CROP)
        photographs = base.updated(
            root=str(place / "photographs"), size=(224, 224), channels=3, batch=32, **CROP
        )
        kinds = {
            "idx, 28×28": base,
            "idx, 28×28, cropped": base.updated(**CROP),
            "JPEG, 112×112, cropped to 28×28": jpegs,
            "JPEG, 500×375, cropped to 224×224": photographs,
        }
        for name, data in kinds.items():
            data.prepare()
            os.sched_setaffinity(0, {min(cores)})
            found = [images_per_second(data, seconds=asked.seconds) for _ in range(asked.repeats)]
            os.sched_setaffinity(0, cores)
            print(f"{name:36} {statistics.median(found):10,.0f} images/s on one core", flush=True)
        for name in list(kinds)[:3]:
            trained = experiment.updated(data=kinds[name])
            seconds, waited = step_and_wait(trained, steps=asked.steps)
            print(
                f"{name:36} {1e3 * seconds:8.1f} ms a step, {1e3 * waited:6.2f} ms of them waiting "
                f"({waited / seconds:.2%})",
                flush=True,
            )


if __name__ == "__main__":
    main()
