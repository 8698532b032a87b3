"""Paceline for PyTorch: the torch.distributed backend "paceline", and the recorder of training steps.

Importing this registers the backend, so that `torch.distributed.init_process_group("paceline")` works.
"""

import torch.distributed

from paceline.torch.clock import Clock, CpuClock, CudaClock
from paceline.torch.errors import RecordingError
from paceline.torch.overhead import Overhead
from paceline.torch.recorder import Recorder, record
from paceline.torch.summary import Summary

__all__ = ["Clock", "CpuClock", "CudaClock", "Overhead", "Recorder", "RecordingError", "Summary", "record"]

if torch.distributed.is_available():
    from paceline.torch.backend import register as _register
    from paceline.torch.hook import strategy_hook

    _register()
    __all__ += ["strategy_hook"]
