"""Freeze a small random BERT of transformers: its weights under our names, and all that it computes.

pip install torch==2.13.0 transformers numpy && python tests/golden/make_bert.py
"""

from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertForPreTraining

LAYERS, HIDDEN, HEADS = 2, 16, 4


def weights(model: BertForPreTraining) -> dict[str, np.ndarray]:
    """The parameters under mlmjax's names and in its shapes."""
    theirs = {name: value.detach().numpy() for name, value in model.named_parameters()}

    def stacked(name: str) -> np.ndarray:
        return np.stack([theirs[f"bert.encoder.layer.{i}.{name}"] for i in range(LAYERS)])

    def qkv(kind: str) -> np.ndarray:
        return np.stack(
            [stacked(f"attention.self.{n}.{kind}") for n in ("query", "key", "value")], 1
        )

    size = HIDDEN // HEADS
    layers = "encoder/layers"
    out = {
        f"{layers}/attention/qkv/kernel": qkv("weight")
        .transpose(0, 3, 1, 2)
        .reshape(LAYERS, HIDDEN, 3, HEADS, size)
        .swapaxes(2, 3),
        f"{layers}/attention/qkv/bias": qkv("bias").reshape(LAYERS, 3, HEADS, size).swapaxes(1, 2),
        f"{layers}/attention/out/kernel": stacked("attention.output.dense.weight")
        .transpose(0, 2, 1)
        .reshape(LAYERS, HEADS, size, HIDDEN),
        f"{layers}/attention/out/bias": stacked("attention.output.dense.bias"),
    }
    for ours, name in {"up": "intermediate.dense", "down": "output.dense"}.items():
        out[f"{layers}/{ours}/kernel"] = stacked(f"{name}.weight").transpose(0, 2, 1)
        out[f"{layers}/{ours}/bias"] = stacked(f"{name}.bias")
    for ours, name in {"attention_norm": "attention.output", "mlp_norm": "output"}.items():
        out[f"{layers}/{ours}/scale"] = stacked(f"{name}.LayerNorm.weight")
        out[f"{layers}/{ours}/bias"] = stacked(f"{name}.LayerNorm.bias")
    tables = {"token": "word", "position": "position", "segment": "token_type"}
    for ours, name in tables.items():
        out[f"{ours}/embedding"] = theirs[f"bert.embeddings.{name}_embeddings.weight"]
    norms = {"norm": "bert.embeddings.LayerNorm", "mlm/norm": "cls.predictions.transform.LayerNorm"}
    for ours, name in norms.items():
        out[f"{ours}/scale"], out[f"{ours}/bias"] = theirs[f"{name}.weight"], theirs[f"{name}.bias"]
    dense = {
        "pooler": "bert.pooler.dense",
        "next_sentence": "cls.seq_relationship",
        "mlm/dense": "cls.predictions.transform.dense",
    }
    for ours, name in dense.items():
        out[f"{ours}/kernel"], out[f"{ours}/bias"] = (
            theirs[f"{name}.weight"].T,
            theirs[f"{name}.bias"],
        )
    out["mlm/bias"] = theirs["cls.predictions.bias"]
    # transformers' class 0 is "B follows A"; ours is class 1, the label is_next.
    out["next_sentence/kernel"] = out["next_sentence/kernel"][:, ::-1]
    out["next_sentence/bias"] = out["next_sentence/bias"][::-1]
    return out


def main() -> None:
    """Write bert.npz beside this file."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=37,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=24,
        max_position_embeddings=12,
        attn_implementation="eager",
    )
    model = BertForPreTraining(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    tokens = torch.randint(5, 37, (3, 9))
    valid = torch.arange(9)[None] < torch.tensor([9, 6, 3])[:, None]
    segments = ((torch.arange(9)[None] > 3) & valid).long()
    with torch.no_grad():
        found = model(
            input_ids=tokens,
            attention_mask=valid.long(),
            token_type_ids=segments,
            output_hidden_states=True,
        )
    np.savez_compressed(
        Path(__file__).with_name("bert.npz"),
        tokens=tokens.numpy().astype(np.int32),
        valid=valid.numpy(),
        segments=segments.numpy().astype(np.int32),
        hidden_states=np.stack([each.numpy() for each in found.hidden_states]),
        mlm_logits=found.prediction_logits.numpy(),
        next_sentence_logits=found.seq_relationship_logits.numpy()[:, ::-1],
        **weights(model),
    )


if __name__ == "__main__":
    main()
