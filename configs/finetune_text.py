"""Text classification, tiny: a small BERT is trained whole to tell from which package a docstring comes.

    mlmjax train finetune_text
    mlmjax train finetune_text --init runs/bert_tiny
    mlmjax train finetune_text --data.root reviews.jsonl --data.field review --data.label-field stars
    mlmjax train finetune_text --seeds 5

Cost: two minutes on two CPU cores, preparation included. Result: 79.7% of the docstrings of held-out modules from
random parameters, 81.5% from a run of bert_tiny; the most frequent package, the standard library, gives 40.9%. The
encoder has the sizes of bert_tiny. Batch and dropout are those of BERT's fine-tuning (Devlin et al. 2019, appendix
A.3), and the learning rate is ten times higher, as suits an encoder of this size; for one of BERT's size take
--optimizer.learning-rate.peak 5e-5, and try --optimizer.layer-decay 0.8.
"""

from mlmjax.data.text import TextData
from mlmjax.data.tokenizer import TokenizerConfig
from mlmjax.experiment import Experiment, RunConfig
from mlmjax.models.classifier import BertClassifierConfig
from mlmjax.objectives.classification import Classification
from mlmjax.optim import AdamW, WarmupSchedule

experiment = Experiment(
    model=BertClassifierConfig(
        layers=2,
        hidden=192,
        heads=4,
        mlp=768,
        positions=64,
        norm="pre",
        initial_std=0.07,
        initial_positions="sinusoidal",
        dropout=0.1,
        attention_dropout=0.0,
    ),
    objective=Classification(),
    data=TextData(
        layout="documents",
        label_field="label",
        length=64,
        batch=32,
        heldout=0.1,
        tokenizer=TokenizerConfig(vocabulary=2048),
    ),
    optimizer=AdamW(learning_rate=WarmupSchedule(peak=5e-4, warmup=0.1)),
    run=RunConfig(steps=500, log_every=50, checkpoint_every=250),
)
