"""A critic with a gradient penalty on interpolations by fixed steps: no random number is drawn in the loop."""

import sys

import torch
from torch import autograd, nn
from torch.utils.data import DataLoader, TensorDataset


def gradient_penalty(critic, real, fake, alpha):
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    scores = critic(mixed)
    (grads,) = autograd.grad(scores, mixed, torch.ones_like(scores), create_graph=True)
    return ((grads.norm(2, dim=1) - 1) ** 2).mean()


def main(out):
    torch.manual_seed(7)
    critic = nn.Sequential(nn.Linear(3, 16), nn.Softplus(), nn.Linear(16, 1))
    generator = nn.Linear(3, 3)
    opt_c = torch.optim.RMSprop(critic.parameters(), lr=5e-4)
    opt_g = torch.optim.RMSprop(generator.parameters(), lr=5e-4)
    real = torch.randn(240, 3) + 1
    noise = torch.randn(240, 3)
    alphas = torch.rand(240, 1)
    step = 0
    for _ in range(6):
        for real_batch, z, alpha in DataLoader(TensorDataset(real, noise, alphas), batch_size=24, shuffle=True):
            fake = generator(z).detach()
            penalty = gradient_penalty(critic, real_batch, fake, alpha)
            loss_c = critic(fake).mean() - critic(real_batch).mean() + 10 * penalty
            opt_c.zero_grad()
            loss_c.backward()
            opt_c.step()
            if step % 5 == 4:
                loss_g = -critic(generator(z)).mean()
                opt_g.zero_grad()
                loss_g.backward()
                opt_g.step()
            print(f"step {step} loss {loss_c.item():.8f} penalty {penalty.item():.6f}")
            step += 1
    torch.save([critic.state_dict(), generator.state_dict()], out)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "model.pt")
