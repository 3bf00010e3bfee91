"""A loop in the way of nanoGPT: random batches, accumulation, a fused optimizer, weights that are kept in a list, an
average of weights, norms by hand, and text at the end.
"""

import copy
import sys

import torch
import torch.nn.functional as F
from split_model import GPT, LENGTH
from torch import nn

torch.manual_seed(1)
data = torch.randint(24, (500,))
model = torch.compile(GPT()) if "compiled" in sys.argv else GPT()
weights = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(weights, lr=3e-3, fused=True)
average = None


def get_batch():
    places = torch.randint(len(data) - LENGTH - 1, (8,))
    return torch.stack([data[i : i + LENGTH] for i in places]), torch.stack(
        [data[i + 1 : i + LENGTH + 1] for i in places]
    )


for _step in range(3):
    for _micro in range(2):
        x, y = get_batch()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled="bf16" in sys.argv):
            _, loss = model(x, y)
        (loss / 2).backward()
    if "gradients" in sys.argv:
        by_hand = sum(p.grad.norm() ** 2 for p in model.parameters()) ** 0.5
        print(f"norm by hand {by_hand:.5f}")
    norm = nn.utils.clip_grad_norm_(weights, 0.3)
    if "gradients" in sys.argv:
        print(f"clipped {sum(p.grad.pow(2).sum().item() for p in model.parameters()) ** 0.5:.5f}")
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {loss.item():.5f} norm {norm:.5f}")
    if "average" in sys.argv:
        average = average or copy.deepcopy(model)
        with torch.no_grad():
            for kept, new in zip(average.parameters(), model.parameters(), strict=True):
                kept.mul_(0.9).add_(new, alpha=0.1)
        print(f"average {sum(p.square().sum().item() for p in average.parameters()):.4f}")
model.eval()
text = torch.zeros((1, 1), dtype=torch.long)
with torch.no_grad():
    for _ in range(5):
        logits, _ = model(text)
        text = torch.cat([text, torch.multinomial(F.softmax(logits[:, -1], -1), 1)], 1)
print(*text[0].tolist())
