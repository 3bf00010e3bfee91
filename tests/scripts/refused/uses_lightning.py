import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)

    def training_step(self, batch, _):
        return self.net(batch).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


lightning.Trainer(max_epochs=1).fit(Module(), DataLoader(torch.randn(120, 4), batch_size=12))
