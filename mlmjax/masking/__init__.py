"""The mask distribution q(M given x): which positions are predicted.

Configs choose (:class:`TokenSelection`, :class:`WordSelection`, :class:`SpanSelection`); underneath
lie pure functions of one example (:func:`select_tokens`, ...), to be mapped over a batch with one
key each. Shapes are static, and the same key gives the same mask under any transformation and on
any devices.
"""

from mlmjax.masking.base import Count, Ratio, Selection, eligible_tokens
from mlmjax.masking.schedule import CosineRatio, LinearRatio, RatioSchedule
from mlmjax.masking.spans import SpanLayout, SpanSelection, select_spans, span_layout, span_lengths
from mlmjax.masking.tokens import TokenSelection, select_tokens
from mlmjax.masking.words import WordSelection, select_words

__all__ = [
    "CosineRatio",
    "Count",
    "LinearRatio",
    "Ratio",
    "RatioSchedule",
    "Selection",
    "SpanLayout",
    "SpanSelection",
    "TokenSelection",
    "WordSelection",
    "eligible_tokens",
    "select_spans",
    "select_tokens",
    "select_words",
    "span_layout",
    "span_lengths",
]
