"""Preparing text beside the usual masked-language-model script: speed and peak memory.

    pip install -e '.[benchmark]'
    python benchmarks/prepare_text.py

Both sides read the same file of documents (JSON lines), with the same WordPiece tokenizer, in two processes: ours
from the file to rows on disk (reading, hashing, cleaning, copies, split, word and sentence starts, rows); theirs
``datasets.map(tokenise, batched=True, num_proc=2)`` and ``group_texts`` of transformers' ``run_mlm.py``, without
the time it takes them to load the file. Sides take turns, each in a process of its own; memory is the largest sum
over its process tree of memory that is not shared (anonymous pages).

Prediction, before the first run: both are bound by the tokenizer, which is the same library; theirs also builds
Python lists of all that it returns, and writes and reads it twice. So 1.5 times their MB/s, at a fifth of their
memory.
"""

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

import psutil

from mlmjax.data.documents import normalise
from mlmjax.data.preparation.sentences import sentence_starts
from mlmjax.data.samples import pydocs
from mlmjax.data.tokenizer import TokenizerConfig

OURS = """
import sys
from pathlib import Path
from mlmjax.data.preparation.prepare import Recipe, prepare
from mlmjax.data.sources import TextSource
from mlmjax.data.preparation.tokenising import RowSettings
from mlmjax.data.tokenizer import TokenizerConfig

if __name__ == "__main__":
    file, tokenizer, folder, length = sys.argv[1:]
    recipe = Recipe(TokenizerConfig(path=tokenizer), RowSettings(int(length), "full"))
    prepare([TextSource(root=file).open()], recipe, folder=Path(folder), workers=2)
"""

THEIRS = """
import sys, time
from itertools import chain
from datasets import load_dataset
from transformers import PreTrainedTokenizerFast

file, tokenizer, folder, length = sys.argv[1:]
length = int(length)
special = dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
tokenizer = PreTrainedTokenizerFast(tokenizer_file=tokenizer, **special)


def tokenise(examples):
    return tokenizer(examples["text"], return_special_tokens_mask=True)


def group_texts(examples):
    joined = {name: list(chain(*examples[name])) for name in examples}
    total = len(joined["input_ids"]) // length * length
    return {name: [ids[i : i + length] for i in range(0, total, length)] for name, ids in joined.items()}


if __name__ == "__main__":
    raw = load_dataset("json", data_files=file, cache_dir=folder, split="train")
    start = time.perf_counter()
    tokens = raw.map(tokenise, batched=True, num_proc=2, remove_columns=["text"])
    tokens.map(group_texts, batched=True, num_proc=2)
    print("seconds", time.perf_counter() - start)
"""


def make_file(path: Path, megabytes: int) -> float:
    """Documents of sentences drawn from the documentation of the installed packages, all different; their MB."""
    sentences = []
    for document in pydocs():
        text = normalise(document.text or "")
        starts = [*sentence_starts(text), len(text)]
        sentences += [text[a:b].strip() for a, b in pairwise(starts)]
    draw, size = random.Random(0), 0
    with path.open("w") as file:
        while size < megabytes * 1e6:
            text = " ".join(draw.choices(sentences, k=draw.randint(1, 40)))
            size += len(text.encode())
            file.write(json.dumps({"text": text}) + "\n")
    return size / 1e6


def measured(code: str, *arguments: str) -> tuple[float, float]:
    """Seconds (those that the code prints, or all) and peak memory in MB of a program."""
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        peaks = [0.0]
        watch = threading.Thread(target=_watch, args=(process, peaks))
        watch.start()
        said = process.communicate()[0]
        watch.join()
    if process.returncode:
        raise SystemExit(f"the program failed: {code[:60]}")
    told = [line for line in said.splitlines() if line.startswith("seconds")]
    seconds = float(told[0].split()[1]) if told else time.perf_counter() - start
    return seconds, max(peaks)


def _watch(process: subprocess.Popen, peaks: list[float]) -> None:
    while process.poll() is None:
        total = 0.0
        try:
            root = psutil.Process(process.pid)
            for one in [root, *root.children(recursive=True)]:
                total += _anonymous(one)
        except psutil.Error:
            pass
        peaks.append(total)
        time.sleep(0.1)


def _anonymous(process: psutil.Process) -> float:
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    kilobytes = {line.split()[0]: line.split()[1] for line in lines[1:]}
    return int(kilobytes["Pss_Anon:"]) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Preparing text beside datasets.map and group_texts."
    )
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=8192)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = make_file(folder / "text.jsonl", asked.megabytes)
        texts = [json.loads(line)["text"] for line in (folder / "text.jsonl").open()][:5000]
        TokenizerConfig(vocabulary=asked.vocabulary).train(texts).save(folder / "tokenizer.json")
        sides: dict[str, list[tuple[float, float]]] = {"ours": [], "theirs": []}
        for _ in range(asked.repeats):
            for side, code in (("ours", OURS), ("theirs", THEIRS)):
                work = folder / side
                files = [str(folder / "text.jsonl"), str(folder / "tokenizer.json"), str(work)]
                sides[side].append(measured(code, *files, str(asked.length)))
                shutil.rmtree(work)
                seconds, peak = sides[side][-1]
                print(f"{side:7} {size / seconds:6.2f} MB/s  {peak:6.0f} MB", flush=True)
    pairs = list(zip(sides["ours"], sides["theirs"], strict=True))
    speed = statistics.median(theirs[0] / ours[0] for ours, theirs in pairs)
    memory = statistics.median(ours[1] / theirs[1] for ours, theirs in pairs)
    print(f"{size:.0f} MB: {speed:.2f} times their MB/s, {memory:.2f} times their peak memory")


if __name__ == "__main__":
    main()
