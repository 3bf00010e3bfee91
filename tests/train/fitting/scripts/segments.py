"""A U-Net for segments: Dice and cross entropy, padding of odd sizes, autocast, GradScaler by its old name."""

import logging
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.utils.data import DataLoader, TensorDataset


class DoubleConv(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        layers = []
        for before in (in_channels, out_channels):
            layers += [nn.Conv2d(before, out_channels, 3, padding=1, bias=False), nn.BatchNorm2d(out_channels)]
            layers += [nn.ReLU(inplace=True)]
        self.double_conv = nn.Sequential(*layers)

    def forward(self, x):
        return self.double_conv(x)


class Up(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.up = nn.ConvTranspose2d(in_channels, in_channels // 2, kernel_size=2, stride=2)
        self.conv = DoubleConv(in_channels, out_channels)

    def forward(self, x1, x2):
        x1 = self.up(x1)
        dy, dx = x2.size()[2] - x1.size()[2], x2.size()[3] - x1.size()[3]
        x1 = F.pad(x1, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return self.conv(torch.cat([x2, x1], dim=1))


class UNet(nn.Module):
    def __init__(self, n_channels, n_classes):
        super().__init__()
        self.n_classes = n_classes
        self.inc, self.pool = DoubleConv(n_channels, 8), nn.MaxPool2d(2)
        self.down1, self.down2 = DoubleConv(8, 16), DoubleConv(16, 32)
        self.up1, self.up2, self.outc = Up(32, 16), Up(16, 8), nn.Conv2d(8, n_classes, 1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(self.pool(x1))
        x3 = self.down2(self.pool(x2))
        return self.outc(self.up2(self.up1(x3, x2), x1))


def dice_loss(pred, target, epsilon=1e-6):
    assert pred.size() == target.size()
    inter = 2 * (pred * target).sum(dim=(-1, -2, -3))
    sets_sum = pred.sum(dim=(-1, -2, -3)) + target.sum(dim=(-1, -2, -3))
    sets_sum = torch.where(sets_sum == 0, inter, sets_sum)
    return 1 - ((inter + epsilon) / (sets_sum + epsilon)).mean()


def train_model(model, device, epochs=2, amp=True):
    images, masks = torch.rand(24, 3, 30, 30), torch.randint(0, 3, (24, 30, 30))
    train_loader = DataLoader(TensorDataset(images, masks), batch_size=4, shuffle=True, num_workers=1, pin_memory=True)
    optimizer = optim.RMSprop(model.parameters(), lr=1e-5, weight_decay=1e-8, momentum=0.999, foreach=True)
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=5)
    grad_scaler = torch.cuda.amp.GradScaler(enabled=amp)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        model.train()
        epoch_loss = 0
        for images, true_masks in train_loader:
            images = images.to(device=device, dtype=torch.float32, memory_format=torch.channels_last)
            true_masks = true_masks.to(device=device, dtype=torch.long)
            with torch.autocast(device.type if device.type != "mps" else "cpu", enabled=amp):
                masks_pred = model(images)
                loss = criterion(masks_pred, true_masks)
                loss += dice_loss(
                    F.softmax(masks_pred, dim=1).float(),
                    F.one_hot(true_masks, model.n_classes).permute(0, 3, 1, 2).float(),
                )
            optimizer.zero_grad(set_to_none=True)
            grad_scaler.scale(loss).backward()
            grad_scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            grad_scaler.step(optimizer)
            grad_scaler.update()
            epoch_loss += loss.item()
        for value in model.parameters():
            if not (torch.isinf(value) | torch.isnan(value)).any() and value.grad is not None:
                logging.debug("%s", value.grad.abs().max())
        scheduler.step(epoch_loss)
        Path("checkpoints").mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), f"checkpoints/epoch{epoch}.pth")
        logging.info(f"Checkpoint {epoch} saved!")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = UNet(3, 3).to(memory_format=torch.channels_last)
    model.to(device=device)
    train_model(model, device)
