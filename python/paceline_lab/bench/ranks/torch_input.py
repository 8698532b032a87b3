"""Image files for PyTorch: an ImageFolder, augmented as torchvision's reference script does, by loader processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from paceline_lab.bench.ranks.rank_spec import RankSpec

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and deviation of ImageNet's pixels, as torchvision's models expect (references/classification/presets.py)."""


def image_files(
    spec: RankSpec, rank: int, size: int, device: torch.device
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Return endless batches; each epoch is shuffled and divided among the ranks."""
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    steps = [
        transforms.RandomResizedCrop(spec.image_size),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, DEVIATION),
    ]
    images = ImageFolder(str(spec.data_dir), transforms.Compose(steps))
    sampler: DistributedSampler[int] = DistributedSampler(images, size, rank, seed=spec.seed, drop_last=True)
    workers = spec.loader_workers
    loader = DataLoader(
        images,
        spec.batch,
        sampler=sampler,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        drop_last=True,
        persistent_workers=workers > 0,
        multiprocessing_context="spawn" if workers else None,  # A fork in a running job would copy its threads.
    )
    torch.manual_seed(spec.seed + rank)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        for pixels, labels in loader:
            yield pixels.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        epoch += 1
