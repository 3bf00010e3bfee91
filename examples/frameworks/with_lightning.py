"""Train with Lightning's Trainer.

    python with_lightning.py                              one process
    echelon run -n 2 with_lightning.py                    two ranks on this machine
    salloc --nodes=2 echelon run -n 2 with_lightning.py   two on each of two nodes

The Trainer wants to be told how many ranks there are, and compares that with what it finds.
"""

import os

import lightning as L
import task
import torch
from task_torch import end_well, make_dataset, make_model
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler


class Kinds(L.LightningModule):
    """Tell kinds of points apart."""

    def __init__(self, width: int, rows: int, batch_size: int) -> None:
        super().__init__()
        self.model = make_model(width)
        self.dataset = make_dataset(rows)
        self.batch_size = batch_size

    def train_dataloader(self) -> DataLoader:
        ranks, rank = self.trainer.world_size, self.trainer.global_rank
        sampler = DistributedSampler(self.dataset, num_replicas=ranks, rank=rank, shuffle=False)
        return DataLoader(self.dataset, batch_size=task.rows_of_a_rank(self.batch_size, ranks), sampler=sampler)

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        points, kinds = batch
        loss = F.cross_entropy(self.model(points), kinds)
        mean = self.all_gather(loss.detach()).mean()
        if self.global_rank == 0:
            print(f"step {number + 1} loss {mean.item():.6f}", flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=task.LEARNING_RATE)


def main() -> None:
    options = task.new_parser(__doc__).parse_args()
    devices, nodes = (int(os.environ.get(name, "1")) for name in ("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"))
    trainer = L.Trainer(
        devices=devices,
        num_nodes=nodes,
        strategy="ddp" if devices * nodes > 1 else "auto",
        use_distributed_sampler=False,  # its own shuffles, also for a loader that does not
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Kinds(options.width, options.steps * options.batch_size, options.batch_size))
    end_well()


if __name__ == "__main__":
    main()
