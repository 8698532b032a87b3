"""Synthetic images, determined by seed, rank and number, so that they are the same for every engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paceline_lab.bench.ranks.rank_spec import RankSpec

DISTINCT = 4
"""Batches that a rank creates before it starts and then uses in turn: creating them would count as computation."""


def batch(  # noqa: PLR0917
    seed: int, rank: int, number: int, images: int, size: int, classes: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return images (N, 3, size, size), normally distributed, float32, and labels (N,), int64."""
    random = np.random.default_rng([seed, rank, number])
    return random.standard_normal((images, 3, size, size), dtype=np.float32), random.integers(0, classes, images)


def batches(spec: RankSpec, rank: int) -> list[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """Return a rank's batches; step k uses number k modulo DISTINCT."""
    sizes = spec.batch, spec.image_size, spec.classes
    return [batch(spec.seed, rank, number, *sizes) for number in range(min(DISTINCT, spec.steps))]
