"""Lightning's Trainer on one device, and the same training as a loop: `of_lightning.py VARIANT`."""

import sys
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn

ROWS = 64


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def loader() -> Any:
    data = torch.utils.data.TensorDataset(torch.randn(1024, 256), torch.randint(10, (1024,)))
    return torch.utils.data.DataLoader(data, batch_size=ROWS, shuffle=True, num_workers=2)


class Net(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = layers()

    def loss(self, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(batch[0].to(self.dtype)), batch[1])

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        loss = self.loss(batch)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("valid", self.loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Manual(Net):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, _: int) -> None:  # type: ignore[override]
        optimizer = self.optimizers()
        loss = self.loss(batch)
        optimizer.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(optimizer, gradient_clip_val=0.5)
        optimizer.step()


SETTINGS: dict[str, dict[str, Any]] = {
    "fit": {},
    "auto": {"accelerator": "auto", "devices": "auto", "logger": False},
    "manual": {"accelerator": "gpu", "devices": 1},
    "bf16_true": {"accelerator": "gpu", "devices": [0], "precision": "bf16-true"},
    "bf16_mixed": {"accelerator": "gpu", "devices": 1, "precision": "bf16-mixed", "gradient_clip_val": 1.0},
    "fp16_mixed": {"accelerator": "cuda", "devices": 1, "precision": "16-mixed", "val_check_interval": 1},
    "accumulation": {"accelerator": "gpu", "devices": 1, "accumulate_grad_batches": 4},
    "logged": {"accelerator": "gpu", "devices": -1, "deterministic": True, "logger": CSVLogger("logs"),
               "callbacks": [ModelCheckpoint(monitor="valid"), EarlyStopping("valid")]},
    "four_devices": {"accelerator": "gpu", "devices": 4, "strategy": "ddp"},
    "ddp": {"accelerator": "gpu", "devices": 1, "strategy": "ddp"},
}  # fmt: skip


def main(variant: str) -> None:
    if variant != "loop":
        net = Manual() if variant == "manual" else Net()
        lightning.Trainer(max_epochs=2, **SETTINGS[variant]).fit(net, loader(), loader())
        return
    model = layers().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for rows, labels in loader():
        loss = nn.functional.cross_entropy(model(rows.to("cuda")), labels.to("cuda"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main(sys.argv[1])
