"""Time of compressing gradients on this machine: the hooks themselves, on buckets of several sizes, alone.

Collectives are replaced by copies whose time does not count; what lies between them are the parts that forecasts have:
before the first exchange of a bucket, between two, and after the last. The costs of a bucket, a tensor, an element and
an element that arrives are fitted to all sizes and numbers of ranks, relative to the time, without negative ones.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

from paceline._internal.extras import install
from paceline.catalog.compression import Compression, parse
from paceline.errors import InvalidArgumentError

PARTS = ("compress", "between", "decompress")
COSTS = ("bucket_s", "tensor_s", "element_s", "received_s")
BUCKET = 25 * 1024 * 1024
"""Bytes of a bucket of DDP, for tables."""
_SIDE, _LARGE, _MANY = 64, 2048, 16
"""Rows and columns of a small and of a large matrix; small ones in a bucket."""
_WORLDS = (2, 4)
_WARM = 4
"""Runs before the measured ones: PowerSGD compresses from the third on."""


def needs_torch() -> None:
    """Raise InvalidArgumentError if torch is not installed."""
    try:
        import torch.distributed  # noqa: F401
    except ImportError:
        raise InvalidArgumentError(
            "--compression measures torch's hooks, and torch is not installed", remedy=install("torch")
        ) from None


@dataclass
class _Bucket:
    """A bucket as hooks see it."""

    buffer_: Any
    shapes: Sequence[tuple[int, ...]]

    def index(self) -> int:
        return 0

    def buffer(self) -> Any:  # noqa: ANN401 - a tensor
        return self.buffer_

    def gradients(self) -> list[Any]:
        parts = self.buffer_.split([math.prod(shape) for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def parameters(self) -> list[Any]:
        return [self.buffer_]

    def is_last(self) -> bool:
        return True


@dataclass
class _Done:
    """The handle of a collective that is over."""

    future: Any

    def get_future(self) -> Any:  # noqa: ANN401 - torch's
        return self.future


class _Ranks:
    """Stands for a process group, and notes when its collectives begin and end."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.times: list[float] = []

    def size(self) -> int:
        return self._size

    def _done(self, output: Any, begin: float) -> _Done:  # noqa: ANN401 - a tensor
        import torch

        future: Any = torch.futures.Future()
        future.set_result([output])
        work = _Done(future)
        self.times += [begin, time.perf_counter()]
        return work

    def all_reduce(self, tensor: Any, **_: object) -> _Done:  # noqa: ANN401
        return self._done(tensor, time.perf_counter())

    def all_gather(self, output: Any, sent: Any, **_: object) -> _Done:  # noqa: ANN401
        begin = time.perf_counter()
        output.view(self._size, -1).copy_(sent)
        return self._done(output, begin)

    def all_to_all(self, output: Any, sent: Any, **_: object) -> _Done:  # noqa: ANN401
        begin = time.perf_counter()
        output.copy_(sent)
        return self._done(output, begin)

    def replaced(self) -> Any:  # noqa: ANN401 - a context manager
        import torch.distributed

        return mock.patch.multiple(
            torch.distributed,
            all_reduce=self.all_reduce,
            all_gather_into_tensor=self.all_gather,
            all_to_all_single=self.all_to_all,
        )


def measure(name: str, repeats: int) -> dict[str, Any]:
    """Return the costs of a compression, as `compression_costs` of a cluster file has them, and `threads`."""
    import torch

    compression = parse(name)
    side = max(_SIDE, 8 * int(compression.parameter or 1)) if compression.method == "powersgd" else _SIDE
    sizes = [[(side, side)], [(side, side)] * _MANY, [(_LARGE, max(_LARGE, side))]]
    taken: dict[str, list[tuple[list[float], float]]] = {part: [] for part in PARTS}
    for world in _WORLDS:
        for shapes in sizes:
            seconds = _run(compression, shapes, world, repeats)
            for part in PARTS:
                taken[part].append((_counts(compression, part, shapes, world), seconds[part]))
    costs = {part: fit([counts for counts, _ in rows], [one for _, one in rows]) for part, rows in taken.items()}
    return {"method": compression.name, **costs, "threads": torch.get_num_threads()}


def _run(compression: Compression, shapes: Sequence[tuple[int, ...]], world: int, repeats: int) -> dict[str, float]:
    """Return the median seconds of each part of a bucket."""
    import torch

    from paceline.torch.compression import hook_of

    ranks: Any = _Ranks(world)
    state, hook = hook_of(compression.name, ranks)
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(sum(math.prod(shape) for shape in shapes), generator=generator)
    bucket = _Bucket(values.clone(), shapes)
    gaps: list[list[float]] = []
    with ranks.replaced():
        for turn in range(_WARM + repeats):
            bucket.buffer_.copy_(values)
            ranks.times = [time.perf_counter()]
            hook(state, bucket).wait()
            ranks.times.append(time.perf_counter())
            if turn >= _WARM:
                gaps.append([end - begin for begin, end in zip(ranks.times[::2], ranks.times[1::2], strict=True)])
    middle = -2 if compression.needs_order else -1
    parts = zip(*((sum(one[:middle]), sum(one[middle:-1]), one[-1]) for one in gaps), strict=True)
    return {part: statistics.median(one) for part, one in zip(PARTS, parts, strict=True)}


def _counts(compression: Compression, part: str, shapes: Sequence[tuple[int, ...]], world: int) -> list[float]:
    """Return what the costs of a part are multiplied by: crates/iteration/src/compression.rs."""
    elements, received = sum(math.prod(shape) for shape in shapes), 0
    if compression.method == "topk" and part == "decompress":
        received = world * math.ceil(elements * (compression.parameter or 1))
    if compression.method == "int8" and part == "between":
        elements, received = -(-elements // world), elements
    return [1.0, float(len(shapes)), float(elements), float(received)]


def fit(counts: Sequence[Sequence[float]], seconds: Sequence[float]) -> dict[str, float]:
    """Return the costs, at least 0, that differ least from these times, relatively; those of 0 are left out."""
    import numpy as np

    left = [column for column in range(len(COSTS)) if any(row[column] for row in counts)]
    times = np.array(seconds)
    fitted: dict[str, float] = {}
    if not times.any():
        return fitted
    weights = 1 / np.maximum(times, times.max() * 1e-6)
    while left:
        matrix = np.array([[row[column] for column in left] for row in counts]) * weights[:, None]
        scale = np.linalg.norm(matrix, axis=0)
        values = np.linalg.lstsq(matrix / scale, times * weights, rcond=None)[0] / scale
        if (values >= 0).all():
            return {COSTS[column]: float(value) for column, value in zip(left, values, strict=True) if value > 0}
        left.pop(int(np.argmin(values * scale)))
    return fitted


def slowest(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the costs of the rank that takes longest for a large bucket."""
    return max(answers, key=lambda one: sum(of_bucket(one).values()))


def of_bucket(costs: dict[str, Any], size: int = BUCKET, world: int = 2) -> dict[str, float]:
    """Return the seconds of each part for a bucket of `size` bytes of float32 in one tensor."""
    compression = parse(costs["method"])
    seconds = {}
    for part in PARTS:
        counts = _counts(compression, part, [(size // 4,)], world)
        seconds[part] = sum(count * costs[part].get(name, 0.0) for name, count in zip(COSTS, counts, strict=True))
    return seconds
