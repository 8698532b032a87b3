"""Horovod's optimizer, which waits for the gradients at the start of its step."""

import paceline.torch as hvd
import torch
from net import Net, train

hvd.init()
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
train(net, hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters()))
hvd.shutdown()
