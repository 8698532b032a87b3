"""A rank that ends, raises or stops in the middle of a backward pass; what the others see."""

import os
import signal
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

AT_STEP = 2


def _misfortune(how):
    if how == "raise":
        raise ValueError("the loss is not a number")
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[how])


def in_backward(rank, size, how, folder):
    """Rank 1 fails; the others record the error and the seconds until it came."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 300)))
    step = 0

    def hook(gradient):
        if rank == 1 and step == AT_STEP:
            _misfortune(how)
        return gradient

    model.module[0].weight.register_hook(hook)
    start = time.monotonic()
    try:
        for step in range(AT_STEP + 3):  # noqa: B007
            start = time.monotonic()
            model(torch.randn(4, 300)).sum().backward()
    except RuntimeError as error:
        Path(folder, str(rank)).write_text(f"{time.monotonic() - start}\n{error}")
        return
    raise AssertionError("nothing was raised")
