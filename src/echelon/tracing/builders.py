"""The training of a model that a function or a configuration of Hugging Face describes, for a trace."""

import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..pytorch import internals

USUAL_SIDE = 224  # of images, where the configuration has none
MOST_LENGTH = 4096
"""The longest sequence if none was asked for: configurations name lengths that nobody trains with."""


def of_function(name: str, optimizer: str, device: str) -> Callable[[], None]:
    """Return the training of what `module:function` returns: a model and a batch.

    The batch is a tensor, a tuple of tensors or a dict of them, with which the model is called. The loss is `loss` of
    the result, or the mean of what the model returns. `device` is the type of the device: "cuda" or "cpu".
    """
    sys.path.insert(0, os.getcwd())
    module, _, function = name.partition(":")
    build = getattr(importlib.import_module(module), function)

    def train() -> None:
        built = build()
        if not (isinstance(built, tuple) and len(built) == 2 and isinstance(built[0], nn.Module)):
            raise TypeError(f"{name} returns {type(built).__name__}, but a model and a batch are needed")
        _train(built[0], built[1], optimizer, device)

    return train


def of_config(path: str, rows: int, length: int, optimizer: str, dtype: str, device: str) -> Callable[[], None]:
    """Return the training of a model of `transformers` with random weights, on a batch of random values."""

    def train() -> None:
        model, batch = _of_transformers(path, rows, length)
        _train(model.to(getattr(torch, dtype)), batch, optimizer, device)

    return train


def _of_transformers(path: str, rows: int, length: int) -> tuple[Any, dict[str, Any]]:
    transformers = importlib.import_module("transformers")

    with open(path, encoding="utf-8") as file:
        values = json.load(file)
    config = transformers.AutoConfig.for_model(**{"model_type": values.pop("model_type"), **values})
    if getattr(config, "is_encoder_decoder", False) and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = getattr(config, "pad_token_id", None) or 0
    names = getattr(config, "architectures", None) or []
    kind = getattr(transformers, names[0], None) if names else None
    model = kind(config) if kind is not None else transformers.AutoModelForCausalLM.from_config(config)
    model.train()
    if getattr(model, "main_input_name", "") == "pixel_values":
        return model, _images(config, rows)
    return model, _tokens(config, rows, length)


def _images(config: object, rows: int) -> dict[str, Any]:
    side = getattr(config, "image_size", None) or USUAL_SIDE
    height, width = side if isinstance(side, (list, tuple)) else (side, side)
    pixels = torch.zeros(rows, getattr(config, "num_channels", 3), height, width)
    return {"pixel_values": pixels, "labels": torch.zeros(rows, dtype=torch.int64)}


def _tokens(config: object, rows: int, length: int) -> dict[str, Any]:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    usual = min(getattr(text, "max_position_embeddings", None) or MOST_LENGTH, MOST_LENGTH)
    tokens = torch.zeros(rows, length or usual, dtype=torch.int64)
    return {"input_ids": tokens, "labels": tokens}


def _train(model: nn.Module, batch: object, optimizer: str, device: str) -> None:
    """Take steps until the trace has seen enough."""
    model = model.to(device)
    steps = _optimizer(optimizer, model)
    moved = internals.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), batch)
    while True:
        if isinstance(moved, dict):
            result = model(**moved)
        else:
            result = model(*moved) if isinstance(moved, (tuple, list)) else model(moved)
        loss = getattr(result, "loss", None)
        (loss if loss is not None else _mean(result)).backward()
        steps.step()
        steps.zero_grad()


def _optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    weights = list(model.parameters())
    if name in ("sgd", "momentum"):
        return torch.optim.SGD(weights, lr=1e-3, momentum=0.9 if name == "momentum" else 0.0)
    return (torch.optim.Adam if name == "adam" else torch.optim.AdamW)(weights, lr=1e-3)


def _mean(result: object) -> torch.Tensor:
    first = next(tensor for tensor in internals.tree_iter(result) if isinstance(tensor, torch.Tensor))
    return first.float().mean()
