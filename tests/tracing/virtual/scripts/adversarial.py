"""Two models and two optimizers that take turns, with a penalty on gradients."""

import torch
from torch import nn

generator = nn.Linear(8, 32).cuda()
critic = nn.Linear(32, 1).cuda()
of_generator = torch.optim.Adam(generator.parameters())
of_critic = torch.optim.Adam(critic.parameters())
for _ in range(100):
    for _ in range(2):
        real = torch.randn(4, 32).cuda().requires_grad_()
        fake = generator(torch.randn(4, 8, device="cuda")).detach()
        (slope,) = torch.autograd.grad(critic(real).sum(), real, create_graph=True)
        loss = (
            critic(fake).mean() - critic(real).mean() + (slope.norm(2, dim=1) - 1).square().mean()
        )
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
    loss = -critic(generator(torch.randn(4, 8, device="cuda"))).mean()
    of_generator.zero_grad()
    loss.backward()
    of_generator.step()
