"""A sampler that shares the rest of an epoch among the ranks of a new world."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from paceline.torch.hvd import world


class ElasticSampler(Sampler[int]):
    """The indices of a data set in an order that all ranks have alike, shared among them in turn.

    After each step call `record_batch`: what has been processed does not come again in this epoch, also if ranks die or
    come. As under torch's DistributedSampler each rank has as many indices; if they do not suffice, the first ones come
    twice. Give it to a `TorchState`, and call `set_epoch` at the end of each epoch.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        """Shuffled anew in each epoch, by `seed` and the epoch's number."""
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        self.processed_indices: set[int] = set()
        """In this epoch, by all ranks."""
        self.num_replicas, self.rank = 1, 0
        self.remaining_indices: list[int] = []
        self.indices: list[int] = []
        """What is left for this rank."""
        self.reset()

    @property
    def processed_num(self) -> int:
        """How many of this epoch have been processed, by all ranks."""
        return len(self.processed_indices)

    def set_epoch(self, epoch: int) -> None:
        """A new epoch: nothing of it has been processed."""
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Batch `batch_idx` of those since the last `reset` has been processed: by all ranks, as they step together."""
        share = slice(batch_idx * batch_size * self.num_replicas, (batch_idx + 1) * batch_size * self.num_replicas)
        self.record_indices(self._padded[share])

    def record_indices(self, indices: Iterable[int]) -> None:
        """These have been processed. Other ranks hear of it only when the state is synchronized."""
        self.processed_indices.update(indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """This rank's indices of a batch."""
        return self.indices[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def reset(self) -> None:
        """Share what has not been processed among the ranks of now."""
        if world.is_initialized():
            self.num_replicas, self.rank = world.size(), world.rank()
        order = self._order()
        self.remaining_indices = [index for index in order if index not in self.processed_indices]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        # With the epoch's first indices, so that ranks that went back get the same batches as if nothing had happened.
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
        """Epoch, and what has been processed in it."""
        return {"epoch": self.epoch, "processed_indices": sorted(self.processed_indices)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to that epoch and place, and share the rest among the ranks of now."""
        self.epoch = int(state_dict["epoch"])
        self.processed_indices = set(state_dict["processed_indices"])
        self.reset()

    def __iter__(self) -> Iterator[int]:
        """This rank's indices."""
        return iter(self.indices)

    def __len__(self) -> int:
        """How many this rank has."""
        return self.num_samples
