"""A siamese network with a contrastive loss of its own, as the face verification tutorials have it."""

import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Variable
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __init__(self):
        self.x, self.y = torch.randn(240, 6), torch.randint(4, (240,))

    def __getitem__(self, index):
        other = (index * 7 + 3) % 240
        return self.x[index], self.x[other], torch.tensor([float(self.y[index] != self.y[other])])

    def __len__(self):
        return 240


class SiameseNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(6, 16), nn.ReLU(inplace=True), nn.Linear(16, 4))

    def forward_once(self, x):
        return self.fc(x.view(x.size()[0], -1))

    def forward(self, input1, input2):
        return self.forward_once(input1), self.forward_once(input2)


class ContrastiveLoss(nn.Module):
    def __init__(self, margin=2.0):
        super().__init__()
        self.margin = margin

    def forward(self, output1, output2, label):
        distance = F.pairwise_distance(output1, output2, keepdim=True)
        far = torch.pow(torch.clamp(self.margin - distance, min=0.0), 2)
        return torch.mean((1 - label) * torch.pow(distance, 2) + label * far)


torch.manual_seed(0)
net, criterion = SiameseNetwork(), ContrastiveLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=0.005)
step = 0
for _epoch in range(6):
    for _i, data in enumerate(DataLoader(Pairs(), shuffle=True, batch_size=24)):
        img0, img1, label = (Variable(one) for one in data)
        output1, output2 = net(img0, img1)
        optimizer.zero_grad()
        loss_contrastive = criterion(output1, output2, label)
        loss_contrastive.backward()
        optimizer.step()
        print(f"step {step} loss {loss_contrastive.data.item():.8f}")
        step += 1
torch.save(net.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
