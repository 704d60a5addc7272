"""RoBERTa, tiny: bert_tiny's sibling with byte-level BPE, which keeps capitals and signs as they are.

    mlmjax train roberta_tiny

Cost: four minutes on two CPU cores, preparation included. Result: 22.4% of held-out masked tokens, where the most
frequent token gives 3.7%. Like roberta_base it reads full rows, draws masks anew every epoch
and predicts no next sentence. What lets it learn in few steps is bert_tiny's: pre-norm, no dropout, initial values
of a size that suits the width, positions that begin as sinusoids, and a share of hidden tokens that falls from 30%
to 15%.
"""

from mlmjax.data.text import TextData
from mlmjax.data.tokenizer import TokenizerConfig
from mlmjax.experiment import Experiment, RunConfig
from mlmjax.masking import LinearRatio
from mlmjax.models.bert import BertConfig
from mlmjax.objectives.mlm import MaskedLanguageModel
from mlmjax.optim import AdamW, WarmupSchedule

experiment = Experiment(
    model=BertConfig(
        layers=2,
        hidden=192,
        heads=4,
        mlp=768,
        positions=64,
        segments=1,
        norm="pre",
        epsilon=1e-5,
        initial_std=0.07,
        initial_positions="sinusoidal",
        dropout=0.0,
        attention_dropout=0.0,
    ),
    objective=MaskedLanguageModel(ratio_schedule=LinearRatio(start=0.3, steps=900)),
    data=TextData(
        length=64,
        batch=32,
        tokenizer=TokenizerConfig(model="byte_bpe", vocabulary=2048),
        examples=(
            "The input array must [MASK] one dimension.",
            "The elements of [MASK] array are sorted.",
            "This function returns the number of elements [MASK] the array.",
        ),
    ),
    optimizer=AdamW(learning_rate=WarmupSchedule(peak=3e-3, warmup=0.1), betas=(0.9, 0.98)),
    run=RunConfig(steps=900, log_every=50, checkpoint_every=450),
)
