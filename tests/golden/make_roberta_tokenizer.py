"""Freeze a small byte-level BPE in vocab.json and merges.txt, and the ids of transformers' RobertaTokenizer.

pip install transformers==5.25 && python tests/golden/make_roberta_tokenizer.py
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, ByteLevelBPETokenizer
from transformers import RobertaTokenizer

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
MASK = AddedToken("<mask>", lstrip=True, special=True, normalized=False)
"""As RoBERTa's published folders have it; this version of the library takes no space away by default."""
LEARNED = [
    "The function returns a sorted copy of the array, and doesn't change the array itself.",
    "Returns the number of elements in the array; the elements of the array are sorted.",
    "It's the caller's turn: they're given the values 1, 2, 3 and 2024.",
]
TEXTS = [
    "The elements of the array are sorted.",
    " The elements  of\tthe\n\narray ",
    "don't they're IT'S 1,234.5 x2024",
    "naïve café — “quoted” 東京 🙂🏽",
    "trailing   ",
    "",
    " ",
    "__init__(self, *args)\r\n",
]
MASKED = ["The <mask> of the array", "<mask>", "a<mask>b <mask>  <mask>.", " <mask> array"]


def tokens(tokenizer: Any) -> dict[str, list[list[int]]]:
    return {
        "plain": [tokenizer(text, add_special_tokens=False).input_ids for text in TEXTS],
        "special": [tokenizer(text).input_ids for text in TEXTS],
        "masked": [tokenizer(text, add_special_tokens=False).input_ids for text in MASKED],
    }


def main() -> None:
    """Write roberta_tokenizer.json beside this file."""
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(
        LEARNED * 3, vocab_size=340, min_frequency=2, special_tokens=SPECIAL, show_progress=False
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trained.save_model(name)
        files = {each: (folder / each).read_text() for each in ("vocab.json", "merges.txt")}
        found = {}
        for space in (False, True):
            (folder / "tokenizer_config.json").write_text(
                json.dumps({"add_prefix_space": space, "tokenizer_class": "RobertaTokenizer"})
            )
            found[str(space)] = tokens(RobertaTokenizer.from_pretrained(name, mask_token=MASK))
    record = {"files": files, "texts": TEXTS, "masked": MASKED, "add_prefix_space": found}
    Path(__file__).with_name("roberta_tokenizer.json").write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
