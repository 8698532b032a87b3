"""Marks steps in the timeline: TensorFlow has no hooks for forward passes and optimizers, but a step waits once."""

from __future__ import annotations

import time

from paceline._core import Engine


class StepMarks:
    """Marks waits for gradients, each of which ends a step.

    The doctor recognizes steps by their forward passes and optimizers, so marks of no length stand for them: before the
    first gradient, and after the wait. What the optimizer, the input and the forward pass take is not told apart.
    """

    def __init__(self, engine: Engine) -> None:
        """Take the engine whose timeline is recorded."""
        self._engine = engine

    def remove(self) -> None:
        """Mark nothing any more; there are no hooks to remove."""

    def waited(self, began: int) -> None:
        """Mark that the script has waited for gradients since `began`, by time.monotonic_ns()."""
        now = time.monotonic_ns()
        self._engine.mark("wait", "wait for sums", began, now)
        self._engine.mark("optimizer", "optimizer", now, now + 1)
