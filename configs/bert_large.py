"""BERT-large as published: 340M parameters, masked tokens and next sentences, for accelerators.

    mlmjax train bert_large --data.root 'corpus/*.txt' --data.tokenizer.path vocab.txt

Source: Devlin et al. 2019, section 3 and appendix A.2; recipe and corpus are those of bert_base.
Cost: the paper's run took four days on 64 TPU chips. Not trained here; it is traced by shapes, and
its compile time is measured in benchmarks/.

    mlmjax plan bert_large --topology v5e:16x16

fits 256 chips in 10.60 of 15.75 GiB each. A step takes at least 29 ms, bound by memory traffic, and the run 8.1
hours; at most 18% of the chips' peak.
"""

from mlmjax.experiment import load_experiment
from mlmjax.models.bert import BertConfig

experiment = load_experiment("bert_base").updated(
    model=BertConfig.large(vocabulary=None, vocabulary_multiple=128, dtype="bfloat16")
)
