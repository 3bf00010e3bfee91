"""The task of task.py in PyTorch's terms: a dataset and a model, as a script for one device has them."""

import time

import task
import torch
from torch import nn
from torch.utils.data import TensorDataset


def make_dataset(rows: int) -> TensorDataset:
    """Return the points and their kinds."""
    points, kinds = task.draw_points(rows)
    return TensorDataset(torch.from_numpy(points), torch.from_numpy(kinds))


def make_model(width: int) -> nn.Module:
    """Return two layers that start from the task's weights."""
    model = nn.Sequential(nn.Linear(task.FEATURES, width), nn.Tanh(), nn.Linear(width, task.KINDS))
    weights = [torch.from_numpy(weight.T.copy()) for weight in task.draw_weights(width)]  # torch has outputs first
    model.load_state_dict(dict(zip(model.state_dict(), weights, strict=True)))
    return model


def end_well() -> None:
    """Give gloo, the backend without a GPU, a moment to let go of its last work.

    Otherwise a rank may hang as it ends: in torch 2.13 gloo's threads need the interpreter for that, and a process
    group that is taken down waits for them with the interpreter held.
    """
    time.sleep(0.3)
