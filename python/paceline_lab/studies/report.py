"""The output of a study as JSON, as CSV and as text."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from paceline._internal import block, units
from paceline._internal.block import Fact
from paceline._internal.console import Column, render, wrapped


@dataclass(frozen=True)
class Compared:
    """A published value and the simulated one. `error` is simulated / published - 1."""

    table: str
    row: str
    model: str
    published: float
    simulated: float
    unit: str
    # Whether the traces were calibrated on this value.
    calibrated: bool
    # What a simulated value must lie in to agree with the publication; None: the study judges by the error.
    bounds: tuple[float, float] | None = None

    @property
    def error(self) -> float:
        """Signed relative error."""
        return self.simulated / self.published - 1

    @property
    def within(self) -> bool:
        """Whether the simulated value lies within the bounds, if there are any."""
        return self.bounds is None or self.bounds[0] <= self.simulated <= self.bounds[1]


@dataclass(frozen=True)
class Prediction:
    """A simulated value without a published counterpart."""

    table: str
    row: str
    model: str
    simulated: float
    unit: str


@dataclass(frozen=True)
class ClaimResult:
    """A claim of the study, tested by simulation: the verdict and the numbers that decide it."""

    claim: str
    holds: bool
    figures: Mapping[str, float]

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        return "holds here" if self.holds else "does not hold here"


def rounded(claim: ClaimResult) -> ClaimResult:
    """Return a claim with figures of four digits."""
    return replace(claim, figures={name: float(f"{value:.4g}") for name, value in claim.figures.items()})


@dataclass(frozen=True)
class Skipped:
    """A value that cannot be compared, and why."""

    table: str
    row: str
    model: str
    reason: str


@dataclass(frozen=True)
class Study:
    """The output of a whole study."""

    title: str
    rows: Sequence[Compared]
    claims: Sequence[ClaimResult]
    figures: Sequence[str] = ()
    skipped: Sequence[Skipped] = ()
    simulations: int = 0
    notes: Sequence[str] = field(default_factory=tuple)
    forecasts: Sequence[Prediction] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        return {
            "rows": [
                {
                    "table": row.table,
                    "row": row.row,
                    "model": row.model,
                    "published": row.published,
                    "simulated": row.simulated,
                    "error": row.error,
                    "unit": row.unit,
                    "calibrated": row.calibrated,
                    **({} if row.bounds is None else {"bounds": list(row.bounds), "within": row.within}),
                }
                for row in self.rows
            ],
            "claims": [{"claim": it.claim, "verdict": it.verdict, "figures": dict(it.figures)} for it in self.claims],
            "forecasts": [asdict(it) for it in self.forecasts],
            "figures": list(self.figures),
            "skipped": [asdict(it) for it in self.skipped],
        }

    def to_csv(self) -> str:
        """Return the rows as CSV, or the forecasts of a study without published rows."""
        if not self.rows:
            return csv_of([asdict(it) for it in self.forecasts], ("table", "row", "model", "simulated", "unit"))
        rows = [
            {
                **{name: getattr(row, name) for name in ("table", "row", "model", "unit", "published")},
                "simulated": f"{row.simulated:.6g}",
                "error": f"{row.error:.6f}",
                "calibrated": str(row.calibrated).lower(),
            }
            for row in self.rows
        ]
        return csv_of(rows)

    def text(self, width: int) -> list[str]:
        """Return errors and claims that hold, tables, and the claims as lines for people."""
        lines = [*block.headline(_spelled(self.title), columns=width), "", *block.block(self._facts(), width), ""]
        for calibrated in (True, False):
            for table in dict.fromkeys(row.table for row in self.rows if row.calibrated == calibrated):
                rows = [row for row in self.rows if row.table == table and row.calibrated == calibrated]
                lines += _table(f"{table}, {'' if calibrated else 'not '}used for calibration", rows)
        for table in dict.fromkeys(it.table for it in self.forecasts):
            lines += _predictions(table, [it for it in self.forecasts if it.table == table])
        if self.claims:
            lines += [*_claims(self.claims, width), ""]
        while lines and not lines[-1]:
            lines.pop()
        wrote = [f"Wrote {figure}" for figure in self.figures]
        lines += [*block.notes([_spelled(note) for note in self.notes], width), *([""] if wrote else [])]
        return [*lines, *wrote]

    def _facts(self) -> list[Fact]:
        facts = []
        for calibrated in (False, True):
            if rows := [row for row in self.rows if row.calibrated == calibrated and row.bounds is None]:
                facts.append(Fact("Calibrated" if calibrated else "Error", _summary(rows, calibrated)))
        if bounded := [row for row in self.rows if row.bounds is not None]:
            within = sum(row.within for row in bounded)
            facts.append(Fact("Bounds", f"{within} of {len(bounded)} values lie within the published bounds"))
        if self.claims:
            holding = sum(it.holds for it in self.claims)
            facts.append(Fact("Claims", f"{holding} of {len(self.claims)} hold here"))
        return facts


def csv_of(rows: Sequence[Mapping[str, object]], columns: Sequence[str] = ()) -> str:
    """Return rows as CSV; `columns`: the heading where there are none."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def errors(rows: Sequence[Compared]) -> tuple[float, float, float]:
    """Return the mean and the largest absolute error, and the share of rows within 3 %."""
    sizes = [abs(row.error) for row in rows]
    return sum(sizes) / len(sizes), max(sizes), sum(size <= 0.03 for size in sizes) / len(sizes)


def _summary(rows: Sequence[Compared], calibrated: bool) -> str:
    mean, worst, within = errors(rows)
    which = "used for calibration" if calibrated else "not used for calibration"
    numbers = f"mean error {mean:.2%}, largest {worst:.2%}, within 3%: {within:.0%}"
    return f"{len(rows)} values {which}: {numbers}"


def _number(value: float, unit: str) -> str:
    # Published values have three digits, simulated ones get one more.
    return f"{units.digits(value)} {unit}".rstrip()


def _table(title: str, rows: Sequence[Compared]) -> list[str]:
    import click

    columns = [Column("row", left=True), Column("model", left=True)]
    columns += [Column("published"), Column("simulated"), Column("error")]
    bounded = any(row.bounds is not None for row in rows)
    columns += [Column("bounds"), Column("", left=True)] if bounded else []
    groups: dict[str, list[list[str]]] = {}
    for row in rows:
        group = groups.setdefault(row.row, [])
        numbers = [f"{row.published:g} {row.unit}".rstrip(), _number(row.simulated, row.unit), f"{row.error:+.1%}"]
        group.append(["" if group else _spelled(row.row), row.model, *numbers, *(_judged(row) if bounded else [])])
    return [click.style(title, bold=True), *render(columns, list(groups.values())), ""]


def _judged(row: Compared) -> list[str]:
    if row.bounds is None:
        return ["", ""]
    return [bounds_text(row.bounds), "within" if row.within else "OUT"]


def bounds_text(bounds: tuple[float, float]) -> str:
    """Return bounds as text; an open end is left out."""
    low, high = bounds
    if low == float("-inf"):
        return f"to {high:g}"
    return f"from {low:g}" if high == float("inf") else f"{low:g} to {high:g}"


def _predictions(title: str, values: Sequence[Prediction]) -> list[str]:
    """Return a table with one line per row and one column per model."""
    import click

    models = list(dict.fromkeys(it.model for it in values))
    columns = [Column("row", left=True), *(Column(model) for model in models)]
    cells = {(it.row, it.model): _number(it.simulated, it.unit) for it in values}
    rows = [
        [_spelled(row), *(cells.get((row, model), "-") for model in models)]
        for row in dict.fromkeys(it.row for it in values)
    ]
    return [click.style(f"{title}, simulated", bold=True), *render(columns, [rows]), ""]


_MOST_DIGITS = 7


def _spelled(text: str) -> str:
    """Return text with the unit of all other output; rows and claims keep their names in JSON and CSV."""
    return text.replace("Gbit/s", "Gbps")


def _figures(figures: Mapping[str, float]) -> dict[str, str]:
    """Return the figures of a claim as text: three digits, or as many as tell the two of a comparison apart."""
    digits = range(3, _MOST_DIGITS + 1)
    short = [{name: units.short(value, count) for name, value in figures.items()} for count in digits]
    if len(figures) != 2:
        return short[0]
    return next((texts for texts in short if len(set(texts.values())) == 2), short[0])


def _claims(claims: Sequence[ClaimResult], width: int) -> list[str]:
    import click

    lines = [click.style("The paper's claims", bold=True)]
    for it in claims:
        color = "green" if it.holds else "red"
        lines += ["", *wrapped(_spelled(it.claim), width)]
        figures = "; ".join(f"{_spelled(name)} {number}" for name, number in _figures(it.figures).items())
        sentences = wrapped(f"{it.verdict}: {figures}", width - 4)
        lines += ["    " + line for line in sentences]
        start = len(lines) - len(sentences)
        lines[start] = lines[start].replace(it.verdict, click.style(it.verdict, fg=color), 1)
    return lines
