"""Masks on the device beside transformers' collators on the host: examples a second, on the same tokens.

    pip install -e '.[benchmark]'
    python benchmarks/selection_speed.py

Both sides are given the same rows of text, tokenised by the same WordPiece tokenizer. Ours is each selection,
compiled, by itself and with the replacement of tokens (80/10/10). Theirs is ``DataCollatorForLanguageModeling``,
plain and with ``whole_word_mask=True``: the call, from lists as a dataset gives them, and its masking alone
(``torch_mask_tokens``: draw and replace), on tensors that are ready. All take turns; times are medians.

Prediction, before the first run, on two cores: for 256 rows the plain collator takes 35 ms, 6 of which are masking,
and the whole-word mode 400, since it compares each token of a row with each other. Ours take 3 (Bernoulli tokens)
to 55 ms (hierarchical): tokens four times as fast as the plain collator, words thirty times as fast as its
whole-word mode.
"""

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from rich.console import Console
from rich.table import Table
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

from mlmjax.core import prng
from mlmjax.core.vocabulary import Vocabulary
from mlmjax.corruption import TokenCorruption
from mlmjax.data.preparation.sentences import sentence_starts
from mlmjax.data.samples import pydocs
from mlmjax.data.tokenizer import TokenizerConfig
from mlmjax.data.words import word_starts
from mlmjax.masking import (
    BalancedSelection,
    HierarchicalSelection,
    NGramSelection,
    RareTokenSelection,
    Row,
    Selection,
    SpanSelection,
    TokenSelection,
    WordSelection,
    eligible_tokens,
)

SELECTIONS = {
    "tokens": TokenSelection(),
    "tokens, Bernoulli": TokenSelection(count="bernoulli"),
    "words": WordSelection(),
    "words, Bernoulli": WordSelection(count="bernoulli"),
    "spans": SpanSelection(),
    "n-grams": NGramSelection(),
    "rare tokens": RareTokenSelection(),
    "rare words": RareTokenSelection(unit="words"),
    "balanced": BalancedSelection(),
    "hierarchical": HierarchicalSelection(),
}
THEIRS = ("plain call", "plain masking", "whole-word call", "whole-word masking")


class Texts:
    """Rows of text, as features for a collator and as arrays for a selection."""

    def __init__(self, *, rows: int, length: int, vocabulary: int) -> None:
        texts = [document.text or "" for document in pydocs(packages=())]
        trained = TokenizerConfig(vocabulary=vocabulary).train(texts)
        self.vocabulary: Vocabulary = trained.vocabulary
        special = {
            f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")
        }
        with tempfile.TemporaryDirectory() as folder:
            trained.save(Path(folder) / "tokenizer.json")
            file = str(Path(folder) / "tokenizer.json")
            self.tokenizer = PreTrainedTokenizerFast(tokenizer_file=file, **special)
        joined = " ".join(texts)
        size = 8 * length
        self.texts = [joined[at : at + size] for at in range(0, rows * size, size)]
        encoded = self.tokenizer(
            self.texts,
            truncation=True,
            max_length=length,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
        )
        keys = ("input_ids", "attention_mask", "special_tokens_mask", "offset_mapping")
        self.features = [{key: encoded[key][row] for key in keys} for row in range(rows)]
        if {len(each["input_ids"]) for each in self.features} != {length}:
            raise SystemExit("The texts are too short to fill the rows.")

    def arrays(self) -> tuple[jax.Array, Row]:
        """Token ids, and what a selection may look at."""
        tokens = np.array([each["input_ids"] for each in self.features], np.int32)
        words, sentences = np.zeros(tokens.shape, bool), np.zeros(tokens.shape, bool)
        for row, (text, each) in enumerate(zip(self.texts, self.features, strict=True)):
            starts = np.array(each["offset_mapping"])[1:-1, 0]
            words[row, 1:-1], first = word_starts(text, starts)
            begins = np.searchsorted(first, sentence_starts(text))
            sentences[row, 1 + begins[begins < len(starts)]] = True
        share = np.bincount(tokens.ravel(), minlength=self.vocabulary.size) / tokens.size
        share[list(self.vocabulary.special)] = 0
        special = self.vocabulary.special
        row = Row(
            eligible=eligible_tokens(
                jnp.asarray(tokens), jnp.ones(tokens.shape, bool), special=special
            ),
            word_starts=jnp.asarray(words),
            sentence_starts=jnp.asarray(sentences),
            frequency=jnp.asarray(share[tokens], jnp.float32),
        )
        return jnp.asarray(tokens), row


def ours(selection: Selection, texts: Texts, *, replace: bool) -> Callable[[], Any]:
    """Masks of all rows, compiled; with the tokens that the encoder sees, where asked."""
    tokens, rows = texts.arrays()
    keys = jax.vmap(partial(prng.fold, prng.root(0)))(jnp.arange(len(tokens)))
    corruption = TokenCorruption()

    def one(key: jax.Array, tokens: jax.Array, row: Row) -> Any:
        mask = selection(prng.stream(key, "mask"), row)
        if not replace:
            return mask
        return mask, corruption(prng.stream(key, "corruption"), tokens, mask, texts.vocabulary)

    return partial(jax.jit(jax.vmap(one)).lower(keys, tokens, rows).compile(), keys, tokens, rows)


def theirs(texts: Texts, *, whole: bool) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The collator's whole call, and its masking alone."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # It replaces by [MASK] alone in whole-word mode, and says so.
        collator = DataCollatorForLanguageModeling(texts.tokenizer, whole_word_mask=whole)
    keys = [key for key in texts.features[0] if whole or key != "offset_mapping"]
    features = [{key: each[key] for key in keys} for each in texts.features]
    arrays = {key: torch.tensor([each[key] for each in features]) for key in keys}

    def masking() -> Any:
        offsets = {"offset_mapping": arrays["offset_mapping"]} if whole else {}
        return collator.torch_mask_tokens(
            arrays["input_ids"].clone(),
            special_tokens_mask=arrays["special_tokens_mask"],
            **offsets,
        )

    return partial(collator, features), masking


def median_times(runs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Seconds of each, taken in turn so that a change in the machine's load meets all alike."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            if turn > 0:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, help="of torch; fewer are faster on a busy machine")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    texts = Texts(rows=options.rows, length=options.length, vocabulary=options.vocabulary)

    runs = dict(zip(THEIRS, (*theirs(texts, whole=False), *theirs(texts, whole=True)), strict=True))
    for name, selection in SELECTIONS.items():
        runs[name] = ours(selection, texts, replace=True)
        runs[f"{name}, mask alone"] = ours(selection, texts, replace=False)
    seconds = median_times(runs, options.repeats)

    table = Table(
        title=f"{options.rows} x {options.length} tokens; jax {jax.__version__} on "
        f"{jax.devices()[0].device_kind}, transformers {transformers.__version__}, torch "
        f"{torch.__version__} with {torch.get_num_threads()} thread(s)"
    )
    table.add_column("")
    for heading in (
        "mask alone",
        "and replace",
        "examples/s",
        *(f"over {name}" for name in THEIRS),
    ):
        table.add_column(heading, justify="right")
    for name in (*THEIRS, *SELECTIONS):
        alone, whole = seconds.get(f"{name}, mask alone"), seconds[name]
        table.add_row(
            name,
            f"{alone * 1e3:.1f} ms" if alone else "",
            f"{whole * 1e3:.1f} ms",
            f"{options.rows / whole:,.0f}",
            *(f"{seconds[each] / whole:.2f}" for each in THEIRS),
        )
    Console(width=116).print(table)


if __name__ == "__main__":
    main()
