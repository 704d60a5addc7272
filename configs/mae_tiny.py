"""Masked autoencoder, tiny: the handwritten digits that scikit-learn carries, 8 by 8 pixels, three quarters hidden.

    mlmjax train mae_tiny

Cost: two and a half minutes on two cores. Result: a squared error of held-out masked pixels of 0.041, where patches
of one colour give 0.181. Of the 365 held-out digits a linear probe tells 93.4% (of a random encoder 91.8%, of raw
pixels 96.2%), and k-NN 93.7% (59.2%, 98.1%): the pixels of digits this small tell nearly all themselves. Sizes and
steps were chosen with these figures in sight. The recipe is MAE's (He et al. 2022, appendix A.1) for a small model
and few steps, with pixels that are not normalised, since a patch has four.
"""

from mlmjax.data.images import ImageData
from mlmjax.experiment import Experiment, RunConfig
from mlmjax.masking import RandomPatches
from mlmjax.models.mae import DecoderConfig, MaeConfig
from mlmjax.models.vit import VitConfig
from mlmjax.objectives.mae import MaskedAutoencoder
from mlmjax.optim import AdamW, WarmupSchedule
from mlmjax.targets import PixelTarget

experiment = Experiment(
    model=MaeConfig(
        encoder=VitConfig(
            image=(8, 8),
            patch=(2, 2),
            channels=1,
            layers=4,
            hidden=64,
            heads=4,
            mlp=256,
            remat="none",
        ),
        decoder=DecoderConfig(layers=2, hidden=48, heads=4, mlp=96, remat="none"),
    ),
    objective=MaskedAutoencoder(
        selection=RandomPatches(ratio=0.75), target=PixelTarget(normalise=False)
    ),
    data=ImageData(size=(8, 8), channels=1, batch=128, heldout=0.2),
    optimizer=AdamW(
        learning_rate=WarmupSchedule(peak=3e-3, warmup=0.1, decay="cosine"),
        betas=(0.9, 0.95),
        weight_decay=0.05,
    ),
    run=RunConfig(steps=2000, log_every=100, evaluate_every=1000, checkpoint_every=1000),
)
