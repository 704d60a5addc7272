"""Freeze a small random masked autoencoder of transformers: its weights under our names, and all that it computes.

pip install torch==2.13.0 transformers numpy && python tests/golden/make_mae.py
"""

from pathlib import Path

import numpy as np
import torch
from transformers import ViTMAEConfig, ViTMAEForPreTraining

PATCH, CHANNELS = 3, 2
WIDTHS = {"encoder": (2, 16, 4), "decoder": (3, 8, 2)}
"""Layers, width and heads."""
PREFIXES = {"encoder": "vit.layers", "decoder": "decoder.decoder_layers"}


def blocks(theirs: dict[str, np.ndarray], part: str) -> dict[str, np.ndarray]:
    """The stacked blocks of a part of the model."""
    layers, hidden, heads = WIDTHS[part]
    size = hidden // heads

    def stacked(name: str) -> np.ndarray:
        return np.stack([theirs[f"{PREFIXES[part]}.{i}.{name}"] for i in range(layers)])

    def qkv(kind: str) -> np.ndarray:
        return np.stack([stacked(f"attention.{n}_proj.{kind}") for n in "qkv"], 1)

    out = {
        "attention/qkv/kernel": qkv("weight")
        .transpose(0, 3, 1, 2)
        .reshape(layers, hidden, 3, heads, size)
        .swapaxes(2, 3),
        "attention/qkv/bias": qkv("bias").reshape(layers, 3, heads, size).swapaxes(1, 2),
        "attention/out/kernel": stacked("attention.o_proj.weight")
        .transpose(0, 2, 1)
        .reshape(layers, heads, size, hidden),
        "attention/out/bias": stacked("attention.o_proj.bias"),
    }
    for ours, name in {"up": "mlp.fc1", "down": "mlp.fc2"}.items():
        out[f"{ours}/kernel"] = stacked(f"{name}.weight").transpose(0, 2, 1)
        out[f"{ours}/bias"] = stacked(f"{name}.bias")
    for ours, name in {
        "attention_norm": "layernorm_before",
        "mlp_norm": "layernorm_after",
    }.items():
        out[f"{ours}/scale"] = stacked(f"{name}.weight")
        out[f"{ours}/bias"] = stacked(f"{name}.bias")
    return {f"{part}/blocks/layers/{name}": value for name, value in out.items()}


def renamed(theirs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Parameters, or their gradients, under mlmjax's names and in its shapes."""
    out = blocks(theirs, "encoder") | blocks(theirs, "decoder")
    # A convolution's kernel is [hidden, channel, row, column]; our patches are (row, column, channel).
    projection = theirs["vit.embeddings.patch_embeddings.projection.weight"]
    out["encoder/embed/kernel"] = projection.transpose(2, 3, 1, 0).reshape(-1, len(projection))
    out["encoder/embed/bias"] = theirs["vit.embeddings.patch_embeddings.projection.bias"]
    out["encoder/class_token"] = theirs["vit.embeddings.cls_token"].reshape(-1)
    out["decoder/mask_token"] = theirs["decoder.mask_token"].reshape(-1)
    norms = {"encoder": "vit.layernorm", "decoder": "decoder.decoder_norm"}
    for ours, name in norms.items():
        out[f"{ours}/blocks/norm/scale"] = theirs[f"{name}.weight"]
        out[f"{ours}/blocks/norm/bias"] = theirs[f"{name}.bias"]
    dense = {"decoder/embed": "decoder.decoder_embed", "head": "decoder.decoder_pred"}
    for ours, name in dense.items():
        out[f"{ours}/kernel"] = theirs[f"{name}.weight"].T
        out[f"{ours}/bias"] = theirs[f"{name}.bias"]
    return out


def main() -> None:
    """Write mae.npz beside this file."""
    torch.manual_seed(0)
    layers, hidden, heads = WIDTHS["encoder"]
    decoder_layers, decoder_hidden, decoder_heads = WIDTHS["decoder"]
    config = ViTMAEConfig(
        image_size=4 * PATCH,
        patch_size=PATCH,
        num_channels=CHANNELS,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=24,
        decoder_hidden_size=decoder_hidden,
        decoder_num_hidden_layers=decoder_layers,
        decoder_num_attention_heads=decoder_heads,
        decoder_intermediate_size=12,
        layer_norm_eps=1e-6,
        attn_implementation="eager",
    )
    model = ViTMAEForPreTraining(config).eval()
    # A fresh model of this version has no positions yet: it takes its patches to be loaded, and clears the
    # decoder's.
    del model.vit.embeddings.patch_embeddings.projection._is_hf_initialized
    with torch.no_grad():
        model.vit.embeddings.initialize_weights()
        model.decoder.initialize_weights(16)
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with torch.no_grad():
        for parameter in learned:
            parameter.add_(0.2 * torch.randn_like(parameter))
    pixels = torch.randint(0, 256, (3, 4 * PATCH, 4 * PATCH, CHANNELS))
    images = (pixels / 255).permute(0, 3, 1, 2)
    noise = torch.rand(3, 16)

    def run(normalised: bool) -> tuple:
        model.config.norm_pix_loss = normalised
        model.zero_grad()
        found = model(images, noise=noise, output_hidden_states=True)
        found.loss.backward()
        gradient = {
            n: p.grad.numpy().copy() for n, p in model.named_parameters() if p.requires_grad
        }
        return found, renamed(gradient)

    plain, _ = run(normalised=False)
    found, gradient = run(normalised=True)
    # Their visible patches are in the order of the noise, ours in the order of the image.
    kept = torch.argsort(noise, dim=1)[:, :4].numpy()
    order = np.argsort(kept, axis=1)

    def in_order(states: torch.Tensor) -> np.ndarray:
        states = states.detach().numpy()
        patches = np.take_along_axis(states[:, 1:], order[..., None], axis=1)
        return np.concatenate([states[:, :1], patches], axis=1)

    weights = {name: value.detach().numpy() for name, value in model.named_parameters()}
    np.savez_compressed(
        Path(__file__).with_name("mae.npz"),
        pixels=pixels.numpy().astype(np.uint8),
        visible=np.sort(kept, axis=1).astype(np.int32),
        masked=np.argwhere(found.mask.numpy())[:, 1].reshape(3, -1).astype(np.int32),
        positions=weights["vit.embeddings.position_embeddings"][0, 1:],
        decoder_positions=weights["decoder.decoder_pos_embed"][0, 1:],
        hidden_states=np.stack([in_order(each) for each in found.hidden_states]),
        latent=in_order(model.vit(images, noise=noise).last_hidden_state),
        logits=found.logits.detach().numpy(),
        loss=plain.loss.item(),
        normalised_loss=found.loss.item(),
        **renamed(weights),
        **{f"gradient/{name}": value for name, value in gradient.items()},
    )


if __name__ == "__main__":
    main()
