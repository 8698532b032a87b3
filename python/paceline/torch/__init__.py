"""Paceline for PyTorch: the torch.distributed backend "paceline", Horovod's API, and the recorder of training steps.

Importing this registers the backend, so that `torch.distributed.init_process_group("paceline")` works.
`import paceline.torch as hvd` provides the API of `import horovod.torch as hvd` (`paceline.torch.hvd`).
"""

from paceline._internal.extras import cannot_import
from paceline._internal.lazy import also_as, public_names
from paceline._internal.recording import Overhead, RecordingError, Summary

try:
    import torch.distributed
except ImportError as error:
    cannot_import("paceline.torch", "PyTorch", "torch", error)

from paceline.torch.recorder.autograd_graph import AutogradGraph, autograd_graph, observed_order
from paceline.torch.recorder.clock import Clock, CpuClock, CudaClock
from paceline.torch.recorder.recorder import Recorder, record

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
    from paceline.hvd.api import *  # noqa: F403 - for type checkers, which do not see through two lists
    from paceline.torch import compression as compression
    from paceline.torch import hvd
    from paceline.torch.backend.completion import in_order
    from paceline.torch.backend.hook import strategy_hook
    from paceline.torch.backend.register import register as _register
    from paceline.torch.diloco import DiLoCo
    from paceline.torch.hvd import *  # noqa: F403 - what Horovod's users import, listed there

    _register()
    # Where Horovod's users import from.
    also_as(
        {
            "paceline.torch.elastic": "paceline.torch.hvd.elastic",
            "paceline.torch.elastic.sampler": "paceline.torch.hvd.elastic.sampler",
            "paceline.torch.elastic.state": "paceline.torch.hvd.elastic.torch_state",
            "paceline.torch.functions": "paceline.torch.hvd",
            "paceline.torch.mpi_ops": "paceline.torch.hvd",
            "paceline.torch.optimizer": "paceline.torch.hvd.optimizer",
            "paceline.torch.sync_batch_norm": "paceline.torch.hvd.sync_batch_norm",
        }
    )
    __all__ += ["DiLoCo", "compression", "in_order", "strategy_hook"]
    __all__ += hvd.__all__

__dir__ = public_names(__name__)
