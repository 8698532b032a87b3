"""Paceline for PyTorch: recording what a training step computes and when its gradients are ready."""

from paceline.torch.clock import Clock, CpuClock, CudaClock
from paceline.torch.errors import RecordingError
from paceline.torch.overhead import Overhead
from paceline.torch.recorder import Recorder, record
from paceline.torch.summary import Summary

__all__ = ["Clock", "CpuClock", "CudaClock", "Overhead", "Recorder", "RecordingError", "Summary", "record"]
