"""Imported once by the process from which the ranks start: what takes seconds to import. Starts no thread."""

import gc

import numpy
import paceline.torch
import torch
import torch._dynamo
import torch.distributed._functional_collectives
import torch.distributed.algorithms.ddp_comm_hooks.default_hooks
import torch.distributed.fsdp
import torch.distributed.tensor
import torch.nn.parallel

gc.freeze()  # so that a collection in a rank does not touch, and thereby copy, all of this
