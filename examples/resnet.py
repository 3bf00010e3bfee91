"""Measure how many images a second a ResNet trains on: synthetic images, no disk, steps of warm-up left out.

    echelon run -n 1 resnet.py                    one process
    echelon run -n 2 resnet.py                    two ranks on this machine
    salloc --nodes=2 echelon run -n 2 resnet.py   two on each of two nodes

Without a GPU choose small sizes: --depth 18 --width 8 --image-size 32 --batch-size 8. The images of two runs with a
different number of ranks, divided, are the scaling: --batch-size is per rank, so it is the weak one.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
CLASSES = 1000


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution without bias, and its normalisation."""
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class Residual(nn.Module):
    """Add to the input what two or three convolutions make of it."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        if bottleneck:
            parts = [convolution(inputs, width, 1), nn.ReLU(), convolution(width, width, 3, stride), nn.ReLU(),
                     convolution(width, outputs, 1)]  # fmt: skip
        else:
            parts = [convolution(inputs, width, 3, stride), nn.ReLU(), convolution(width, outputs, 3)]
        self.change = nn.Sequential(*parts)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else convolution(inputs, outputs, 1, stride)

    def forward(self, images: Tensor) -> Tensor:
        return F.relu(self.change(images) + self.shortcut(images))


def resnet(depth: int, width: int) -> nn.Sequential:
    """Return a ResNet as in https://arxiv.org/abs/1512.03385; its own width is 64."""
    bottleneck = depth >= 50
    layers = [convolution(3, width, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]
    inputs = width
    for stage, blocks in enumerate(BLOCKS[depth]):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(Residual(inputs, width << stage, stride, bottleneck))
            inputs = (width << stage) * (4 if bottleneck else 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


def measure(train_step: Callable[[], None], options: argparse.Namespace, device: torch.device) -> list[float]:
    """Return the seconds of each measured step; work on a GPU has ended when its clock is read."""
    seconds = []
    for _ in range(options.warm_up + options.steps):
        started = time.perf_counter()
        train_step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return seconds[options.warm_up :]


def read_options() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, choices=BLOCKS, default=50, help="layers of the network")
    parser.add_argument("--width", type=int, default=64, help="channels of its first layer")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=64, help="images in a step of one rank")
    parser.add_argument("--warm-up", type=int, default=10, help="steps that are not measured")
    parser.add_argument("--steps", type=int, default=50, help="steps that are measured")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16")
    return parser.parse_args()


def main() -> None:
    options = read_options()
    cuda = torch.cuda.is_available()  # also true on AMD
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True  # MIOpen's search on AMD: part of the warm-up
    dist.init_process_group("nccl" if cuda else "gloo")
    ranks = dist.get_world_size()

    model = resnet(options.depth, options.width).to(device, memory_format=torch.channels_last)
    model = DistributedDataParallel(model, device_ids=[device] if cuda else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(options.batch_size, 3, options.image_size, options.image_size, device=device)
    images = images.to(memory_format=torch.channels_last)
    classes = torch.randint(CLASSES, (options.batch_size,), device=device)

    def train_step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=options.bf16):
            loss = F.cross_entropy(model(images), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    seconds = measure(train_step, options, device)
    slowest = torch.tensor(seconds, device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)  # a step is over when its last rank is
    if dist.get_rank() == 0:
        speeds = [options.batch_size / step for step in slowest.tolist()]
        spread = statistics.pstdev(speeds)
        size = f"{options.image_size} x {options.image_size}"
        print(f"ResNet-{options.depth}, {size}, {options.batch_size} a rank, ranks: {ranks}")
        print(f"images/s of a rank: {statistics.fmean(speeds):.1f} +- {spread:.1f}")
        print(f"images/s in all: {ranks * statistics.fmean(speeds):.1f} +- {ranks * spread:.1f}", flush=True)
    time.sleep(0.3)  # without a GPU: torch 2.13's gloo threads must let go of their last work first
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
