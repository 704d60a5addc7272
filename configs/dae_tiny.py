"""Denoising autoencoder, tiny: digits of which three quarters are drowned in noise, brought back by the encoder.

    mlmjax train dae_tiny

Source: Vincent et al. 2010, section 3: Gaussian noise on a part of the input, and all of it is predicted. It is the
objective of mae_tiny with another corruption: the encoder sees all patches, masked ones with noise, and one linear
layer predicts pixels from its states. Data, steps and optimizer are those of mae_tiny.

Cost: three minutes on two cores. Result: a squared error of held-out pixels under noise of 0.027, where patches of
one colour give 0.181; a linear probe tells 95.9% of the held-out digits, k-NN 94.5% (of a random encoder 91.8% and
59.2%).
"""

from mlmjax.corruption import PatchCorruption
from mlmjax.experiment import load_experiment
from mlmjax.models.mae import MaeConfig
from mlmjax.objectives.mae import MaskedAutoencoder

_mae = load_experiment("mae_tiny")
_model, _objective = _mae.model, _mae.objective
assert isinstance(_model, MaeConfig)
assert isinstance(_objective, MaskedAutoencoder)

experiment = _mae.updated(
    model=_model.updated(decoder=None),
    objective=_objective.updated(corruption=PatchCorruption(kind="noise", noise=0.5), over="all"),
)
