"""The output of `--verbose` about the strategies measured as fastest."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def log_choices(choices: Sequence[tuple[int, str]]) -> None:
    """Print `choices`, pairs of a size in bytes and the strategy up to it, to standard error."""
    for index, (most, strategy) in enumerate(choices):
        last = "larger" if index else "of every size"
        size = last if most >= 1 << 63 else f"up to {most >> 10} KiB"
        print(f"paceline: all-reduces {size}: {strategy}", file=sys.stderr)
