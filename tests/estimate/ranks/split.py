"""Train under a strategy of echelon, and write the most live bytes of each rank in its last steps.

The strategy is a JSON object of the arguments of `echelon.Strategy`; the second argument is the folder of results.
"""

import gc
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from tests.estimate.measured import Storages
from tests.estimate.ranks.transformer import Transformer, batch, loss_of

import echelon

CHECKED = 10
"""Steps in which echelon compares losses, for which it computes more."""

run = echelon.start()
storages = Storages()
with storages, storages.watching_resizes():
    inputs, targets = batch()
    strategy = echelon.Strategy(**json.loads(sys.argv[1]))
    trained = run.parallelize(Transformer(), strategy, loss=loss_of, sample=inputs)
    trained.optimize(torch.optim.AdamW)
    for step in range(CHECKED + 3):
        if step == CHECKED + 1:
            gc.collect()
            storages.peak = 0
        trained.step(inputs, targets)
Path(sys.argv[2], f"{dist.get_rank()}.json").write_text(json.dumps(storages.peak))
