"""Horovod's `horovod.torch.optimizer`: at run time the same module as `paceline.torch.hvd.optimizer`."""

from paceline.torch.hvd.optimizer import DistributedOptimizer as DistributedOptimizer
