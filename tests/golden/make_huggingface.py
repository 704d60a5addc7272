"""Freeze small random models of transformers in odd shapes: config, weights, and all that they compute.

pip install torch==2.13.0 transformers numpy && python tests/golden/make_huggingface.py
"""

import json
import re
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
TEXT |= {
    "bert_classifier": (
        "BertForSequenceClassification",
        {"vocab_size": 33, "num_attention_heads": 2, "hidden_size": 12, "num_labels": 3},
    ),
    "roberta_classifier": (
        "RobertaForSequenceClassification",
        {
            "vocab_size": 35,
            "num_attention_heads": 4,
            "hidden_size": 8,
            "type_vocab_size": 1,
            "num_labels": 4,
            "classifier_dropout": 0.3,
        },
    ),
    "roberta_prenorm": (
        "RobertaPreLayerNormForMaskedLM",
        {
            "vocab_size": 39,
            "num_attention_heads": 3,
            "hidden_size": 12,
            "hidden_act": "gelu_new",
            "type_vocab_size": 2,
            "layer_norm_eps": 1e-5,
            "pad_token_id": 0,
        },
    ),
    "roberta_prenorm_classifier": (
        "RobertaPreLayerNormForSequenceClassification",
        {"vocab_size": 34, "num_attention_heads": 2, "hidden_size": 10, "num_labels": 2},
    ),
}
VITS = {
    "vit_encoder": (
        "ViTModel",
        {
            "num_channels": 2,
            "patch_size": 4,
            "image_size": [8, 12],
            "hidden_size": 18,
            "num_attention_heads": 3,
            "hidden_act": "gelu_new",
        },
    ),
    "vit_classifier": (
        "ViTForImageClassification",
        {
            "num_channels": 1,
            "patch_size": 3,
            "image_size": [9, 6],
            "hidden_size": 12,
            "num_attention_heads": 2,
            "hidden_act": "relu",
            "layer_norm_eps": 1e-3,
            "num_labels": 5,
        },
    ),
}
IMAGES = {
    "mae_pretraining": (
        "ViTMAEForPreTraining",
        {
            "num_channels": 2,
            "patch_size": 3,
            "image_size": 12,
            "hidden_size": 16,
            "num_attention_heads": 4,
            "decoder_hidden_size": 12,
            "decoder_num_attention_heads": 3,
            "hidden_act": "gelu_new",
            "norm_pix_loss": True,
        },
    ),
    "mae_pixels": (
        "ViTMAEForPreTraining",
        {
            "num_channels": 3,
            "patch_size": 2,
            "image_size": 8,
            "hidden_size": 12,
            "num_attention_heads": 1,
            "decoder_hidden_size": 8,
            "decoder_num_attention_heads": 2,
            "hidden_act": "relu",
            "layer_norm_eps": 1e-3,
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
    padding = {"pad_token_id": 1 if roberta else 0}
    config = cls.config_class(
        num_hidden_layers=3,
        intermediate_size=14,
        max_position_embeddings=LENGTH + 4,
        attn_implementation="eager",
        architectures=[architecture],
        **padding | options,
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
        "position_ids": positions + (config.pad_token_id + 1 if roberta else 0),
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
    classes = torch.arange(3) % config.num_labels
    out: dict[str, Any] = {}
    if architecture.endswith("Model"):
        found = model(**given, output_hidden_states=True)
        loss = (found.last_hidden_state[valid] ** 2).mean() + (found.pooler_output**2).mean()
    elif architecture.endswith("SequenceClassification"):
        found = model(**given, labels=classes, output_hidden_states=True)
        loss = found.loss
        out["class_logits"] = found.logits.detach().numpy()
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
        "classes": classes,
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


def image_case(architecture: str, options: dict[str, Any]) -> dict[str, Any]:
    """A masked autoencoder's config, weights, pixels, masks, hidden states, prediction, loss and gradients."""
    torch.manual_seed(options["hidden_size"])
    cls = getattr(transformers, architecture)
    config = cls.config_class(
        num_hidden_layers=3,
        decoder_num_hidden_layers=2,
        intermediate_size=20,
        decoder_intermediate_size=14,
        attn_implementation="eager",
        architectures=[architecture],
        **options,
    )
    model = cls(config).eval()
    count = (config.image_size // config.patch_size) ** 2
    # A fresh model of this version has no positions yet: it takes its patches to be loaded, and clears the
    # decoder's.
    del model.vit.embeddings.patch_embeddings.projection._is_hf_initialized
    with torch.no_grad():
        model.vit.embeddings.initialize_weights()
        model.decoder.initialize_weights(count)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.2 * torch.randn_like(parameter))
    side, channels = config.image_size, config.num_channels
    pixels = torch.randint(0, 256, (3, side, side, channels))
    mean, std = (torch.tensor(each * channels) for each in ([0.25], [0.5]))
    noise = torch.rand(3, count)
    images = ((pixels / 255 - mean) / std).permute(0, 3, 1, 2)
    found = model(images, noise=noise, output_hidden_states=True)
    found.loss.backward()
    # Their visible patches are in the order of the noise, ours in the order of the image.
    kept = torch.argsort(noise, dim=1)[:, : int(count * (1 - config.mask_ratio))].numpy()
    order = np.argsort(kept, axis=1)

    def in_order(states: torch.Tensor) -> np.ndarray:
        whole = states.detach().numpy()
        patches = np.take_along_axis(whole[:, 1:], order[..., None], axis=1)
        return np.concatenate([whole[:, :1], patches], axis=1)

    processor = {"image_mean": [0.25] * channels, "image_std": [0.5] * channels}
    return (
        {
            "config": np.array(json.dumps(config.to_dict())),
            "processor": np.array(json.dumps(processor)),
            "pixels": pixels.numpy().astype(np.uint8),
            "visible": np.sort(kept, axis=1).astype(np.int32),
            "masked": np.argwhere(found.mask.numpy())[:, 1].reshape(3, -1).astype(np.int32),
            "hidden_states": np.stack([in_order(each) for each in found.hidden_states]),
            "predicted": found.logits.detach().numpy(),
            "loss": found.loss.detach().numpy(),
        }
        | {f"tensor/{name}": value.numpy() for name, value in saved(model).items()}
        | {
            f"gradient/{name}": value.grad.numpy()
            for name, value in saved_names(model).items()
            if value.grad is not None
        }
    )


def vit_case(architecture: str, options: dict[str, Any]) -> dict[str, Any]:
    """A vision transformer's config, weights, pixels, hidden states, logits, loss and gradients."""
    torch.manual_seed(options["hidden_size"])
    cls = getattr(transformers, architecture)
    config = cls.config_class(
        num_hidden_layers=3,
        intermediate_size=20,
        attn_implementation="eager",
        architectures=[architecture],
        **options,
    )
    model = cls(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    channels = config.num_channels
    pixels = torch.randint(0, 256, (3, *config.image_size, channels))
    images = ((pixels / 255 - 0.25) / 0.5).permute(0, 3, 1, 2)
    out: dict[str, Any] = {}
    if architecture == "ViTModel":
        found = model(images, output_hidden_states=True)
        out["last"] = found.last_hidden_state.detach().numpy()
        loss = (found.last_hidden_state**2).mean()
    else:
        classes = torch.arange(3)
        found = model(images, labels=classes, output_hidden_states=True)
        out["classes"] = classes.numpy().astype(np.int32)
        out["class_logits"] = found.logits.detach().numpy()
        loss = found.loss
    loss.backward()
    processor = {"image_mean": [0.25] * channels, "image_std": [0.5] * channels}
    return (
        out
        | {
            "config": np.array(json.dumps(config.to_dict())),
            "processor": np.array(json.dumps(processor)),
            "pixels": pixels.numpy().astype(np.uint8),
            "hidden_states": np.stack([each.detach().numpy() for each in found.hidden_states]),
            "loss": loss.detach().numpy(),
        }
        | {f"tensor/{name}": value.numpy() for name, value in saved(model).items()}
        | {
            f"gradient/{name}": value.grad.numpy()
            for name, value in saved_names(model).items()
            if value.grad is not None
        }
    )


def saved_names(model: Any) -> dict[str, torch.nn.Parameter]:
    """Parameters under the names of published files, which differ from the module's in this version."""
    renamed = {}
    for name, value in model.named_parameters():
        name = re.sub(r"^(vit\.)?layers\.", r"\1encoder.layer.", name)
        if ".layer." in name or "decoder_layers." in name:
            for new, old in {
                "attention.q_proj": "attention.attention.query",
                "attention.k_proj": "attention.attention.key",
                "attention.v_proj": "attention.attention.value",
                "attention.o_proj": "attention.output.dense",
                "mlp.fc1": "intermediate.dense",
                "mlp.fc2": "output.dense",
            }.items():
                name = name.replace(new, old)
        renamed[name] = value
    return renamed


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
    for name, (architecture, options) in VITS.items():
        yield name, vit_case(architecture, options)
    for name, (architecture, options) in IMAGES.items():
        yield name, image_case(architecture, options)


def main() -> None:
    """Write an npz a model beside this file."""
    for name, arrays in cases():
        np.savez_compressed(Path(__file__).with_name(f"huggingface_{name}.npz"), **arrays)


if __name__ == "__main__":
    main()
