"""A classifier as it was written for PyTorch 0.3: Variables, .data, tensors made of batches by their types."""

import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Variable
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.fc = nn.Linear(4 * 9, 5)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv(x), 2))
        return F.log_softmax(self.fc(x.view(-1, 36)), dim=1)


torch.manual_seed(1)
use_cuda = torch.cuda.is_available()
train_loader = DataLoader(TensorDataset(torch.rand(200, 8, 8).double(), torch.randint(5, (200,)).int()), batch_size=20)
model = Net()
if use_cuda:
    model.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
step = 0
for _epoch in range(5):
    correct = 0
    for data, target in train_loader:
        if use_cuda:
            data, target = data.cuda(), target.cuda()
        data = Variable(torch.unsqueeze(data, dim=1).type(torch.FloatTensor), requires_grad=True)
        target = Variable(target.type(torch.LongTensor))
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        pred = output.data.max(1, keepdim=True)[1]
        correct += pred.eq(target.data.view_as(pred)).cpu().sum()
        saliency = torch.FloatTensor(data.grad.data.abs().cpu()).max()
        print(f"step {step} loss {loss.data.item():.8f} saliency {saliency:.5f}")
        step += 1
    print(f"accuracy {correct}/{len(train_loader.dataset)}")
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
