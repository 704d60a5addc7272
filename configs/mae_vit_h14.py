"""MAE with ViT-H/14 as published: 75% of the patches masked, normalised pixels, for accelerators.

    mlmjax train mae_vit_h14 --data.root imagenet

Source: He et al. 2022, section 4 and appendix A.1; recipe and data are those of mae_vit_b16. Result, in the paper
(table 3): after 1600 epochs (`--run.steps 500000`) 86.9% of ImageNet's validation images with fine-tuning. Cost,
for accelerators: about twice that of mae_vit_l16, which took 31 hours on 128 TPU-v3 cores. Not trained here; it is
traced by shapes.

    mlmjax plan mae_vit_h14 --topology v5e:16x16 --mesh.fsdp 16

fits 256 chips in 2.21 of 15.75 GiB each. A step takes at least 24 ms, bound by computing, and the run 1.6
hours; at most 99% of the chips' peak.
"""

from mlmjax.experiment import load_experiment
from mlmjax.models.mae import MaeConfig
from mlmjax.models.vit import VitConfig

_base = load_experiment("mae_vit_b16")
_small = _base.model
assert isinstance(_small, MaeConfig)

experiment = _base.updated(
    model=_small.updated(encoder=VitConfig.h14(input=_small.encoder.input, dtype="bfloat16"))
)
