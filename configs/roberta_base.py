"""RoBERTa-base as published: 125M parameters, full rows of byte-level BPE, masks drawn anew every epoch.

    mlmjax train roberta_base --data.root 'corpus/*.txt' --data.tokenizer.path tokenizer.json

Source: Liu et al. 2019, sections 2.5, 4 and 5, and table 9: FULL-SENTENCES of 512 tokens that run on over the end
of a document, 8K sequences, 500K steps, learning rate 6e-4 warmed up over 24,000 steps and decayed linearly, betas
0.9 and 0.98, epsilon 1e-6, decay 0.01, dropout 0.1, no clipping. With `--data.layout packed` documents do not see
each other. Corpus: 160 GB of text. Cost, for accelerators: the paper's large model took a day on 1024 V100 GPUs
for 100K steps. Not trained here; it is traced by shapes.

    mlmjax plan roberta_base --topology v5e:16x16 --run.accumulate 1

fits 256 chips in 7.78 of 15.75 GiB each. A step takes at least 107 ms, bound by memory traffic, and the run
14.9 hours; at most 47% of the chips' peak.
"""

from mlmjax.data.text import TextData
from mlmjax.data.tokenizer import TokenizerConfig
from mlmjax.experiment import Experiment, RunConfig
from mlmjax.models.bert import BertConfig
from mlmjax.objectives.mlm import MaskedLanguageModel
from mlmjax.optim import AdamW, WarmupSchedule

experiment = Experiment(
    model=BertConfig.roberta_base(vocabulary=None, vocabulary_multiple=128, dtype="bfloat16"),
    objective=MaskedLanguageModel(),
    data=TextData(
        length=512,
        batch=8192,
        tokenizer=TokenizerConfig(model="byte_bpe", vocabulary=50265),
        threads=16,
    ),
    optimizer=AdamW(
        learning_rate=WarmupSchedule(peak=6e-4, warmup=24_000),
        betas=(0.9, 0.98),
        epsilon=1e-6,
        weight_decay=0.01,
        clip=None,
    ),
    run=RunConfig(
        steps=500_000,
        accumulate=16,
        log_every=100,
        checkpoint_every=2000,
        evaluate_every=20_000,
        keep_every=50_000,
    ),
)
