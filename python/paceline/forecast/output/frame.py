"""Results as flat rows, for CSV files and data frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from paceline._internal.extras import cannot_import
from paceline.catalog.compression import OPTIONS as COMPRESSION
from paceline.forecast.result import COORDINATED, MODELED, REQUESTED, Result

if TYPE_CHECKING:
    import pandas as pd

_NOT_FLAT = (
    *(
        "links",
        "critical_path",
        "notes",
        "busy",
        "interval",
        "ground",
        "sharded",
        "staggering",
        "asynchronous",
        "server_shares",
    ),
)


def row(result: Result) -> dict[str, Any]:
    """Return the figures of a result and its bottleneck: the largest part of its critical path. Names carry units."""
    left_out = _NOT_FLAT if result.coordinator is not None else (*_NOT_FLAT, *COORDINATED)
    left_out = left_out if result.mfu is not None else (*left_out, *MODELED)
    left_out = (*left_out, *(name for name in (*COMPRESSION, *REQUESTED) if getattr(result, name) is None))
    flat = {field.name: getattr(result, field.name) for field in fields(result) if field.name not in left_out}
    total = sum(part.seconds for part in result.critical_path)
    flat["bottleneck"] = result.critical_path[0].part if total else None
    flat["bottleneck_share"] = result.critical_path[0].seconds / total if total else None
    flat["interval_low_s"] = None if result.interval is None else result.interval.low_s
    flat["interval_high_s"] = None if result.interval is None else result.interval.high_s
    if result.staggering is not None:
        for part, spread in (
            ("pull", result.staggering.pull),
            ("backward", result.staggering.backward),
            ("push", result.staggering.push),
        ):
            if spread is not None:
                flat |= {f"{part}_min_s": spread.min_s, f"{part}_median_s": spread.median_s}
                flat |= {f"{part}_max_s": spread.max_s}
    if result.sharded is not None:
        own = result.sharded
        flat |= {"sharding": own.sharding, "passes": own.passes, **own.exposed.to_dict(), **own.memory.to_dict()}
        flat |= {"capacity_bytes": own.capacity_bytes, "fits": own.fits}
    flat["notes"] = "; ".join(result.notes)
    return flat


def to_csv(results: Sequence[Result], more: Mapping[str, object] | None = None) -> str:
    """Return the results as CSV with a header and further columns; a figure that does not apply is empty."""
    import csv
    import io

    out = io.StringIO()
    rows = [row(result) | dict(more or {}) for result in results]
    columns = list(dict.fromkeys(name for one in rows for name in one))
    writer = csv.DictWriter(out, fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def to_frame(results: Sequence[Result]) -> pd.DataFrame:
    """Return the results as a pandas data frame with one row each and the columns of `--csv`.

    Args:
        results: Results of `simulate` or `sweep`.

    Returns:
        The data frame; times in seconds, rates in bits per second, sizes in bytes, as the column names say.

    Raises:
        ImportError: pandas, of the extra `plot`, is not installed.

    Example:
        >>> frame = paceline.to_frame(paceline.sweep("resnet-50", workers=[2, 4], strategy="ring"))
        >>> list(frame["workers"])
        [2, 4]
    """
    try:
        import pandas as pd
    except ImportError as error:
        cannot_import("to_frame", "pandas", "plot", error)

    return pd.DataFrame([row(result) for result in results])
