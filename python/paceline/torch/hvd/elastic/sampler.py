"""A sampler that shares the rest of an epoch among the ranks of a new world."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from paceline.hvd import world


class ElasticSampler(Sampler[int]):
    """Samples the indices of a data set in an order common to all ranks, which take turns.

    After each step call `record_batch`: processed samples are not repeated in this epoch, even if ranks die or join.
    As in torch's DistributedSampler, each rank has the same number of indices; if there are too few, the first ones are
    repeated. Give the sampler to a `TorchState`, and call `set_epoch` at the end of each epoch.

    Example:
        >>> sampler = hvd.elastic.ElasticSampler(range(4), shuffle=False)
        >>> sampler.record_batch(0, batch_size=3)
        >>> sampler.reset()
        >>> list(sampler)
        [3]
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        """Share the indices of a data set.

        Args:
            dataset: Any object with a length.
            shuffle: Whether to shuffle the indices anew in each epoch.
            seed: Seed of the shuffle, together with the number of the epoch; the same on all ranks.
        """
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        self.processed_indices: set[int] = set()
        """Indices processed in this epoch, by all ranks."""
        self.num_replicas, self.rank = 1, 0
        self._padded: list[int] = []
        self._recorded = 0
        self.remaining_indices: list[int] = []
        self.indices: list[int] = []
        """The remaining indices of this rank."""
        self.reset()

    @property
    def processed_num(self) -> int:
        """Number of samples of this epoch that all ranks together have processed."""
        return len(self.processed_indices)

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch, with nothing processed yet.

        Args:
            epoch: Number of the epoch.
        """
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that all ranks, which step together, have processed the next batch.

        Args:
            batch_idx: Number of the batch. As in Horovod it has no effect: batches are recorded in order, so that loops
                may count them from the beginning of the epoch or from the last `reset`.
            batch_size: Samples of a batch on one rank.
        """
        first, self._recorded = self._recorded, self._recorded + batch_size * self.num_replicas
        self.record_indices(self._padded[first : self._recorded])

    def record_indices(self, indices: Iterable[int]) -> None:
        """Record that samples have been processed. Other ranks learn of it only when the state is synchronized.

        Args:
            indices: Indices of the samples.
        """
        self.processed_indices.update(indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """Return this rank's indices of a batch.

        Args:
            batch_idx: Number of the batch since the last `reset`.
            batch_size: Samples of a batch on one rank.
        """
        return self.indices[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def reset(self) -> None:
        """Share the remaining indices among the current ranks."""
        self._recorded = 0
        if world.is_initialized():
            self.num_replicas, self.rank = world.size(), world.rank()
        order = self._order()
        self.remaining_indices = [index for index in order if index not in self.processed_indices]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        # Padded with the epoch's first indices, so that ranks that went back get the same batches as without a failure.
        lacking = self.total_size - len(self.remaining_indices)
        times = math.ceil(lacking / len(order)) if order else 0
        self._padded = self.remaining_indices + (order * times)[:lacking]
        self.indices = self._padded[self.rank : self.total_size : self.num_replicas]

    def _order(self) -> list[int]:
        length = len(self.dataset)
        if not self.shuffle:
            return list(range(length))
        generator = torch.Generator()
        generator.manual_seed(self.seed + self.epoch)
        return torch.randperm(length, generator=generator).tolist()

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the indices processed in it."""
        return {"epoch": self.epoch, "processed_indices": sorted(self.processed_indices)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Return to an epoch and a position in it, and share the rest among the current ranks.

        Args:
            state_dict: The result of `state_dict`.
        """
        self.epoch = int(state_dict["epoch"])
        self.processed_indices = set(state_dict["processed_indices"])
        self.reset()

    def __iter__(self) -> Iterator[int]:
        """Iterate over this rank's indices."""
        return iter(self.indices)

    def __len__(self) -> int:
        """Return the number of this rank's indices."""
        return self.num_samples
