"""A residual network from scratch on images: workers, accuracy of the top classes, a scheduler, a best checkpoint."""

import time

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, random_split

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


class Images(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.rand(3, 32, 32, generator=generator), index % 10


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inplanes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inplanes != planes:
            self.downsample = nn.Sequential(nn.Conv2d(inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, layers, num_classes=10):
        super().__init__()
        self.inplanes = 16
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.layers = nn.Sequential(*(self._make(16 * 2**i, n, 1 if i == 0 else 2) for i, n in enumerate(layers)))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(16 * 2 ** (len(layers) - 1), num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def _make(self, planes, count, stride):
        blocks = [BasicBlock(self.inplanes, planes, stride)]
        self.inplanes = planes
        return nn.Sequential(*blocks, *(BasicBlock(planes, planes) for _ in range(1, count)))

    def forward(self, x):
        return self.fc(torch.flatten(self.avgpool(self.layers(self.stem(x))), 1))


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, value, n):
        self.sum += value * n
        self.count += n


@torch.no_grad()
def accuracy(output, target, topk=(1,)):
    _, pred = output.topk(max(topk), 1, True, True)
    correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
    return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / target.size(0)) for k in topk]


def main():
    train_set, val_set = random_split(Images(80), [64, 16])
    options = {"batch_size": 16, "num_workers": 2, "pin_memory": True, "persistent_workers": True}
    train_loader = DataLoader(train_set, shuffle=True, drop_last=True, **options)
    val_loader = DataLoader(val_set, **options)
    model = ResNet([1, 1, 1]).to(device, memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, epochs=2, steps_per_epoch=len(train_loader))
    best = 0.0
    for epoch in range(2):
        losses, top1, began = AverageMeter(), AverageMeter(), time.time()
        model.train()
        for images, target in train_loader:
            images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
            target = target.to(device, non_blocking=True)
            output = model(images)
            loss = criterion(output, target)
            acc1, _ = accuracy(output, target, topk=(1, 5))
            losses.update(loss.item(), images.size(0))
            top1.update(acc1[0].item(), images.size(0))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        model.eval()
        correct = 0
        with torch.no_grad():
            for images, target in val_loader:
                _, predicted = torch.max(model(images.to(device)).data, 1)
                correct += (predicted == target.to(device)).sum().item()
        torch.cuda.synchronize()
        print(f"epoch {epoch} loss {losses.sum / losses.count:.4f} {correct} {time.time() - began:.1f} s")
        if correct > best:
            best = correct
            torch.save(model.state_dict(), "best.pth")


if __name__ == "__main__":
    main()
