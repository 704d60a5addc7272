"""Freeze files of torch.save in the layout of MAE's own code, and what that code's forward computes with one.

pip install torch==2.13.0 numpy && python tests/golden/make_mae_pth.py

The forward is written here after He et al. 2022, section 3, and the published models_mae.py (with timm's
attention), in double precision, so that it shares nothing with the package or with transformers.
"""

import argparse
import io
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

SIDE, PATCH, CHANNELS = 3, 2, 3
ENCODER = {"layers": 2, "hidden": 12, "heads": 3, "mlp": 20}
DECODER = {"layers": 1, "hidden": 8, "heads": 2, "mlp": 10}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SHOWN = 3

State = OrderedDict[str, torch.Tensor]


def positions(width: int) -> torch.Tensor:
    """The sines and cosines of models_mae.py: half of the width for the column, half for the row."""
    omega = 1 / 10000 ** (np.arange(width // 4, dtype=np.float64) / (width / 4))
    across, down = np.meshgrid(np.arange(SIDE), np.arange(SIDE))
    halves = []
    for place in (across, down):
        angle = place.reshape(-1)[:, None] * omega
        halves += [np.sin(angle), np.cos(angle)]
    grid = np.concatenate(halves, axis=1)
    return torch.from_numpy(np.concatenate([np.zeros((1, width)), grid]))[None].float()


def linear(outputs: int, inputs: int) -> dict[str, torch.Tensor]:
    return {
        "weight": torch.randn(outputs, inputs) * inputs**-0.5,
        "bias": 0.2 * torch.randn(outputs),
    }


def norm(width: int) -> dict[str, torch.Tensor]:
    return {"weight": 1 + 0.2 * torch.randn(width), "bias": 0.2 * torch.randn(width)}


def drawn() -> State:
    """Random weights under the names of models_mae.py, in its order."""
    width, narrow, size = ENCODER["hidden"], DECODER["hidden"], PATCH**2 * CHANNELS
    state: State = OrderedDict()
    state["cls_token"] = torch.randn(1, 1, width)
    state["pos_embed"] = positions(width)
    state["mask_token"] = torch.randn(1, 1, narrow)
    state["decoder_pos_embed"] = positions(narrow)

    def put(name: str, values: dict[str, torch.Tensor]) -> None:
        state.update({f"{name}.{kind}": value for kind, value in values.items()})

    projection = linear(width, size)
    put(
        "patch_embed.proj",
        projection | {"weight": projection["weight"].reshape(width, CHANNELS, PATCH, PATCH)},
    )
    for name, given in (("blocks", ENCODER), ("decoder_blocks", DECODER)):
        hidden, mlp = given["hidden"], given["mlp"]
        for layer in range(given["layers"]):
            block = f"{name}.{layer}"
            put(f"{block}.norm1", norm(hidden))
            put(f"{block}.attn.qkv", linear(3 * hidden, hidden))
            put(f"{block}.attn.proj", linear(hidden, hidden))
            put(f"{block}.norm2", norm(hidden))
            put(f"{block}.mlp.fc1", linear(mlp, hidden))
            put(f"{block}.mlp.fc2", linear(hidden, mlp))
        if name == "blocks":
            put("norm", norm(hidden))
            put("decoder_embed", linear(narrow, width))
    put("decoder_norm", norm(narrow))
    put("decoder_pred", linear(size, narrow))
    return state


def affine(state: State, name: str, x: torch.Tensor) -> torch.Tensor:
    return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def normed(state: State, name: str, x: torch.Tensor) -> torch.Tensor:
    weight, bias = state[f"{name}.weight"], state[f"{name}.bias"]
    return functional.layer_norm(x, weight.shape, weight, bias, eps=1e-6)


def block(state: State, name: str, x: torch.Tensor, heads: int) -> torch.Tensor:
    """timm's Block: attention and a feed-forward layer, each after a norm."""
    rows, length, width = x.shape
    y = affine(state, f"{name}.attn.qkv", normed(state, f"{name}.norm1", x))
    q, k, v = y.reshape(rows, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    scores = (q @ k.transpose(-2, -1)) * (width // heads) ** -0.5
    y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(rows, length, width)
    x = x + affine(state, f"{name}.attn.proj", y)
    y = functional.gelu(affine(state, f"{name}.mlp.fc1", normed(state, f"{name}.norm2", x)))
    return x + affine(state, f"{name}.mlp.fc2", y)


def forward(state: State, images: torch.Tensor, shown: torch.Tensor) -> dict[str, torch.Tensor]:
    """MaskedAutoencoderViT.forward with the patches that the encoder is shown.

    Args:
        state: weights.
        images: scaled, with the channels first.
        shown: ids of the patches, row by row.
    """
    rows, count = len(images), SIDE**2
    x = functional.conv2d(
        images, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"], stride=PATCH
    )
    x = x.flatten(2).transpose(1, 2) + state["pos_embed"][:, 1:]
    at = shown[..., None].expand(-1, -1, x.shape[-1])
    first = state["cls_token"] + state["pos_embed"][:, :1]
    x = torch.cat([first.expand(rows, -1, -1), x.gather(1, at)], dim=1)
    hidden = [x]
    for layer in range(ENCODER["layers"]):
        x = block(state, f"blocks.{layer}", x, ENCODER["heads"])
        hidden.append(x)
    latent = normed(state, "norm", x)

    x = affine(state, "decoder_embed", latent)
    whole = state["mask_token"].repeat(rows, count, 1)
    whole = whole.scatter(1, shown[..., None].expand(-1, -1, x.shape[-1]), x[:, 1:])
    x = torch.cat([x[:, :1], whole], dim=1) + state["decoder_pos_embed"]
    for layer in range(DECODER["layers"]):
        x = block(state, f"decoder_blocks.{layer}", x, DECODER["heads"])
    predicted = affine(state, "decoder_pred", normed(state, "decoder_norm", x))[:, 1:]

    cut = images.reshape(rows, CHANNELS, SIDE, PATCH, SIDE, PATCH)
    target = torch.einsum("nchpwq->nhwpqc", cut).reshape(rows, count, -1)
    mean, var = target.mean(-1, keepdim=True), target.var(-1, keepdim=True)
    target = (target - mean) / (var + 1e-6) ** 0.5
    masked = torch.ones(rows, count, dtype=images.dtype).scatter(1, shown, 0.0)
    loss = (((predicted - target) ** 2).mean(-1) * masked).sum() / masked.sum()
    return {
        "hidden_states": torch.stack(hidden),
        "latent": latent,
        "predicted": predicted,
        "loss": loss,
    }


def views(state: State) -> State:
    """The same values in other storages: transposed, cut from a larger one, shared, and as a parameter."""
    out = OrderedDict(state)
    name = "decoder_pred.weight"
    out[name] = state[name].T.contiguous().T
    name = "norm.weight"
    out[name] = torch.cat([torch.full((5,), torch.nan), state[name]])[5:]
    both = torch.stack([state["norm.bias"], state["blocks.0.norm1.bias"]], dim=1)
    out["norm.bias"], out["blocks.0.norm1.bias"] = both[:, 0], both[:, 1]
    out["cls_token"] = torch.nn.Parameter(state["cls_token"])
    return out


def saved(value: Any, **options: Any) -> np.ndarray:
    """What torch.save writes, as bytes."""
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return np.frombuffer(buffer.getvalue(), np.uint8)


class Call:
    """A value whose pickle calls a function."""

    def __init__(self, function: Any, *args: Any):
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


def evil(value: Any) -> np.ndarray:
    """A file like those of torch.save, with a pickle of torch.save's and another value beside the weights."""
    return saved({"model": {"cls_token": torch.zeros(1, 1, 4)}, "more": value})


def main() -> None:
    """Write mae_pth.npz beside this file: the files, a row of bytes each, and what the first computes."""
    torch.manual_seed(0)
    state = drawn()
    args = argparse.Namespace(norm_pix_loss=False, mask_ratio=0.5, model="mae_vit_tiny", gpu=None)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(state["norm.bias"].clone())], lr=0.1)
    optimizer.param_groups[0]["params"][0].sum().backward()
    optimizer.step()
    training = {
        "model": views(state),
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
        "scaler": {"scale": 65536.0, "growth_factor": 2.0, "_growth_tracker": 0},
        "args": args,
    }
    encoder = OrderedDict(
        (name, value) for name, value in state.items() if not name.startswith(("decoder", "mask"))
    )
    files = {
        "whole": saved({"model": state}),
        "training": saved(training),
        "encoder": saved(encoder),
        "half": saved({"model": {k: v.half() for k, v in state.items()}}),
        "bfloat16": saved({"model": {k: v.bfloat16() for k, v in state.items()}}),
        "types": saved(
            {
                "int64": torch.arange(6)[1::2],
                "bfloat16": torch.arange(6).bfloat16().reshape(2, 3).T,
                "expanded": torch.full((1,), 2.5).expand(2, 2),
                "scalar": torch.tensor(7.0, dtype=torch.float64),
                "empty": torch.zeros(0, 3),
                "bool": torch.tensor([True, False]),
            }
        ),
        "legacy": saved({"model": {}}, _use_new_zipfile_serialization=False),
        "evil_system": evil(Call(os.system, "touch ran")),
        "evil_nested": evil([{"a": (1, OrderedDict(b=Call(eval, "open('ran', 'w')")))}]),
        "evil_protocol_4": saved({"model": Call(eval, "open('ran', 'w')")}, pickle_protocol=4),
    }
    generator = torch.Generator().manual_seed(1)
    side = SIDE * PATCH
    pixels = torch.randint(0, 256, (2, side, side, CHANNELS), generator=generator)
    shown = torch.rand(2, SIDE**2, generator=generator).argsort(dim=1)[:, :SHOWN].sort().values
    mean, std = (torch.tensor(each, dtype=torch.float64) for each in (MEAN, STD))
    images = ((pixels / 255.0 - mean) / std).permute(0, 3, 1, 2)
    found = forward(OrderedDict((k, v.double()) for k, v in state.items()), images, shown)
    masked = [sorted(set(range(SIDE**2)) - set(row)) for row in shown.tolist()]
    np.savez_compressed(
        Path(__file__).with_name("mae_pth.npz"),
        pixels=pixels.numpy().astype(np.uint8),
        visible=shown.numpy().astype(np.int32),
        masked=np.array(masked, np.int32),
        **{name: value.numpy() for name, value in found.items()},
        **{f"file/{name}": value for name, value in files.items()},
    )


if __name__ == "__main__":
    main()
