"""Software and hardware of a recording, for the provenance of a trace."""

from __future__ import annotations

import torch
from torch import nn

from paceline._internal.system import cpu_name, own_version
from paceline.errors import InvalidArgumentError
from paceline.job.rank_environment import rank_environment
from paceline.torch.recorder.modules import has_fsdp2


def job_size() -> int:
    """Return the number of ranks of this process's job, from torch or the launcher; 1 by default."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    try:
        launched = rank_environment().size
    except InvalidArgumentError:  # A recording does not report malformed variables.
        launched = 1
    return max(launched, torch.distributed.get_world_size() if distributed else 1)


def synchronizing_library(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Return the library that synchronizes gradients, as `paceline list libraries` has it; empty if none is known."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        backend = str(torch.distributed.get_backend(model.process_group))
        return "ddp-gloo" if backend == "gloo" else "ddp"
    if has_fsdp2(model) and torch.distributed.is_initialized() and str(torch.distributed.get_backend()) == "gloo":
        return "ddp-gloo"
    # Horovod's optimizer and the one that Paceline has in its place.
    return "horovod" if hasattr(optimizer, "skip_synchronize") else ""


def device_name(device: torch.device) -> str:
    """Return the model name of the GPU or CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return cpu_name()


def describe_environment(device: torch.device) -> str:
    """Return e.g. `paceline 0.1.0 with torch 2.15.0 on AMD EPYC 7763, 8 threads`."""
    threads = torch.get_num_threads()
    on = device_name(device)
    if device.type == "cpu":
        on += f", {threads} thread{'s' if threads != 1 else ''}"
    return f"paceline {own_version()} with torch {torch.__version__} on {on}"
