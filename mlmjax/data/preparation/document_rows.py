"""One document a row, cut where it is too long: what is classified is a document, and not a part of one."""

import numpy as np
from jaxtyping import Shaped

from mlmjax.core.vocabulary import Vocabulary
from mlmjax.data.preparation.layout import TOKEN
from mlmjax.data.rows import row_dtype

PAIR = "\x1f"
"""What stands between the two texts of a document that is a pair; no normalised text holds it."""

Tokens = Shaped[np.ndarray, "_"]
Table = Shaped[np.ndarray, "_"]


class DocumentRows:
    """``[CLS]`` text ``[SEP]``, or ``[CLS]`` first ``[SEP]`` second ``[SEP]`` of documents that are pairs.

    As BERT is fine-tuned (Devlin et al. 2019, section 3.2 and figure 4): segments are 0, and 1 from the second text
    on. What is too long is cut at the end; of a pair the longer text first, until both are equally long.
    """

    def __init__(self, length: int, vocabulary: Vocabulary) -> None:
        """Rows of ``length`` tokens."""
        self._length, self._vocabulary = length, vocabulary
        self._texts: list[list[np.ndarray]] = [[]]
        self.cut = 0
        """Rows whose document does not fit."""

    def add(self, tokens: Tokens, document: int, *, last: bool = True) -> Table:
        """The row of a document, once it is whole.

        Args:
            tokens: the document's, or the next of them.
            document: its id.
            last: whether the document ends with them.
        """
        self._texts[-1].append(tokens)
        if not last:
            return np.zeros(0, row_dtype(self._length, labelled=True))
        texts = [np.concatenate([np.zeros(0, TOKEN), *parts]) for parts in self._texts]
        self._texts = [[]]
        sizes = self._sizes([len(text) for text in texts])
        self.cut += int(sum(sizes) < sum(map(len, texts)))
        row = np.zeros(1, row_dtype(self._length, labelled=True))
        row["tokens"], row["document"], row["label"] = self._vocabulary.padding, document, -1
        row["tokens"][0, 0] = self._vocabulary.start
        end = 1
        for number, (text, size) in enumerate(zip(texts, sizes, strict=True)):
            begin, end = end, end + size + 1
            row["tokens"][0, begin : end - 1] = text["id"][:size]
            row["tokens"][0, end - 1] = self._vocabulary.separator
            row["word_starts"][0, begin : end - 1] = text["word"][:size]
            row["sentence_starts"][0, begin : end - 1] = text["sentence"][:size]
            if size:
                row["word_starts"][0, begin] = row["sentence_starts"][0, begin] = True
            row["segments"][0, begin:end] = number
        row["used"] = end
        return row

    def turn(self) -> None:
        """The document's second text begins."""
        self._texts.append([])

    def finish(self) -> Table:
        """Nothing: no row waits for another document."""
        return np.zeros(0, row_dtype(self._length, labelled=True))

    def _sizes(self, sizes: list[int]) -> list[int]:
        """How many tokens of each text are kept."""
        room = self._length - 1 - len(sizes)
        if len(sizes) == 1:
            return [min(sizes[0], room)]
        first, second = sizes
        second = min(second, max(room - first, room // 2))
        return [min(first, room - second), second]
