"""Train a model of a common family for some steps on a GPU, and print how many bytes each phase of a step takes."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Iterable

import torch
from torch import nn

WORDS, LENGTH = 32000, 512


class Gpt(nn.Module):
    """A decoder of PyTorch's own layers."""

    def __init__(self, width: int = 768, depth: int = 8, heads: int = 12) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        states = self.words(tokens) + self.places(torch.arange(length, device=tokens.device))
        return self.head(self.blocks(states, mask=mask, is_causal=True))


class Recurrent(nn.Module):
    """An LSTM over words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.rnn = nn.Embedding(WORDS, 512), nn.LSTM(512, 1024, 2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(1024, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.words(tokens))[0])


def convolutions() -> nn.Module:
    """Return a network of convolutions and BatchNorm, for images of 64 by 64."""
    layers: list[nn.Module] = []
    for before, after in ((3, 64), (64, 128), (128, 256), (256, 512)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
        layers += [nn.Conv2d(after, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512 * 16, 1000))


def perceptron() -> nn.Module:
    """Return wide linear layers: parameters and optimizer states fill the memory."""
    layers = [nn.Sequential(nn.Linear(4096, 4096), nn.ReLU()) for _ in range(8)]
    return nn.Sequential(*layers, nn.Linear(4096, 1000))


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16}
    return LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, num_key_value_heads=4, **shape))


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config())


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig())


def _t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(T5Config(decoder_start_token_id=0))


def _resnet() -> nn.Module:
    from torchvision.models import resnet50

    return resnet50()


def _vit() -> nn.Module:
    from torchvision.models import vit_b_16

    return vit_b_16()


def _segmentation() -> nn.Module:
    from torchvision.models.segmentation import fcn_resnet50

    return fcn_resnet50(num_classes=21, weights=None, weights_backbone=None)


BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "gpt": Gpt,
    "lstm": Recurrent,
    "cnn": convolutions,
    "mlp": perceptron,
    "llama": _llama,
    "gpt2": _gpt2,
    "bert": _bert,
    "t5": _t5,
    "resnet50": _resnet,
    "vit": _vit,
    "fcn": _segmentation,
}
IMAGES = {"cnn": 64, "resnet50": 224, "vit": 224, "fcn": 224}


def loss_of(name: str, model: nn.Module, batch: int, device: torch.device) -> torch.Tensor:
    """Return the loss of one random batch."""
    if name == "mlp":
        return nn.functional.cross_entropy(
            model(torch.randn(batch, 4096, device=device)), torch.randint(1000, (batch,), device=device)
        )
    if name in IMAGES:
        side = IMAGES[name]
        found = model(torch.randn(batch, 3, side, side, device=device))
        if name == "fcn":
            return nn.functional.cross_entropy(found["out"], torch.randint(21, (batch, side, side), device=device))
        return nn.functional.cross_entropy(found, torch.randint(1000, (batch,), device=device))
    tokens = torch.randint(WORDS if name != "bert" else 30000, (batch, LENGTH), device=device)
    if name in ("gpt", "lstm"):
        return nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
    return model(input_ids=tokens, labels=tokens).loss


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer by its short name."""
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    options = {"adamw": {}, "fused": {"fused": True}, "loop": {"foreach": False}}[name]
    return torch.optim.AdamW(model.parameters(), lr=1e-4, **options)


def num_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of tensors."""
    return sum(each.numel() * each.element_size() for each in tensors)


def main() -> None:
    """Train for four steps, and print the bytes of the last."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=BUILDERS)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--precision", choices=("fp32", "amp", "bf16", "fp16"), default="fp32")
    parser.add_argument("--optimizer", choices=("adamw", "fused", "loop", "sgd"), default="adamw")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--limit", type=float, default=0.0, help="GiB of the device that may be used")
    asked = parser.parse_args()
    device = torch.device("cuda")
    if asked.limit:
        torch.cuda.set_per_process_memory_fraction(asked.limit * 2**30 / torch.cuda.mem_get_info()[1])
    torch.manual_seed(0)
    model = BUILDERS[asked.model]()
    if asked.precision == "bf16":
        model = model.bfloat16()
    model = model.to(device)
    if asked.checkpointing:
        model.gradient_checkpointing_enable()
    optimizer = optimizer_of(asked.optimizer, model)
    scaler = torch.amp.GradScaler(enabled=asked.precision == "fp16")
    half = {"amp": torch.bfloat16, "fp16": torch.float16}.get(asked.precision)
    kept: dict[str, int] = {"model": torch.cuda.memory_allocated()}
    for _ in range(4):
        marks = {}
        torch.cuda.reset_peak_memory_stats()
        with torch.autocast("cuda", half) if half else contextlib.nullcontext():
            loss = loss_of(asked.model, model, asked.batch, device)
        marks["forward"], marks["forward peak"] = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        scaler.scale(loss).backward()
        marks["backward"], marks["backward peak"] = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        scaler.step(optimizer)
        scaler.update()
        marks["step"], marks["step peak"] = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        optimizer.zero_grad()
        del loss
        marks["zero_grad"] = torch.cuda.memory_allocated()
    kept |= marks
    kept["reserved"] = torch.cuda.max_memory_reserved()
    kept["retries"] = torch.cuda.memory_stats()["num_alloc_retries"]
    kept["parameters"] = num_bytes(model.parameters())
    kept["buffers"] = num_bytes(model.buffers())
    kept["states"] = num_bytes(v for s in optimizer.state.values() for v in s.values() if v.is_cuda)
    print(json.dumps({**vars(asked), "bytes": kept}))


if __name__ == "__main__":
    main()
