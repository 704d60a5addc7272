"""Freeze small random models of transformers in odd shapes: config, weights, and all that they compute.

pip install torch==2.13.0 transformers numpy && python tests/golden/make_huggingface.py
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

TEXT = {
    "bert_pretraining": (
        "BertForPreTraining",
        {"vocab_size": 37, "num_attention_heads": 3, "hidden_size": 12, "hidden_act": "gelu_new"},
    ),
    "bert_mlm": (
        "BertForMaskedLM",
        {
            "vocab_size": 41,
            "num_attention_heads": 1,
            "hidden_size": 10,
            "hidden_act": "relu",
            "layer_norm_eps": 1e-3,
            "type_vocab_size": 3,
        },
    ),
    "bert_encoder": ("BertModel", {"vocab_size": 29, "num_attention_heads": 8, "hidden_size": 16}),
    "roberta_mlm": (
        "RobertaForMaskedLM",
        {
            "vocab_size": 43,
            "num_attention_heads": 5,
            "hidden_size": 20,
            "type_vocab_size": 1,
            "layer_norm_eps": 1e-5,
        },
    ),
    "roberta_relu": (
        "RobertaForMaskedLM",
        {
            "vocab_size": 31,
            "num_attention_heads": 2,
            "hidden_size": 8,
            "hidden_act": "relu",
            "type_vocab_size": 2,
        },
    ),
}
LENGTH, LENGTHS = 9, (9, 6, 3)


def text_case(architecture: str, options: dict[str, Any], *, packed: bool) -> dict[str, Any]:
    """A model's config, weights, inputs, hidden states, logits, loss and gradients.

    Args:
        architecture: the class.
        options: of its config, beside small ones.
        packed: two documents in each row, which do not see each other and count their own positions.
    """
    torch.manual_seed(len(architecture) + options["vocab_size"])
    cls = getattr(transformers, architecture)
    roberta = architecture.startswith("Roberta")
    config = cls.config_class(
        num_hidden_layers=3,
        intermediate_size=14,
        max_position_embeddings=LENGTH + 4,
        attn_implementation="eager",
        architectures=[architecture],
        pad_token_id=1 if roberta else 0,
        **options,
    )
    model = cls(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    place = torch.arange(LENGTH)[None]
    tokens = torch.randint(5, config.vocab_size, (3, LENGTH))
    valid = place < torch.tensor(LENGTHS)[:, None]
    documents = ((place >= 4).long() if packed else torch.zeros_like(place)) * torch.ones_like(
        tokens
    )
    positions = place - 4 * documents
    segments = ((place % 3 == 1) & valid).long() * (config.type_vocab_size > 1)
    given = {
        "input_ids": tokens,
        "token_type_ids": segments,
        "position_ids": positions + (2 if roberta else 0),
    }
    alike = documents[:, :, None] == documents[:, None, :]
    given["attention_mask"] = (
        torch.where(valid[:, None, :] & alike, 0.0, torch.finfo(torch.float32).min)[:, None]
        if packed
        else valid.long()
    )
    hidden_at = valid & (place % 2 == 1)
    labels = torch.where(hidden_at, (tokens * 3 + 1) % config.vocab_size, -100)
    is_next = torch.tensor([1, 0, 1])
    out: dict[str, Any] = {}
    if architecture.endswith("Model"):
        found = model(**given, output_hidden_states=True)
        loss = (found.last_hidden_state[valid] ** 2).mean() + (found.pooler_output**2).mean()
    else:
        given["labels"] = labels
        if architecture == "BertForPreTraining":
            given["next_sentence_label"] = 1 - is_next
        found = model(**given, output_hidden_states=True)
        loss = found.loss
        logits = found.get("logits", found.get("prediction_logits"))
        out["mlm_logits"] = logits.detach().numpy()
        if "seq_relationship_logits" in found:
            out["next_sentence_logits"] = found.seq_relationship_logits.detach().numpy()[:, ::-1]
    loss.backward()
    as_int = {
        "tokens": tokens,
        "segments": segments,
        "documents": documents,
        "positions": positions,
        "labels": labels,
        "is_next": is_next,
    }
    return (
        out
        | {name: value.numpy().astype(np.int32) for name, value in as_int.items()}
        | {
            "config": np.array(json.dumps(config.to_dict())),
            "valid": valid.numpy(),
            "packed": np.array(packed),
            "hidden_states": np.stack([each.detach().numpy() for each in found.hidden_states]),
            "loss": loss.detach().numpy(),
        }
        | {f"tensor/{name}": value.numpy() for name, value in saved(model).items()}
        | {
            f"gradient/{name}": value.grad.numpy()
            for name, value in model.named_parameters()
            if value.grad is not None
        }
    )


def saved(model: Any) -> dict[str, torch.Tensor]:
    """What ``save_pretrained`` writes of a model."""
    import tempfile

    from safetensors.torch import load_file

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(f"{folder}/model.safetensors")


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """All models by name."""
    for name, (architecture, options) in TEXT.items():
        yield name, text_case(architecture, options, packed=False)
    for name in ("bert_pretraining", "roberta_mlm"):
        architecture, options = TEXT[name]
        yield f"{name}_packed", text_case(architecture, options, packed=True)


def main() -> None:
    """Write an npz a model beside this file."""
    for name, arrays in cases():
        np.savez_compressed(Path(__file__).with_name(f"huggingface_{name}.npz"), **arrays)


if __name__ == "__main__":
    main()
