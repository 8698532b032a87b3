"""Requests gloo in every way that torch offers, and prints what it got."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def reduced(group=None):
    own = torch.full((3,), float(dist.get_rank() + 1))
    dist.all_reduce(own, group=group)
    return own.tolist()


def made_by(group):
    """Which backend moves the tensors: the class of the group, or of the group it wraps."""
    below = group if type(group) is not dist.ProcessGroup else group._get_backend(torch.device("cpu"))
    return type(below).__name__


dist.init_process_group(sys.argv[1])
world, size = dist.group.WORLD, dist.get_world_size()
groups = [world, dist.new_group(backend="gloo"), dist.new_group([0, 1]), init_device_mesh("cpu", (size,)).get_group()]
for group in groups:
    assert reduced(group) == [sum(range(1, size + 1))] * 3
assert dist.get_backend(groups[1]) == "gloo"
assert sys.argv[1] != "gloo" or dist.get_backend() == dist.Backend.GLOO
dist.monitored_barrier()
every = [None] * size
dist.all_gather_object(every, dist.get_rank())
assert every == list(range(size))
work = dist.all_reduce(torch.ones(1), async_op=True)
assert work.get_future().wait()[0].item() == size
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
model(torch.full((1, 4), float(dist.get_rank()))).sum().backward()
assert model.module.weight.grad.tolist() == [[(size - 1) / 2] * 4]
print(f"made by {sorted({made_by(group) for group in groups})}\n", end="")
# Groups of torch's that outlive the script may abort it: their threads are still running.
del model, groups
dist.destroy_process_group()
