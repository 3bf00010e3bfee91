import sys
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Sine(Dataset):
    def __init__(self, n: int) -> None:
        self.x = torch.linspace(-3, 3, n).unsqueeze(1)
        self.y = torch.sin(self.x)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int):
        return {"x": self.x[i], "y": self.y[i]}


@dataclass
class Trainer:
    model: nn.Module
    train_set: Dataset
    valid_set: Dataset
    lr: float = 0.01
    batch_size: int = 30
    history: dict = field(default_factory=lambda: {"train": [], "valid": []})

    def __post_init__(self) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model.to(self.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self.lr)
        self.loss_fn = nn.SmoothL1Loss()

    def training_step(self, batch) -> torch.Tensor:
        return self.loss_fn(self.model(batch["x"].to(self.device)), batch["y"].to(self.device))

    def fit(self, epochs: int) -> None:
        loader = DataLoader(self.train_set, batch_size=self.batch_size, shuffle=True)
        for epoch in range(epochs):
            self.model.train()
            for batch in loader:
                loss = self.training_step(batch)
                self.optimizer.zero_grad(set_to_none=False)
                loss.backward()
                self.optimizer.step()
                print(f"step {len(self.history['train'])} loss {loss.item():.8f}")
                self.history["train"].append(loss.item())
            self.history["valid"].append(self.validate())
            print(f"epoch {epoch} valid {self.history['valid'][-1]:.7f} best {min(self.history['valid']):.7f}")

    def validate(self) -> float:
        self.model.eval()
        total, count = 0.0, 0
        with torch.inference_mode():
            for batch in DataLoader(self.valid_set, batch_size=17):
                total += self.training_step(batch).item() * len(batch["x"])
                count += len(batch["x"])
        return total / count

    def save(self, path: str) -> None:
        torch.save(self.model.state_dict(), path)


if __name__ == "__main__":
    torch.manual_seed(1)
    trainer = Trainer(nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)), Sine(250), Sine(51))
    trainer.fit(7)
    trainer.save(sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
