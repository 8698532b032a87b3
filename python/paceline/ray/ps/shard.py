"""A parameter server, which holds one shard of the gradient, and how a gradient is cut."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from paceline.ray.worker import Actor

if TYPE_CHECKING:
    import numpy as np


def cuts(elements: int, shards: int) -> list[slice]:
    """Of a vector into shards, in order: as many elements in each, one more in the first ones if that cannot be."""
    least, more = divmod(elements, shards)
    lengths = (least + (shard < more) for shard in range(shards))
    return [slice(start, end) for start, end in pairwise(accumulate(lengths, initial=0))]


class Shard(Actor):
    """A parameter server. Ray makes an actor of it."""

    def __init__(self, workers: int) -> None:
        """The mean is over so many."""
        self._workers = workers

    def mean(self, *pieces: np.ndarray) -> np.ndarray:
        """Of what the nodes' roots send, float32[shard] each, in the order of the nodes; over all workers."""
        total = pieces[0].copy()  # what comes from the object store is read-only
        for piece in pieces[1:]:
            total += piece
        # As the runtime forms averages.
        total *= total.dtype.type(1 / self._workers)
        return total
