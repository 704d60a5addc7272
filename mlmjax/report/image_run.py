"""What a run of images shows: reconstructions at every evaluation; probes of the frozen encoder at the end."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Float

from mlmjax.core.errors import UserError
from mlmjax.data.prepared_images import PreparedImages, Split
from mlmjax.evaluation.features import features
from mlmjax.evaluation.heldout import heldout_context
from mlmjax.evaluation.probe import Labelled, Probe, knn, linear_probe
from mlmjax.evaluation.reconstruct import Reconstruction, flat, reconstruct, remark
from mlmjax.models.mae import Mae
from mlmjax.objectives.mae import MaskedAutoencoder
from mlmjax.report.images import grid, write_png
from mlmjax.report.run import RunReport
from mlmjax.training.state import Parameters

PICTURE, PROBES = "reconstructions.png", "probes.json"
"""Files in the run folder."""
SHOWN = 8
"""Held-out images in the picture."""
PROBED = 10_000
"""Training images at most that probes are fitted to."""
HELD_OUT = {"mask_loss": "mask_loss", "visible_loss": None, "pixel_error": "pixel_error"}
"""What the table shows where it is there, and the figure of flat patches that stands beside it."""
ENCODERS = {"": "trained encoder", "random_": "random encoder", "pixels_": "raw pixels"}
"""What is probed, by the prefix of its figures."""
SPLITS: tuple[Split, ...] = ("train", "heldout")
METHODS: dict[str, tuple[str, Callable[..., Probe]]] = {
    "linear_probe": ("linear probe", linear_probe),
    "knn": ("k-NN", knn),
}


Read = Callable[[Iterator[dict[str, np.ndarray]]], Float[np.ndarray, "rows width"]]
"""From batches of images to a row of features each."""


class ImageRun(RunReport):
    """What a run of images shows."""

    _remark = ""
    _writer: Any = None

    def evaluated(self, step: int, parameters: Parameters) -> dict[str, float]:
        """Draw held-out images; after the last step, also probe, and judge a guess of flat patches."""
        program, prepared = self.program, self.prepared
        model = nnx.merge(program.graph, parameters)
        objective, context = program.experiment.objective, heldout_context(program)
        if not isinstance(prepared, PreparedImages) or not isinstance(model, Mae):
            return {}
        figures: dict[str, float] = {}
        last = step == program.experiment.run.steps
        if isinstance(objective, MaskedAutoencoder):
            batch = next(prepared.examples("heldout", batch=SHOWN))
            said = f"Step {step}. {remark(objective, model, 'visible')}"
            self._draw(step, reconstruct(objective, model, batch, context), said)
            if last:
                batches = prepared.heldout_batches(**self.settings())
                guess = flat(objective, model, batches, context=context)
                figures = {f"flat_{name}": value for name, value in guess._asdict().items()}
        return figures | self._probe(model) if last else figures

    def ended(self, parameters: Parameters) -> None:
        """The held-out errors, the probes, and where the picture is."""
        figures = self.figures()
        rows = []
        for name in [name for name in HELD_OUT if name in figures] or sorted(figures):
            guess = figures.get(f"flat_{HELD_OUT.get(name)}")
            beside = "" if guess is None else f"{guess:.4f}"
            rows.append((name.replace("_", " "), f"{figures[name]:.4f}", beside))
        self.terminal.table("Held-out results", ("", "model", "flat patches"), rows)
        probes = [
            (spoken, *(f"{figures[f'{prefix}{name}_accuracy']:.1%}" for prefix in ENCODERS))
            for name, (spoken, _) in METHODS.items()
            if f"{name}_accuracy" in figures
        ]
        if probes:
            title = "Labels of held-out images, told from frozen features"
            self.terminal.table(title, ("", *ENCODERS.values()), probes)
        if self._remark:
            self.terminal.say(self._remark)
        picture = self.files.path / PICTURE
        if picture.exists():
            self.terminal.say(f"Reconstructions of held-out images are in {picture}.")

    def close(self) -> None:
        """End the writer of pictures."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _draw(self, step: int, found: Reconstruction, said: str) -> None:
        """The picture, into the run folder and to TensorBoard."""
        pixels = grid(found._asdict(), caption=said, blocks=2)
        write_png(Path(self.files.path / PICTURE), pixels)
        if not self.program.experiment.run.tensorboard:
            return
        if self._writer is None:
            from tensorboardX import SummaryWriter

            # A folder of its own: of several files that grow at a time TensorBoard reads one a folder.
            folder = self.files.tensorboard / "pictures"
            self._writer = SummaryWriter(str(folder), purge_step=step)
        self._writer.add_image("heldout/reconstructions", pixels, step, dataformats="HWC")
        self._writer.flush()

    def _probe(self, model: Mae) -> dict[str, float]:
        """Accuracies of the probes of the trained encoder, of a random one, and of raw pixels."""
        program, seed = self.program, self.program.experiment.run.seed
        random = nnx.merge(program.graph, program.initial_parameters())
        readers: dict[str, Read] = {
            "": lambda batches: features(model, batches),
            "random_": lambda batches: features(random, batches),
            "pixels_": _pixels,
        }
        record: dict[str, Any] = {"layer": "last", "pooling": "mean", "seed": seed}
        figures: dict[str, float] = {}
        try:
            for prefix, read in readers.items():
                train, test = (self._labelled(split, read) for split in SPLITS)
                record |= {"train": len(train.labels), "heldout": len(test.labels)}
                for name, (_, probe) in METHODS.items():
                    found = probe(train, test, seed=seed)
                    record[prefix + name] = asdict(found)
                    figures[f"{prefix}{name}_accuracy"] = found.accuracy
                    if found.unknown:
                        self._remark = (
                            f"No training image is of the class of {found.unknown:.0%} of the held-out images, so "
                            "that these cannot be told."
                        )
        except UserError as error:  # training itself asks for no labels
            self._remark = f"Not probed: {error}"
            return {}
        (self.files.path / PROBES).write_text(json.dumps(record, indent=2) + "\n")
        return figures

    def _labelled(self, split: Split, read: Read) -> Labelled:
        """The images of a split that have a label; of many, some that the seed draws.

        Raises:
            UserError: there is none.
        """
        prepared, data = self.prepared, self.program.experiment.data
        assert isinstance(prepared, PreparedImages)
        labels = prepared.labels(split)
        if labels is None:
            raise UserError(f"the images have no labels ({data.root}).")
        chosen = np.flatnonzero(labels >= 0)
        if split == "train" and len(chosen) > PROBED:
            draw = np.random.default_rng(self.program.experiment.run.seed)
            chosen = np.sort(draw.choice(chosen, PROBED, replace=False))
        # The held-out view: nothing is cropped or mirrored at random.
        rows = {"train": prepared.train, "heldout": prepared.heldout}[split].shown(
            prepared.heldout.view
        )
        batches = (
            rows.assemble(some, np.zeros(len(some), np.int64), seed=0)
            for some in np.split(chosen, range(data.batch, len(chosen), data.batch))
        )
        return Labelled(read(batches), labels[chosen])


def _pixels(batches: Iterator[dict[str, np.ndarray]]) -> Float[np.ndarray, "rows width"]:
    """Raw pixels as features."""
    return np.concatenate(
        [each["pixels"].reshape(len(each["pixels"]), -1) for each in batches]
    ).astype(np.float32)
