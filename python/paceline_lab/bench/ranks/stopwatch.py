"""Measures the steps of a rank, and writes its results."""

from __future__ import annotations

import hashlib
import json
import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from paceline_lab.bench.ranks.rank_spec import RankSpec

EVENTS, WEIGHTS, FIRST_WEIGHTS = "steps.jsonl", "weights.npz", "first-weights.npz"
Weights = Mapping[str, "NDArray[np.float32]"]


def result_name(rank: int | str) -> str:
    """Return the file name of a rank's result; `*` for all."""
    return f"result-{rank}.json"


def cpu_s() -> float:
    """Return the CPU time of this process and of ended children, in seconds."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, kinds))


class Stopwatch:
    """The stopwatch of one rank."""

    def __init__(self, spec: RankSpec, rank: int, synchronize: Callable[[], object] = lambda: None) -> None:
        """`synchronize` waits for the device."""
        self.spec, self.rank = spec, rank
        self._synchronize = synchronize
        self._seconds: list[float] = []
        self._inputs: list[float] = []
        self._losses: list[float] = []
        self._parts: dict[str, list[float]] = {}
        self._began_cpu = self._began = 0.0
        self._used_cpu = self._lasted = 0.0
        self._folder = Path(spec.folder)
        self._events = (self._folder / EVENTS).open("a", encoding="utf-8") if rank == 0 else None

    def run(self, load: Callable[[int], Any], train: Callable[[Any], float], checked: Callable[[], None]) -> None:
        """Warm up and train. `load` returns the input of step k, `train` its loss; `checked` follows warm-up steps."""
        for step in range(self.spec.warmup):
            self._say(step=step - self.spec.warmup, loss=train(load(step)))
            checked()
        self._synchronize()
        self._began_cpu, self._began = cpu_s(), time.perf_counter()
        for step in range(self.spec.warmup, self.spec.steps):
            begin = time.perf_counter()
            batch = load(step)
            loaded = time.perf_counter()
            loss = train(batch)
            self._synchronize()
            now = time.perf_counter()
            self._seconds.append(now - begin)
            self._inputs.append(loaded - begin)
            self._losses.append(loss)
            self._say(step=step - self.spec.warmup, seconds=now - begin, loss=loss)
            if not self.spec.warmup:
                checked()
        self._lasted, self._used_cpu = time.perf_counter() - self._began, cpu_s() - self._began_cpu

    def part(self, name: str, work: Callable[[], Any]) -> Any:  # noqa: ANN401 - what the work gives
        """Time a part of a step without communication."""
        begin = time.perf_counter()
        made = work()
        self._synchronize()
        self._parts.setdefault(name, []).append(time.perf_counter() - begin)
        return made

    def write(self, weights: Weights, replica: int = 0, replicas: int = 1, **more: Any) -> None:  # noqa: ANN401
        """Write the results of this rank, and the weights of rank 0, with torch's names and layout.

        A process with several replicas writes those of each, which share its time.
        """
        rank = self.rank + replica
        if rank == 0:
            save(self._folder / WEIGHTS, weights)
        result = {
            "rank": rank,
            "seconds": self._seconds,
            "input_s": self._inputs,
            "losses": self._losses,
            "lasted_s": self._lasted,
            "cpu_s": self._used_cpu / replicas,
            "alone": self._parts,
            "digest": digest(weights),
            **more,
        }
        new = self._folder / f".{result_name(rank)}"
        new.write_text(json.dumps(result), encoding="utf-8")
        new.rename(self._folder / result_name(rank))

    def keep(self, weights: Weights) -> None:
        """Save rank 0's weights, which are compared between engines."""
        if self.rank == 0:
            save(self._folder / FIRST_WEIGHTS, weights)

    def _say(self, **event: float) -> None:
        if self._events is not None:
            self._events.write(json.dumps(event) + "\n")
            self._events.flush()


def save(path: Path, weights: Weights) -> None:
    """Write weights as .npz."""
    import numpy as np

    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in weights.items()}
    np.savez(path, **arrays)


def digest(weights: Weights) -> str:
    """Return a digest of names and bytes."""
    import numpy as np

    sha = hashlib.sha256()
    for name in sorted(weights):
        sha.update(name.encode() + b"\0" + np.ascontiguousarray(weights[name]).tobytes())
    return sha.hexdigest()
