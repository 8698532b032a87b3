"""Published rows and their forecasts, as JSON, as CSV and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline._internal import units
from paceline._internal.console import Column, render, wrapped
from paceline.forecast.likeness import LEVEL

from paceline_lab.studies.published.data import Kind, Row
from paceline_lab.studies.published.rows import Forecast
from paceline_lab.studies.report import csv_of

_KEPT = ("id", "system", "sync", "model", "gpu", "gpus", "nodes", "batch", "posed", "servers", "source", "note")


@dataclass(frozen=True)
class Skip:
    """A row without a forecast, and the reason."""

    row: Row
    reason: str


@dataclass(frozen=True)
class Published:
    """The output of the whole study."""

    title: str
    rows: Sequence[Forecast]
    skipped: Sequence[Skip]
    figures: Sequence[str] = ()
    without_source: Mapping[str, float] = field(default_factory=dict)
    """Errors of the built-in rows with constants that were fitted without their sources."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it. `published`, `forecast`, `low` and `high` are in the row's own metric."""
        return {
            "rows": [_plain(it) for it in self.rows],
            "skipped": [{**_named(it.row), "published": it.row.measured, "reason": it.reason} for it in self.skipped],
            "summary": {name: _numbers(rows) for name, rows in self._parts() if rows},
            "intervals": _coverage(self.rows),
            **({"without_source": without} if (without := self.without_source) else {}),
            "figures": list(self.figures),
        }

    def to_csv(self) -> str:
        """Return the rows as CSV."""
        words = ({"assumed": "; ".join(it.assumed), "inside_bounds": str(it.inside).lower()} for it in self.rows)
        return csv_of([{**_flat(it), **own} for it, own in zip(self.rows, words, strict=True)], ["line"])

    def text(self, width: int) -> list[str]:
        """Return tables by source, summary and skipped rows as lines for people."""
        import click

        lines = [*wrapped(self.title, width), ""]
        for name in dict.fromkeys(it.row.id for it in self.rows):
            rows = [it for it in self.rows if it.row.id == name]
            title = f"{name}: {rows[0].row.source}" if name else rows[0].row.source
            lines += [click.style(line, bold=True) for line in wrapped(title, width)]
            lines += [*_table(rows), ""]
        for name, rows in self._parts():
            if rows:
                figures = _numbers(rows)
                lines.append(
                    f"{name}: {figures['rows']} rows, mean error {figures['mean']:.1%}, "
                    f"greatest {figures['worst']:.1%}; {figures['inside_bounds']} within the ring's bounds"
                )
        lines += [line for sentence in self._trust() for line in wrapped(sentence, width)]
        if self.skipped:
            lines.append(f"{len(self.rows)} of {len(self.rows) + len(self.skipped)} rows are forecast")
            lines += ["", click.style("Not forecast", bold=True)]
            for it in self.skipped:
                what = (
                    f"line {it.row.line}, {it.row.id} {it.row.system}, {it.row.model}, {it.row.gpus} GPUs: {it.reason}"
                )
                lines += wrapped(what, width)
        assumed = dict.fromkeys(note for it in self.rows for note in it.assumed)
        lines += [line for note in assumed for line in wrapped(f"note: assumed if a row does not say: {note}", width)]
        return lines + [f"wrote {figure}" for figure in self.figures]

    def _trust(self) -> list[str]:
        """Return sentences on forecasts without the rows' own sources, and on the intervals."""
        lines = []
        if without := self.without_source:
            lines.append(
                f"with constants fitted without a row's source: {without['rows']} rows, mean error "
                f"{without['mean']:.1%}, greatest {without['worst']:.1%}"
            )
        covered = _coverage(self.rows)
        rows, inside, outside = (float(covered[name]) for name in ("rows", "inside", "without"))
        if without:
            rows, inside, outside = without["intervals"], without["inside"], without["outside_evidence"]
        if rows:
            lines.append(
                f"{LEVEL:.0%} intervals, from other sources than a row's: {inside:g} of {rows:g} rows lie inside "
                f"({inside / rows:.0%}); {outside:g} are outside the evidence"
            )
        return lines

    def _parts(self) -> list[tuple[str, list[Forecast]]]:
        known = [it for it in self.rows if it.row.measured is not None]
        posed = [it for it in known if it.row.well_posed]
        return [("well-posed", posed), ("others", [it for it in known if not it.row.well_posed])]


def _coverage(rows: Sequence[Forecast]) -> dict[str, int]:
    """Return how many well-posed rows have an interval, how many lie in it, and how many have none."""
    posed = [it for it in rows if it.row.well_posed and it.row.measured is not None]
    known = [it.is_likely for it in posed if it.is_likely is not None]
    return {"rows": len(known), "inside": sum(known), "without": len(posed) - len(known)}


def _numbers(rows: Sequence[Forecast]) -> dict[str, Any]:
    sizes = [abs(it.error) for it in rows if it.error is not None]
    inside = sum(it.inside for it in rows)
    return {"rows": len(rows), "mean": sum(sizes) / len(sizes), "worst": max(sizes), "inside_bounds": inside}


def _named(row: Row) -> dict[str, Any]:
    return {"line": row.line, **{name: getattr(row, name) for name in _KEPT}, "metric": row.metric_text}


def _plain(it: Forecast) -> dict[str, Any]:
    return {
        **_named(it.row),
        "well_posed": it.row.well_posed,
        "engine": it.engine,
        "published": it.row.measured,
        "forecast": it.value,
        "error": it.error,
        "low": it.low,
        "high": it.high,
        "inside_bounds": it.inside,
        "iteration_s": it.iteration_s,
        "interval": None if it.likely is None else {"low": it.likely[0], "high": it.likely[1], "level": LEVEL},
        "evidence": it.evidence,
        "assumed": list(it.assumed),
    }


def _flat(it: Forecast) -> dict[str, Any]:
    plain = _plain(it)
    span = plain.pop("interval") or {}
    return {**plain, "interval_low": span.get("low"), "interval_high": span.get("high")}


def _table(rows: Sequence[Forecast]) -> list[str]:
    columns = [Column("system", left=True), Column("model", left=True), Column("GPUs"), Column("published")]
    columns += [Column("forecast"), Column("error"), Column("ring", left=True)]
    groups: dict[str, list[list[str]]] = {}
    for it in rows:
        row = it.row
        group = groups.setdefault(row.system, [])
        unit = (
            ""
            if row.metric is None
            else {Kind.RATE: "/s", Kind.FACTOR: "x", Kind.SECONDS: "s"}.get(row.metric.kind, "")
        )
        if row.metric is not None and row.metric.kind is not Kind.RATE and row.metric.unit != 1.0:
            unit = "%" if row.metric.kind is Kind.EFFICIENCY else "ms"
        mark = "" if row.well_posed else " *"
        values = [
            "-" if row.measured is None else f"{row.measured:g} {unit}".rstrip(),
            f"{units.digits(it.value)} {unit}".rstrip(),
            "" if it.error is None else f"{it.error:+.1%}{mark}",
        ]
        gpus = f"{row.gpus} on {row.nodes}" if row.nodes > 1 else str(row.gpus)
        group.append(["" if group else row.system, row.model, gpus, *values, it.position])
    return render(columns, list(groups.values()))
