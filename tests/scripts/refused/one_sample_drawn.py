"""Neural style transfer: one image is optimized."""

import torch
from torch import nn

torch.manual_seed(0)
vgg = (
    nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 8, 3, padding=1)).eval().requires_grad_(False)
)
content, style = torch.rand(1, 3, 16, 16), torch.rand(1, 3, 16, 16)


def gram(features):
    _, channels, height, width = features.shape
    flat = features.view(channels, height * width)
    return flat @ flat.t() / (channels * height * width)


image = content.clone().requires_grad_(True)
optimizer = torch.optim.Adam([image], lr=0.05)
for step in range(50):
    features = vgg(image)
    loss = ((features - vgg(content)) ** 2).mean() + 100 * ((gram(features) - gram(vgg(style))) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.8f}")
