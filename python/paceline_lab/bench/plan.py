"""The plan of a benchmark: a model, engines and numbers of ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from paceline.errors import InvalidArgumentError

from paceline_lab.bench.engines import Engine

WEAK, STRONG = "weak", "strong"
SHORTEST_ALONE, LONGEST_ALONE = 2, 3
_LONGEST_WAIT_S = 300.0
_IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""File suffixes that torchvision's ImageFolder accepts."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The measurement that the options describe."""

    engines: Sequence[Engine]
    workers: Sequence[int]
    model: str
    batch_size: int
    num_batches: int
    """Measured steps over all rounds."""
    num_warmup_batches: int
    rounds: int
    scaling: str = WEAK
    seed: int = 1
    learning_rate: float = 0.001
    momentum: float = 0.9
    image_size: int = 224
    classes: int = 1000
    data_dir: Path | None = None
    loader_workers: int = 2
    limit_s: float = 900.0
    fusion_bytes: int | None = None

    def check(self) -> None:
        """Check the plan. Raises InvalidArgumentError."""
        if self.num_batches < self.rounds:
            raise InvalidArgumentError(
                f"--num-batches: must be at least --rounds, {self.rounds}, not {self.num_batches}",
                remedy=f"--num-batches {self.rounds}",
            )
        for workers in self.workers if self.scaling == STRONG else []:
            if self.batch_size % workers:
                raise InvalidArgumentError(
                    f"--scaling strong: {workers} ranks do not divide --batch-size {self.batch_size}",
                    remedy=f"--batch-size {max(1, self.batch_size // workers) * workers}",
                )
        if self.data_dir is not None and not self.data_dir.is_dir():
            raise InvalidArgumentError(
                f"--data-dir {self.data_dir}: no such folder",
                remedy="a folder with a subfolder for each class, or drop --data-dir",
            )
        if self.data_dir is not None:
            self._check_images(self.data_dir)

    def _check_images(self, folder: Path) -> None:
        """Require a batch for each rank; otherwise loaders would wait forever. Raises InvalidArgumentError."""
        try:
            kinds = [each for each in folder.iterdir() if each.is_dir()]
            if not 1 <= len(kinds) <= self.classes:
                raise InvalidArgumentError(
                    f"--data-dir {folder}: must have 1-{self.classes} folders, one per class, not {len(kinds)}",
                    remedy="drop --data-dir",
                )
            workers = max(self.workers, key=lambda workers: workers * self.batch_of(workers))
            batch = self.batch_of(workers)
            need = workers * batch
            files = (name for kind in kinds for _, _, names in os.walk(kind, followlinks=True) for name in names)
            images = sum(1 for _ in islice((name for name in files if name.lower().endswith(_IMAGES)), need))
        except OSError as error:
            raise InvalidArgumentError(
                f"--data-dir {error.filename or folder}: {error.strerror}", remedy="drop --data-dir"
            ) from None
        if images < need:
            raise InvalidArgumentError(
                f"--data-dir {folder}: {workers} ranks with {batch} per step need {need} images, not {images}",
                remedy="a smaller --batch-size, or drop --data-dir",
            )

    def batch_of(self, workers: int) -> int:
        """Return the batch size of each rank."""
        return self.batch_size // workers if self.scaling == STRONG else self.batch_size

    @property
    def batch_in_words(self) -> str:
        """The batch size in words, for a title."""
        return f"batch {self.batch_size} {'of all ranks together' if self.scaling == STRONG else 'per rank'}"

    def batches_of(self, number: int) -> int:
        """Measured steps per round."""
        return self.num_batches // self.rounds + (number < self.num_batches % self.rounds)

    @property
    def alone(self) -> int:
        """Steps per round in which ranks compute without communication."""
        return max(SHORTEST_ALONE, min(LONGEST_ALONE, self.num_batches // self.rounds))

    @property
    def wait_s(self) -> float:
        """Timeout for an engine's own waits."""
        return min(self.limit_s, _LONGEST_WAIT_S)
