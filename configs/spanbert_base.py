"""SpanBERT as published, at the size of BERT-base: whole-word spans, predicted from their boundaries as well.

    mlmjax train spanbert_base --data.root 'corpus/*.txt' --data.tokenizer.path vocab.txt

Source: Joshi et al. 2020, sections 3 and 4.2: 15% of the tokens, in spans of geometric length (p = 0.2) of at most
ten words, one replacement a span; the span boundary objective, 200 numbers a place; single sequences that end
where a document ends, no next sentences; 256 rows of 512 tokens, 2.4M steps, learning rate 1e-4 warmed up over
10,000 steps and decayed linearly, epsilon 1e-8, decay 0.1 (0.01 in its published command), dropout 0.1. That
command predicts the first 15 tokens of a run from its boundaries; here all, those after the 15th place with its
embedding. Rows are packed, so that short documents fill them and do not see each other. Corpus: BERT's, cased,
some 3.3 billion words. Cost, for accelerators: the paper's large model took 15 days on 32 V100 GPUs. Not trained
here; it is traced by shapes.
"""

from mlmjax.corruption import TokenCorruption
from mlmjax.data.text import TextData
from mlmjax.data.tokenizer import TokenizerConfig
from mlmjax.experiment import Experiment, RunConfig
from mlmjax.masking import SpanSelection
from mlmjax.models.bert import BertConfig
from mlmjax.objectives.mlm import MaskedLanguageModel
from mlmjax.optim import AdamW, WarmupSchedule

experiment = Experiment(
    model=BertConfig.base(
        vocabulary=None,
        vocabulary_multiple=128,
        segments=1,
        span_boundary=15,
        dtype="bfloat16",
    ),
    objective=MaskedLanguageModel(
        selection=SpanSelection(p=0.2, longest=10, unit="words"),
        corruption=TokenCorruption(unit="span"),
        span_boundary=True,
    ),
    data=TextData(
        length=512,
        batch=256,
        layout="packed",
        tokenizer=TokenizerConfig(vocabulary=28996, lowercase=False),
        threads=16,
    ),
    optimizer=AdamW(
        learning_rate=WarmupSchedule(peak=1e-4, warmup=10_000), epsilon=1e-8, weight_decay=0.1
    ),
    run=RunConfig(
        steps=2_400_000,
        log_every=100,
        checkpoint_every=5000,
        evaluate_every=50_000,
        keep_every=100_000,
    ),
)
