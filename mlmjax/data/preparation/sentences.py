"""Where sentences start: a rule for prose in scripts that mark the end of a sentence.

A sentence ends at a paragraph break, after ``. ! ?`` (closing quotes and brackets included) before
a space and anything that is not a lower-case letter, and after the full stops of Chinese, Japanese
and the Indic scripts. A full stop after a single letter or a common abbreviation ends nothing. The
rule knows no language; where it is wrong, a sentence is a little longer or shorter, and no text is
lost.
"""

import re

_CLOSING = r"[\"'”’»)\]]*"
_END = re.compile(rf"\n\n|[.!?…]{_CLOSING}\s+(?=[^a-z\s])|[。！？।॥]{_CLOSING}\s*(?=\S)")
_ABBREVIATIONS = frozenset(
    {
        *("e.g", "i.e", "cf", "vs", "etc", "al", "no", "vol", "pp", "ed", "eds", "ch", "fig"),
        *("figs", "eq", "eqs", "sec", "ref", "refs", "dr", "mr", "mrs", "ms", "prof", "st"),
    }
)


def sentence_starts(text: str) -> list[int]:
    """Offsets, in characters, at which the sentences of a normalised text start; the first is 0.

    The sentences partition the text: each reaches to the start of the next.
    """
    ends = (m.end() for m in _END.finditer(text) if not _abbreviates(text, m.start()))
    return [0, *(end for end in ends if end < len(text))]


def _abbreviates(text: str, place: int) -> bool:
    """Whether the character there is a full stop after an abbreviation or an initial."""
    if text[place] != ".":
        return False
    word = text[max(0, place - 6) : place].split(" ")[-1].lstrip("(['\"")
    return word.lower() in _ABBREVIATIONS or (len(word) == 1 and word.isalpha())
