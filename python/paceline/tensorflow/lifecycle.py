"""`init` for TensorFlow and Keras, which refuses what their optimizers cannot do before any rank waits for another."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.hvd import lifecycle
from paceline.hvd.process_sets import ProcessSet
from paceline.hvd.world import is_initialized
from paceline.job.settings import Settings

__all__ = ["init", "refuse_asynchronous"]


def refuse_asynchronous(settings: Settings) -> None:
    """Raise InvalidArgumentError if servers would have to run TensorFlow's optimizer."""
    settings.refuse_asynchronous("TensorFlow", "{this=ps} (synchronous, with servers)")


def init(comm: Iterable[int] | None = None, process_sets: Iterable[ProcessSet] | str | None = None) -> None:
    """Join the job that this process was started for, as `paceline.torch.init` does. Idempotent.

    Args:
        comm: Ranks of the launcher that work together, including this one. By default all ranks.
        process_sets: Process sets to add at once, or `"dynamic"`, which has no effect.

    Raises:
        InvalidArgumentError: An environment variable is invalid, or the strategy is asynchronous.
        JobError: Ranks did not connect in time; the message names them.
        ValueError: `comm` or `process_sets` is invalid.

    Example:
        >>> hvd.init()
    """
    if not is_initialized():
        refuse_asynchronous(Settings.from_environment(None))
    lifecycle.init(comm, process_sets)
