"""Reading prepared rows: tokens a second on one core, and beside them the time that training waits for data.

    python benchmarks/reading_rows.py

Batches are read as in training, in random order, by the reading thread alone on one core. The waiting share of a
run stands in its metrics.jsonl as train/data_wait_seconds, a step.

Prediction: a batch of 32 rows is one or a few calls into ArrayRecord's reader and a dozen copies of small arrays,
some 0.3 ms; of 4096 tokens at length 128, so ten million tokens a second.
"""

import argparse
import os
import statistics
import tempfile
import time

from mlmjax.data.text import TextData
from mlmjax.data.tokenizer import TokenizerConfig


def tokens_per_second(data: TextData, *, seconds: float) -> float:
    """Tokens a second of the batches of some data, once the first have been read."""
    prepared = data.prepare()
    stream = prepared.batches(seed=0, batch=data.batch, start=0, stop=10**9, threads=1)
    for _ in range(16):  # those that are read ahead
        next(stream)
    tokens, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        tokens += next(stream)["tokens"].size
    found = tokens / (time.perf_counter() - start)
    stream.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokens a second of prepared rows, on one core.")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    core = min(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as cache:
        tokenizer = TokenizerConfig(vocabulary=4096)
        for layout, length in (
            ("full", 64),
            ("full", 128),
            ("full", 512),
            ("pairs", 128),
            ("packed", 512),
        ):
            data = TextData(
                length=length, layout=layout, batch=32, tokenizer=tokenizer, cache=cache
            )
            data.prepare()
            os.sched_setaffinity(0, {core})
            found = [tokens_per_second(data, seconds=asked.seconds) for _ in range(asked.repeats)]
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
            print(
                f"{layout:7} length {length:4} {statistics.median(found) / 1e6:7.2f} million tokens/s"
            )


if __name__ == "__main__":
    main()
