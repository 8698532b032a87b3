"""DistributedDataParallel with the backend given on the command line; all-reduces begin during the backward pass."""

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
