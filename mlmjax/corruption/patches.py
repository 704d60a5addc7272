"""Patches made unknown: hidden, drowned in noise, or swapped (Vincent et al. 2010, section 3; Xie et al. 2022)."""

from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key
from pydantic import Field, FiniteFloat

from mlmjax.core.config import Config
from mlmjax.core.types import Mask
from mlmjax.corruption.draws import bits_at

PatchKind = Literal["drop", "vector", "zero", "noise", "swap"]
"""What the encoder sees in place of a masked patch:

- ``drop``: nothing, it gets the visible patches alone (MAE, He et al. 2022, section 3);
- ``vector``: a learned vector in place of its embedding (SimMIM, Xie et al. 2022, section 3.2);
- ``zero``: a patch of zeros, embedded as any other (masking noise, Vincent et al. 2010, section 3.3);
- ``noise``: the patch and Gaussian noise (Vincent et al. 2010, section 3.3);
- ``swap``: another of the masked patches of the image.
"""


class PatchCorruption(Config):
    """What the encoder sees at masked patches; the same for all of them."""

    kind: PatchKind = "drop"
    """``drop``: nothing. ``vector``: a learned vector. ``zero``: zeros. ``noise``: the patch and Gaussian noise.
    ``swap``: another masked patch of the image."""
    noise: Annotated[FiniteFloat, Field(gt=0)] = 1.0
    """Standard deviation of the noise, in units of the scaled input."""

    def __call__(
        self, key: Key[Array, ""], patches: Float[Array, "patches size"], mask: Mask
    ) -> Float[Array, "patches size"]:
        """What the encoder sees of one example (:func:`corrupt_patches`)."""
        return corrupt_patches(key, patches, mask, kind=self.kind, noise=self.noise)


def corrupt_patches(
    key: Key[Array, ""],
    patches: Float[Array, "patches size"],
    mask: Mask,
    *,
    kind: PatchKind,
    noise: float | Float[Array, ""] = 1.0,
) -> Float[Array, "patches size"]:
    """Replace the masked patches of one example; all others stay as they are, bit for bit.

    Where the encoder is not to see a masked patch at all (``drop``, ``vector``) it comes out as zeros too, so that
    nothing of it is left to leak. What is drawn for a patch depends on the key and its position, not on the mask's
    capacity.

    Args:
        key: the example's own.
        patches: scaled.
        mask: the masked ones; places of weight 0 change nothing.
        kind: what is seen in their place. In a ``swap`` the masked patches go round in a random cycle: each shows
            the content of another, if there are two.
        noise: standard deviation, in units of the patches.
    """
    # Unused places hold position 0, which is not theirs: they write beyond the patches instead.
    places = jnp.where(mask.weight > 0, mask.positions, len(patches))
    if kind == "noise":
        drawn = jax.random.normal(key, patches.shape, patches.dtype)
        masked = jnp.zeros(len(patches), bool).at[places].set(True, mode="drop")
        return jnp.where(masked[:, None], patches + noise * drawn, patches)
    if kind == "swap":
        seen = patches[mask.positions[_next_in_cycle(key, mask)]]
        return patches.at[places].set(seen, mode="drop")
    return patches.at[places].set(0, mode="drop")


def _next_in_cycle(key: Key[Array, ""], mask: Mask) -> Int[Array, " capacity"]:
    """For each place of a mask, the one that follows in a random cycle of those that are used."""
    used = mask.weight > 0
    order = jnp.argsort(jnp.where(used, bits_at(key, mask.positions) >> 1, np.uint32(2**32 - 1)))
    following = jnp.where(jnp.arange(used.size) + 1 < used.sum(), jnp.roll(order, -1), order[0])
    return jnp.zeros_like(order).at[order].set(following)
