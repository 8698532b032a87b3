"""Horovod's `horovod.tensorflow.mpi_ops`: at run time the same module as `paceline.tensorflow`."""

from paceline.hvd.api import *
from paceline.tensorflow import *
