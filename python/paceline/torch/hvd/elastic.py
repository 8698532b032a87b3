"""Horovod's elastic training, which is not there: every use says so, and what to do in its place."""

from __future__ import annotations


def __getattr__(name: str) -> object:
    """Raise NotImplementedError for `run`, `TorchState` and all else of Horovod's module."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise NotImplementedError(
        f"hvd.elastic.{name} is not supported yet: a job keeps its ranks; write checkpoints, and have the job "
        "restarted from the last one by torchrun --max-restarts or by the scheduler"
    )
