"""Models as people write them, for one device, and the same training of each by hand."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

NUM_CLASSES, LENGTH, WIDTH, NUM_ROWS, NUM_STEPS = 32, 8, 32, 8, 3


class Attention(nn.Module):
    """One matrix for queries, keys and values, and its heads by their number, as in nanoGPT."""

    def __init__(self, num_heads: int = 4) -> None:
        super().__init__()
        self.n_head = num_heads
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH)
        self.c_proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.size()
        q, k, v = self.c_attn(x).split(width, dim=2)
        q, k, v = (one.view(rows, length, self.n_head, width // self.n_head).transpose(1, 2) for one in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(rows, length, width))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_fc = nn.Linear(WIDTH, 4 * WIDTH)
        self.c_proj = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c_proj(functional.gelu(self.c_fc(x)))


class Block(nn.Module):
    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(WIDTH), Attention(num_heads)
        self.ln_2, self.mlp = nn.LayerNorm(WIDTH), Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """nanoGPT in short."""

    def __init__(self, num_blocks: int = 4, num_heads: int = 4) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(NUM_CLASSES, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.h = nn.ModuleList(Block(num_heads) for _ in range(num_blocks))
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, NUM_CLASSES, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class Between(Gpt):
    """Something is done between two blocks, which is done once, wherever a stage begins."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.h:
            x = functional.softsign(block(x)) * 1.5
        return self.lm_head(self.ln_f(x))


class Own(Gpt):
    """Weights of the model's own, one before its blocks and one after them, and a module that is never called."""

    def __init__(self, where: str = "") -> None:
        super().__init__()
        self.where = where
        self.start, self.end = nn.Parameter(torch.randn(LENGTH, WIDTH) / 10), nn.Parameter(torch.linspace(1, 2, WIDTH))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        start = self.start[: tokens.size(1)]
        x = self.wte(tokens) + start
        told = {"told": x, "own": start.exp()}.get(self.where, 0)
        for block in self.h:
            x = block(x + self.end if self.where == "among" else x + told)
        return self.lm_head(self.ln_f(x + start if self.where == "both" else x) * self.end)


class Encoder(nn.Module):
    """PyTorch's own layers, with attention that is no nn.Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.start = nn.Embedding(NUM_CLASSES, WIDTH), nn.Parameter(torch.randn(LENGTH, WIDTH) / 10)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        for parameter in self.encoder.parameters():  # its layers are copies, and biases of zero hide what they do
            nn.init.normal_(parameter, std=0.3)
        self.head = nn.Linear(WIDTH, NUM_CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.size(1), device=tokens.device)
        return self.head(self.encoder(self.wte(tokens) + self.start[: tokens.size(1)], mask=mask, is_causal=True))


class InPlace(Gpt):
    """What a block gave is changed before the next one gets it."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens)
        for block in self.h:
            x = block(x)
            x += 1
        return self.lm_head(self.ln_f(x))


class Named(Gpt):
    """Takes its inputs by name, some of them in a dict, and one that may be left out."""

    def forward(self, *, tokens: torch.Tensor, more: dict[str, torch.Tensor], scale: float = 1.0) -> torch.Tensor:
        return super().forward(tokens) * more["sizes"][:, None, None] * scale


class WithLoss(Gpt):
    """Takes one dict, and gives one with the loss in it, as models of Hugging Face do."""

    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:  # type: ignore[override]
        logits = super().forward(batch["tokens"])
        return {"loss": loss_of(logits, batch["labels"]), "logits": logits}


class LlamaAttention(nn.Module):
    """A matrix each, fewer heads for keys, rotated by a table, and chances by hand, as in the first Llamas."""

    def __init__(self) -> None:
        super().__init__()
        self.head_dim = 8
        self.q_proj, self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj, self.v_proj = nn.Linear(WIDTH, WIDTH // 2, bias=False), nn.Linear(WIDTH, WIDTH // 2, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        q, k, v = (
            layer(x).view(rows, length, -1, self.head_dim).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotated(q, angles), rotated(k, angles)
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        mask = torch.full((length, length), float("-inf"), device=x.device).triu(1)
        chances = (q @ k.transpose(2, 3) / self.head_dim**0.5 + mask).softmax(-1)
        return self.o_proj((chances @ v).transpose(1, 2).reshape(rows, length, -1))


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * angles.cos() + torch.cat((-second, first), -1) * angles.sin()


class LlamaMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(WIDTH, 64, bias=False), nn.Linear(WIDTH, 64, bias=False)
        self.down_proj = nn.Linear(64, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = nn.RMSNorm(WIDTH), LlamaAttention()
        self.post_attention_layernorm, self.mlp = nn.RMSNorm(WIDTH), LlamaMlp()

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), angles)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Llama in short, with the plan that Hugging Face's models bring."""

    _tp_plan: dict[str, str]

    def __init__(self, *, has_plan: bool = False) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(NUM_CLASSES, WIDTH)
        self.layers = nn.ModuleList(LlamaLayer() for _ in range(2))
        self.norm, self.lm_head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, NUM_CLASSES, bias=False)
        self.register_buffer("frequencies", 1 / 10 ** (torch.arange(4) / 4))
        if has_plan:
            first = {f"layers.*.self_attn.{one}_proj": "colwise" for one in "qkv"}
            self._tp_plan = {
                **first, "layers.*.self_attn.o_proj": "rowwise", "layers.*.mlp.gate_proj": "colwise",
                "layers.*.mlp.up_proj": "colwise", "layers.*.mlp.down_proj": "rowwise", "lm_head": "colwise_rep",
            }  # fmt: skip

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        angles = torch.outer(torch.arange(tokens.size(1), device=tokens.device), self.frequencies).repeat(1, 2)
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, angles)
        return self.lm_head(self.norm(x))


class Cnn(nn.Module):
    """Images of 8 × 8, two stages of residual blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.body = nn.Sequential(*(Residual() for _ in range(4)))
        self.head = nn.Linear(8, NUM_CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.stem(x)).mean((2, 3)))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + functional.relu(self.norm(self.convolution(x)))


def make(kind: str) -> nn.Module:
    """Return a model with the same initial weights wherever it is made."""
    torch.manual_seed(1)
    makers = {
        "gpt": Gpt, "llama": Llama, "llama-plan": lambda: Llama(has_plan=True), "cnn": Cnn, "between": Between,
        "in-place": InPlace, "named": Named, "with-loss": WithLoss, "encoder": Encoder, "own": Own,
        "among": lambda: Own("among"), "both": lambda: Own("both"), "told": lambda: Own("told"),
        "told-own": lambda: Own("own"),
    }  # fmt: skip
    return makers[kind]()


def batches(kind: str, *, num_rows: int = NUM_ROWS) -> list[tuple[Any, torch.Tensor]]:
    """Return the same batches wherever they are made; a part of the tokens is not to be learned."""
    generator = torch.Generator().manual_seed(2)
    found: list[tuple[Any, torch.Tensor]] = []
    for _ in range(NUM_STEPS):
        if kind == "cnn":
            inputs = torch.randn(num_rows, 3, 8, 8, generator=generator)
            targets = torch.randint(NUM_CLASSES, (num_rows,), generator=generator)
        else:
            inputs = torch.randint(NUM_CLASSES, (num_rows, LENGTH), generator=generator)
            targets = torch.randint(NUM_CLASSES, (num_rows, LENGTH), generator=generator)
            targets[torch.rand(targets.shape, generator=generator) < 0.3] = -100
        found.append((as_given(kind, inputs, targets), targets))
    return found


def as_given(kind: str, tokens: torch.Tensor, labels: torch.Tensor) -> Any:
    """Return inputs in the form in which a model gets them."""
    if kind == "named":
        return {"tokens": tokens, "more": {"sizes": torch.linspace(0.5, 1.5, len(tokens))}, "scale": 0.8}
    return ({"tokens": tokens, "labels": labels},) if kind == "with-loss" else tokens


def called(model: nn.Module, inputs: Any) -> Any:
    """Call a model with what it gets."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def loss_of(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean over what is to be learned."""
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    # the gradient of a bias of keys is 0 but for rounding, which a smaller eps would make steps of
    "adamw": (torch.optim.AdamW, {"lr": 1e-2, "weight_decay": 0.1, "eps": 1e-4}),
    "sgd": (torch.optim.SGD, {"lr": 0.5, "momentum": 0.9}),
}


def losses_by_hand(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """Return the losses of a GPT, trained as one does on one device."""
    losses = []
    for inputs, targets in batches("gpt"):
        optimizer.zero_grad()
        loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_by_hand(kind: str, optimizer_kind: str, clip: float) -> dict[str, Any]:
    """Train as one does on one device; nothing of echelon."""
    model = make(kind)
    maker, settings = OPTIMIZERS[optimizer_kind]
    optimizer = maker(model.parameters(), **settings)
    losses, gradient_norms = [], []
    for inputs, targets in batches(kind):
        optimizer.zero_grad()
        outputs = called(model, inputs)
        loss = outputs["loss"] if kind == "with-loss" else loss_of(outputs, targets)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip or float("inf"))
        optimizer.step()
        losses.append(loss.item())
        gradient_norms.append(norm.item())
    return {"losses": losses, "norms": gradient_norms, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
