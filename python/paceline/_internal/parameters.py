"""Parameters of a recording that its steps do not train."""

from __future__ import annotations

from collections.abc import Sequence

from paceline._internal import units


def not_trained(unused: Sequence[str], frozen: Sequence[str], size: int) -> list[str]:
    """Return lines on such parameters, which have `size` bytes; none if there are none."""
    lines = [
        f"{what}: {units.count(len(names), 'parameter')}, such as {', '.join(names[:3])}"
        for what, names in (("frozen", frozen), ("without a gradient", unused))
        if names
    ]
    return [*lines, f"these have {units.size(size)}, which ranks hold but do not reduce"] if lines else []
