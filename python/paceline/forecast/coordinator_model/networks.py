"""Published values of networks under Horovod on Summit, and what follows from them: networks.json.

S. Pumma, D. Buono, F. Checconi, X. Que, W. Feng, "Alleviating Load Imbalance in Data Processing for Large-Scale Deep
Learning": the share of an iteration in which input pipeline and graph scheduling are both active; how long one
traversal of the graph takes, and its percentage of a complete training on 12,288 GPUs, which gives the iteration time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_FILE = Path(__file__).parent / "networks.json"
# A complete training on ImageNet's 1,281,167 images at 32 on each of 12,288 GPUs. Assumed: 90 epochs, as is usual, each
# of whole batches only, as a loop over `images // batch` steps has them; without that loss they are 293 iterations.
ITERATIONS = 90 * (1_281_167 // (32 * 12_288))


@dataclass(frozen=True)
class Network:
    """A network of the publication."""

    network: str
    # Of the graph of a training step.
    graph_nodes: int
    # None: not published.
    contention_share: float | None
    traversal_ms: float
    # Published with two decimals; None where it is a misprint.
    traversal_percent: float | None
    # One V100, batch 32, mixed precision, XLA.
    compute_ms: float
    # published; inferred from the traversal's share; rate: the trace's own, scaled as ResNet-50's is.
    compute_source: str
    # The same if a training had round(90 epochs) iterations; None where it does not depend on that.
    compute_ms_other: float | None = None

    def inferred_iteration_s(self, iterations: int = ITERATIONS) -> float | None:
        """Return the seconds of an iteration on 12,288 GPUs in graph order, if a training had so many of them."""
        if self.traversal_percent is None:
            return None
        return self.traversal_ms * 1e-3 / (self.traversal_percent / 100) / iterations


@lru_cache(maxsize=1)
def networks() -> dict[str, Network]:
    """Return the networks by the names of the built-in traces, in the publication's order."""
    rows = [Network(**row) for row in json.loads(_FILE.read_text(encoding="utf-8"))]
    return {row.network: row for row in rows}


def contention_share(trace: str) -> float | None:
    """Return the share of the network of this name, if it was published."""
    known = networks().get(trace)
    return known.contention_share if known else None
