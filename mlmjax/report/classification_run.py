"""What a run of classification shows: its held-out figures beside those of the most frequent class."""

import numpy as np

from mlmjax.evaluation.baselines import majority
from mlmjax.report.run import RunReport
from mlmjax.training.state import Parameters

HELD_OUT = {"class_accuracy": "accuracy", "class_loss": "loss"}
"""What the table shows, and the figure of guessing by frequency that stands beside it."""


class ClassificationRun(RunReport):
    """What a run of classification shows, be it of text or of images."""

    def evaluated(self, step: int, parameters: Parameters) -> dict[str, float]:
        """After the last step, the figures of a guess that looks at no example."""
        if step != self.program.experiment.run.steps:
            return {}
        splits = self.prepared.manifest["splits"]
        guess = majority(*(np.array(splits[side]["classes"]) for side in ("train", "heldout")))
        return {
            "majority_loss": guess.loss,
            "majority_accuracy": guess.accuracy,
            "unknown_class_share": guess.unknown,
        }

    def ended(self, parameters: Parameters) -> None:
        """The held-out table, and how many of the held-out examples cannot be told."""
        figures = self.figures()
        rows = [
            (
                name.replace("_", " "),
                f"{figures[name]:.4f}",
                f"{figures[f'majority_{beside}']:.4f}",
            )
            for name, beside in HELD_OUT.items()
        ]
        self.terminal.table("Held-out results", ("", "model", "most frequent class"), rows)
        if unknown := figures["unknown_class_share"]:
            self.terminal.say(
                f"No training example is of the class of {unknown:.1%} of the held-out examples, so that these "
                "cannot be told."
            )
