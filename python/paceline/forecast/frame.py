"""Results as flat rows: for CSV and for data frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from paceline.forecast.simulate import Result

if TYPE_CHECKING:
    import pandas as pd

_STRUCTURED = ("links", "critical_path", "notes", "busy")


def row(result: Result) -> dict[str, Any]:
    """The result's figures, and what most of its critical path is spent for; names carry units."""
    flat = {field.name: getattr(result, field.name) for field in fields(result) if field.name not in _STRUCTURED}
    total = sum(part.seconds for part in result.critical_path)
    flat["bottleneck"] = result.critical_path[0].part if total else None
    flat["bottleneck_share"] = result.critical_path[0].seconds / total if total else None
    flat["notes"] = "; ".join(result.notes)
    return flat


def to_csv(results: Sequence[Result]) -> str:
    """CSV with a header; a figure that does not apply is empty."""
    import csv
    import io

    out = io.StringIO()
    rows = [row(result) for result in results]
    writer = csv.DictWriter(out, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def to_frame(results: Sequence[Result]) -> pd.DataFrame:
    """One row per result; columns as of `--csv`. Needs pandas (`pip install 'paceline[plot]'`)."""
    import pandas as pd

    return pd.DataFrame([row(result) for result in results])
