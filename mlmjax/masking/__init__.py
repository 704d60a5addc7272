"""The mask distribution q(M given x): which positions are predicted.

Configs choose (:class:`TokenSelection`, :class:`WordSelection`, :class:`SpanSelection`, ...);
underneath lie pure functions of one example (:func:`select_tokens`, ...), to be mapped over a batch
with one key each. Shapes are static, and the same key gives the same mask under any transformation
and on any devices.
"""

from mlmjax.masking.balanced import BalancedSelection, select_balanced
from mlmjax.masking.base import Count, Ratio, Row, Selection, Step, eligible_tokens
from mlmjax.masking.hierarchical import HierarchicalSelection, select_hierarchical
from mlmjax.masking.ngrams import NGramSelection, harmonic, select_ngrams
from mlmjax.masking.patch_blocks import BlockPatches, select_patch_blocks
from mlmjax.masking.patches import (
    Grid,
    GridPatches,
    PatchSelection,
    RandomPatches,
    complement,
    patch_count,
    select_patch_grid,
    select_patches,
)
from mlmjax.masking.rare import RareTokenSelection, select_rare_tokens
from mlmjax.masking.schedule import CosineRatio, LinearRatio, RatioSchedule, StagedRatio
from mlmjax.masking.spans import (
    Law,
    SpanLaw,
    SpanLayout,
    SpanSelection,
    geometric,
    select_spans,
    span_layout,
    span_lengths,
    span_numbers,
)
from mlmjax.masking.tokens import TokenSelection, select_tokens
from mlmjax.masking.units import word_numbers
from mlmjax.masking.words import WordSelection, select_words

__all__ = [
    "BalancedSelection",
    "BlockPatches",
    "CosineRatio",
    "Count",
    "Grid",
    "GridPatches",
    "HierarchicalSelection",
    "Law",
    "LinearRatio",
    "NGramSelection",
    "PatchSelection",
    "RandomPatches",
    "RareTokenSelection",
    "Ratio",
    "RatioSchedule",
    "Row",
    "Selection",
    "SpanLaw",
    "SpanLayout",
    "SpanSelection",
    "StagedRatio",
    "Step",
    "TokenSelection",
    "WordSelection",
    "complement",
    "eligible_tokens",
    "geometric",
    "harmonic",
    "patch_count",
    "select_balanced",
    "select_hierarchical",
    "select_ngrams",
    "select_patch_blocks",
    "select_patch_grid",
    "select_patches",
    "select_rare_tokens",
    "select_spans",
    "select_tokens",
    "select_words",
    "span_layout",
    "span_lengths",
    "span_numbers",
    "word_numbers",
]
