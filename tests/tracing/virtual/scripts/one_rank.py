"""DistributedDataParallel as ``torchrun --nproc-per-node=1`` starts it."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
assert dist.get_backend() == "nccl" and dist.is_nccl_available()
model = DistributedDataParallel(nn.Linear(128, 64).to(local_rank), device_ids=[local_rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(64, 128))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data), pin_memory=True)
for (x,) in loader:
    loss = model(x.to(local_rank, non_blocking=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss)
    dist.barrier()
names = [None] * dist.get_world_size()
dist.all_gather_object(names, {"rank": dist.get_rank()})
assert names[0] == {"rank": 0}
dist.destroy_process_group()
