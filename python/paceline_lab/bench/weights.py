"""Compares the weights of engines."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline_lab.bench.ranks.stopwatch import FIRST_WEIGHTS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Weights = dict[str, NDArray[np.float32]]


def read(folder: Path) -> Weights:
    """Return the weights that rank 0 saved after the first steps."""
    import numpy as np

    with np.load(folder / FIRST_WEIGHTS) as kept:
        return {name: kept[name] for name in kept.files}


def difference(ours: Weights, theirs: Weights, initial: Weights) -> float | None:
    """Return the 2-norm of the difference divided by that of the change by training. Raises ValueError for other names.

    None if training diverged: weights that are not numbers cannot be compared.
    """
    if set(ours) != set(theirs) or set(ours) != set(initial):
        raise ValueError(f"the names of the weights differ: {', '.join(sorted(set(ours) ^ set(theirs))[:3])}")
    import numpy as np

    with np.errstate(all="ignore"):
        moved = _norm({name: theirs[name] - initial[name] for name in theirs})
        apart = _norm({name: ours[name] - theirs[name] for name in theirs})
    if not (math.isfinite(moved) and math.isfinite(apart)):
        return None
    return apart / moved if moved else float(apart > 0)


def _norm(arrays: dict[str, Any]) -> float:
    import numpy as np

    return float(np.sqrt(sum(float(np.square(each.astype("float64")).sum()) for each in arrays.values())))
