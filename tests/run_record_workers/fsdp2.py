"""FSDP2 with the given backend, every layer a unit; with `hsdp` after it, shards over pairs of ranks, replicated."""

import sys

import torch
import torch.distributed as dist
from net import Net, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

if sys.argv[1] == "paceline":
    import paceline.torch  # noqa: F401 - registers the backend
dist.init_process_group(sys.argv[1])
shape = (dist.get_world_size() // 2, 2) if "hsdp" in sys.argv else (dist.get_world_size(),)
mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
net = Net()
for layer in (*net.body, net.head):
    if any(True for _ in layer.parameters()):
        fully_shard(layer, mesh=mesh)
fully_shard(net, mesh=mesh)
train(net, torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9))
dist.destroy_process_group()
