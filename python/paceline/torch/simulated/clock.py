"""The time of a GPU that is not there: the host launches kernels, which run one after the other behind it."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.torch.recorder.clock import Clock, Mark


class SimulatedClock(Clock):
    """Marks are the times at which a CUDA event on the stream would be reached."""

    def __init__(self, launch_s: float) -> None:
        """Take the host's time to launch one kernel."""
        self._launch_s = launch_s
        self._host_s = 0.0
        self._device_s = 0.0

    def run(self, seconds: float, *, launches: float = 1.0) -> None:
        """Launch a kernel of this duration."""
        self._host_s += launches * self._launch_s
        self._device_s = max(self._device_s, self._host_s) + seconds

    def synchronize(self) -> None:
        """Let the host wait for the device (`.item()`)."""
        self._host_s = max(self._host_s, self._device_s)

    def mark(self) -> Mark:
        """Return the time at which the stream has done all work so far."""
        return max(self._device_s, self._host_s)

    def seconds(self, marks: Sequence[Mark]) -> list[float]:
        """Return the time of every mark in seconds since the first one."""
        return [mark - marks[0] for mark in marks]
