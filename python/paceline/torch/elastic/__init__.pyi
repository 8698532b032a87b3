"""Horovod's `horovod.torch.elastic`: at run time the same module as `paceline.torch.hvd.elastic`."""

from paceline.torch.hvd.elastic import *
