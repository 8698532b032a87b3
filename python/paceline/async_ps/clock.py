"""Which iteration each worker has finished, and which of them may start another: stale-synchronous parallel.

Ho et al. 2013, More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server, section 2. A worker may
start iteration c when every other worker has finished iteration c - N - 1. Without a bound N, it always may.
"""

from __future__ import annotations


class Clock:
    """Finished iterations by worker. It knows no time and does not wait."""

    def __init__(self, workers: int, bound: int | None) -> None:
        """No worker has finished an iteration."""
        self.bound = bound
        self._finished: dict[int, int] = dict.fromkeys(range(workers), 0)

    def finished(self, worker: int) -> int:
        """Return the number of iterations that a worker has finished; 0 if it has left."""
        return self._finished.get(worker, 0)

    def finish(self, worker: int, iterations: int) -> None:
        """Note that a worker has finished so many iterations."""
        if worker in self._finished:
            assert iterations >= self._finished[worker], "iterations are finished in order"
            self._finished[worker] = iterations

    def leave(self, worker: int) -> None:
        """Wait for a worker no more."""
        self._finished.pop(worker, None)

    def missing(self, worker: int, iteration: int) -> list[int]:
        """Return the workers that keep this one from starting the iteration, in order; none if it may start."""
        if self.bound is None:
            return []
        least = iteration - self.bound
        return [other for other, done in self._finished.items() if other != worker and done < least]

    @staticmethod
    def most_stale(workers: int, bound: int) -> int:
        """Return the largest staleness of a gradient, in updates of its tensor by others, that a bound allows.

        When a worker pulls for iteration c, others have finished iterations up to c - N - 1 at least. Until it has
        finished c, they start none after c + N. So 2 N + 1 iterations of each other worker may come between.
        """
        return (2 * bound + 1) * (workers - 1)
