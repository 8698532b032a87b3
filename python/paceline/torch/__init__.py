"""Paceline for PyTorch: the torch.distributed backend "paceline", Horovod's API, and the recorder of training steps.

Importing this registers the backend, so that `torch.distributed.init_process_group("paceline")` works.
`import paceline.torch as hvd` gives what `import horovod.torch as hvd` does (`paceline.torch.hvd`).
"""

import torch.distributed

from paceline.torch.clock import Clock, CpuClock, CudaClock
from paceline.torch.errors import RecordingError
from paceline.torch.graph import AutogradGraph, autograd_graph, observed_order
from paceline.torch.overhead import Overhead
from paceline.torch.recorder import Recorder, record
from paceline.torch.summary import Summary

__all__ = [
    "AutogradGraph",
    "Clock",
    "CpuClock",
    "CudaClock",
    "Overhead",
    "Recorder",
    "RecordingError",
    "Summary",
    "autograd_graph",
    "observed_order",
    "record",
]

if torch.distributed.is_available():
    from paceline.torch import hvd
    from paceline.torch.backend import register as _register
    from paceline.torch.completion import in_order
    from paceline.torch.hook import strategy_hook
    from paceline.torch.hvd import *  # noqa: F403 - what Horovod's users import, listed there

    _register()
    __all__ += ["in_order", "strategy_hook"]
    __all__ += hvd.__all__
