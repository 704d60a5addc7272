"""BERT-base as published: 110M parameters, masked tokens and next sentences, for accelerators.

    mlmjax train bert_base --data.root 'corpus/*.txt' --data.tokenizer.path vocab.txt

Source: Devlin et al. 2019, section 3 and appendix A.2: 256 sequences, 1M steps, learning rate 1e-4 warmed up over
10,000 steps and decayed linearly, decay 0.01, dropout 0.1. The paper trains nine tenths of the steps at length
128 (`--data.length 128 --run.steps 900000`) and the rest at 512. Corpus: some 3.3 billion words, one document a
block of lines. Cost: the paper's run took four days on 16 TPU chips. Not trained here; it is traced by shapes, and
its step is timed in benchmarks/.

    mlmjax plan bert_base --topology v5e:16x16

fits 256 chips in 2.98 of 15.75 GiB each. A step takes at least 9.7 ms, bound by memory traffic, and the run 2.7
hours; at most 16% of the chips' peak.
"""

from mlmjax.data.text import TextData
from mlmjax.data.tokenizer import TokenizerConfig
from mlmjax.experiment import Experiment, RunConfig
from mlmjax.models.bert import BertConfig
from mlmjax.objectives.mlm import MaskedLanguageModel
from mlmjax.optim import AdamW, WarmupSchedule

experiment = Experiment(
    model=BertConfig.base(vocabulary=None, vocabulary_multiple=128, dtype="bfloat16"),
    objective=MaskedLanguageModel(next_sentence=True),
    data=TextData(
        length=512,
        batch=256,
        layout="pairs",
        tokenizer=TokenizerConfig(vocabulary=30522),
        threads=16,
    ),
    optimizer=AdamW(learning_rate=WarmupSchedule(peak=1e-4, warmup=0.01), weight_decay=0.01),
    run=RunConfig(
        steps=1_000_000,
        log_every=100,
        checkpoint_every=5000,
        evaluate_every=50_000,
        keep_every=100_000,
    ),
)
