"""What a run of text shows: a guess by frequency beside the model's figures, and filled sentences."""

from flax import nnx

from mlmjax.core.errors import UserError
from mlmjax.data.prepared import PreparedText
from mlmjax.data.text import TextData
from mlmjax.evaluation.baselines import unigram
from mlmjax.evaluation.fill_mask import fill_mask
from mlmjax.evaluation.heldout import heldout_context
from mlmjax.objectives.mlm import MaskedLanguageModel
from mlmjax.report.run import RunReport
from mlmjax.training.folder import Run
from mlmjax.training.state import Parameters

HELD_OUT = {
    "mask_accuracy": "accuracy",
    "mask_loss": "loss",
    "visible_loss": None,
    "next_sentence_accuracy": None,
}
"""What the table shows where it is there, and the unigram figure that stands beside it."""


class TextRun(RunReport):
    """What a run of text shows."""

    def evaluated(self, step: int, parameters: Parameters) -> dict[str, float]:
        """After the last step, the figures of a guess that reads no context, where there is one."""
        experiment, prepared = self.program.experiment, self.prepared
        if (
            step != experiment.run.steps
            or not isinstance(experiment.objective, MaskedLanguageModel)
            or not isinstance(prepared, PreparedText)
        ):
            return {}
        guess = unigram(
            experiment.objective,
            prepared.heldout_batches(**self.settings()),
            counts=prepared.token_counts,
            context=heldout_context(self.program),
        )
        return {"unigram_loss": guess.loss, "unigram_accuracy": guess.accuracy}

    def ended(self, parameters: Parameters) -> None:
        """The held-out table, and the config's examples with their masks filled."""
        figures = self.figures()
        shown = [name for name in HELD_OUT if name in figures] or sorted(figures)
        rows = []
        for name in shown:
            guess = figures.get(f"unigram_{HELD_OUT.get(name)}")
            rows.append(
                (
                    name.replace("_", " "),
                    f"{figures[name]:.4f}",
                    "" if guess is None else f"{guess:.4f}",
                )
            )
        self.terminal.table("Held-out results", ("", "model", "unigram"), rows)
        program, prepared = self.program, self.prepared
        data = program.experiment.data
        if not isinstance(data, TextData) or not isinstance(prepared, PreparedText):
            return
        run = Run(
            nnx.merge(program.graph, parameters),
            program.experiment,
            program.experiment.run.steps,
            str(self.files.path),
            prepared.tokenizer,
        )
        for text in data.examples:
            try:
                self.terminal.say(f"{text}\n  -> {fill_mask(run, text, top=3).best}")
            except (
                UserError
            ) as error:  # the examples are a config's, the tokenizer may be the user's
                self.terminal.say(f"Not filled: {error}")
