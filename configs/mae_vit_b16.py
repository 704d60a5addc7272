"""MAE with ViT-B/16 as published: 75% of the patches masked, normalised pixels, for accelerators.

    mlmjax train mae_vit_b16 --data.root imagenet

Source: He et al. 2022, section 4 and appendix A.1, table 8: AdamW with betas 0.9 and 0.95, decay 0.05, no clipping,
batches of 4096, base learning rate 1.5e-4 (times batch/256: 2.4e-3) warmed up over 40 epochs and decayed by a
cosine, crops of 0.2 to 1 of the area, flips; 800 epochs, which are 250,000 steps of ImageNet's 1.28 million images
(the paper's best figures take 1600). The folder holds `train` and `val`, a folder in them for each class; `val` is
held out. Cost, for accelerators: the paper trains ViT-L for 1600 epochs in 31 hours on 128 TPU-v3 cores. Where a
batch does not fit, `--run.accumulate 8` gives the same gradient. Not trained here; it is traced by shapes, and its
step is timed in benchmarks/.

    mlmjax plan mae_vit_b16 --topology v5e:16x16

fits 256 chips in 3.07 of 15.75 GiB each. A step takes at least 11.8 ms, bound by memory traffic, and the run
0.8 hours; at most 40% of the chips' peak.
"""

from mlmjax.data.images import ImageData
from mlmjax.experiment import Experiment, RunConfig
from mlmjax.models.mae import DecoderConfig, MaeConfig
from mlmjax.models.vit import VitConfig
from mlmjax.objectives.mae import MaskedAutoencoder
from mlmjax.optim import AdamW, WarmupSchedule
from mlmjax.targets import PixelScale

IMAGENET = PixelScale(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))

experiment = Experiment(
    model=MaeConfig(
        encoder=VitConfig.b16(input=IMAGENET, dtype="bfloat16"),
        decoder=DecoderConfig(dtype="bfloat16"),
    ),
    objective=MaskedAutoencoder(),
    data=ImageData(batch=4096, crop=(0.2, 1.0), flip=True, mixed="convert", threads=64),
    optimizer=AdamW(
        learning_rate=WarmupSchedule(peak=2.4e-3, warmup=12_500, decay="cosine"),
        betas=(0.9, 0.95),
        epsilon=1e-8,
        weight_decay=0.05,
        clip=None,
    ),
    run=RunConfig(
        steps=250_000,
        log_every=100,
        checkpoint_every=2000,
        evaluate_every=12_500,
        keep_every=25_000,
    ),
)
