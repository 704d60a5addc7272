"""MAE with ViT-L/16 as published: 75% of the patches masked, normalised pixels, for accelerators.

    mlmjax train mae_vit_l16 --data.root imagenet

Source: He et al. 2022, section 4 and appendix A.1; recipe and data are those of mae_vit_b16. Result, in the paper
(table 1d): after 800 epochs 85.4% of ImageNet's validation images with fine-tuning, 73.9% with a linear probe.
Cost: the paper's 1600 epochs took 31 hours on 128 TPU-v3 cores. Not trained here; it is traced by shapes, and its
step is timed in benchmarks/.

    mlmjax plan mae_vit_l16 --topology v5e:16x16

fits 256 chips in 9.88 of 15.75 GiB each. A step takes at least 29 ms, bound by memory traffic, and the run 2.0
hours; at most 34% of the chips' peak.
"""

from mlmjax.experiment import load_experiment
from mlmjax.models.mae import MaeConfig
from mlmjax.models.vit import VitConfig

_base = load_experiment("mae_vit_b16")
_small = _base.model
assert isinstance(_small, MaeConfig)

experiment = _base.updated(
    model=_small.updated(encoder=VitConfig.l16(input=_small.encoder.input, dtype="bfloat16"))
)
