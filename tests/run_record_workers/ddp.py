"""DistributedDataParallel with the backend that the command names; all-reduces begin while the backward pass runs."""

import sys

import torch
import torch.distributed as dist
from net import Net, train
from torch.nn.parallel import DistributedDataParallel

if sys.argv[1] == "paceline":
    import paceline.torch  # noqa: F401 - registers the backend
dist.init_process_group(sys.argv[1])
net = DistributedDataParallel(Net(), bucket_cap_mb=0.1)
train(net, torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9))
dist.destroy_process_group()
