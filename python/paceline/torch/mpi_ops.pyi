"""Horovod's `horovod.torch.mpi_ops`: at run time the same module as `paceline.torch.hvd`."""

from paceline.hvd.api import *
from paceline.torch.hvd import *
