"""Published bandwidths of NCCL's collectives and their forecasts.

The columns are those of published training with sharding: docs/results/published.md, "Collectives".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import click
from paceline import _core
from paceline._internal import units
from paceline._internal.console import Column, render, wrapped
from paceline.catalog import channels, nccl
from paceline.catalog.builtin import load_cluster
from paceline.catalog.builtin_names import cluster_names
from paceline.catalog.constants import Constant, assuming, value_of
from paceline.catalog.nccl import Algorithm, Kind
from paceline.catalog.nodes import node_fields
from paceline.errors import InvalidArgumentError
from paceline.forecast.nccl.model import Caller, CollectiveTime, Group, Machine, bus_factor, collective_time

from paceline_lab.studies.published import training, transformers
from paceline_lab.studies.published.data import SHARDED, SHARDED_MAY_BE_MISSING, Cells, read_cells
from paceline_lab.studies.published.engines import CannotForecastError, forecast_each
from paceline_lab.studies.published.training import Trained
from paceline_lab.studies.report import csv_of

BUILT_IN = Path(__file__).parent / "collectives.csv"
_KINDS: tuple[tuple[str, Kind], ...] = (
    (r"reduce[- _]?scatter", "reducescatter"),
    (r"all[- _]?gather", "allgather"),
    (r"all[- _]?reduce", "allreduce"),
    (r"broadcast", "broadcast"),
)
# Words of `strategy` that force an algorithm, as NCCL_ALGO does; those in parentheses only say what was seen.
_FORCED: tuple[tuple[str, Algorithm], ...] = (
    (r"nccl_nvls_enable=0|\bring\b", "ring"),
    (r"nvls[- _]?tree", "nvls-tree"),
    (r"\bnvls\b", "nvls"),
    (r"\btree\b", "tree"),
    (r"\bpat\b", "pat"),
)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]?i?B)\b")
_NICS = re.compile(r"(\d+)\s*x\s*(\d+(?:\.\d+)?)\s*G(?:bit/s|b/s|bps)?\b", re.IGNORECASE)
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*G(?:bit/s|b/s|bps)\s*(?:per|a|/)\s*(node|GPU)", re.IGNORECASE)
_INSTANCE = re.compile(r"\b(?:p4de?|p5(?:en)?|p6-b200)\b", re.IGNORECASE)
_INSTANCES = {"ampere": "p4d", "hopper": "p5", "blackwell": "p6-b200"}
"""Amazon's instances with EFA by generation of GPU, for rows that name EFA and no instance."""
_SOCKETS = re.compile(r"(\d+) threads? x (\d+) sockets?")
_MOST_NAMES = 6
_GPUS_PER_NODE, _MOST_GPUS_PER_NODE = 8, 1024


@dataclass(frozen=True)
class Row:
    """A published row. `value` is in SI: bytes per second, or seconds."""

    line: int
    id: str
    source: str
    system: str
    strategy: str
    model: str
    text: str
    """The column that has the size of a collective."""
    gpu: str
    gpus: int
    gpus_per_node: int
    inter: str
    metric: str
    value: float
    unit: str
    notes: str


@dataclass(frozen=True)
class Compared:
    """A row and its forecast, in the row's own metric."""

    row: Row
    forecast: CollectiveTime
    value: float

    @property
    def error(self) -> float:
        """Forecast divided by published, minus 1."""
        return self.value / self.row.value - 1


def read(path: Path) -> list[Row]:
    """Return all rows. Raises InvalidArgumentError naming file, line, column and remedy."""
    return [_row(cells) for cells in read_cells(path, SHARDED, SHARDED_MAY_BE_MISSING)]


def _row(cells: Cells) -> Row:
    value = cells.number("value")
    if value is None:
        raise InvalidArgumentError(f"{cells.path}, line {cells.line}, value: is empty", remedy="the published number")
    return Row(
        line=cells.line,
        id=cells.text("id"),
        source=cells.text("source"),
        system=cells.text("system"),
        strategy=cells.required("strategy"),
        model=cells.text("model"),
        text=cells.text("global_batch_or_tokens"),
        gpu=cells.required("gpu"),
        gpus=cells.whole("gpus"),
        gpus_per_node=_per_node(cells),
        inter=cells.text("inter_bw"),
        metric=cells.required("metric"),
        value=value,
        unit=cells.required("unit"),
        notes=cells.text("notes"),
    )


def _per_node(cells: Cells) -> int:
    """Return the GPUs of a node: `8`, or what is assumed where it is not stated, `n/s (8)`."""
    text = cells.text("gpus_per_node")
    match = re.fullmatch(r"(?:n/s)?\s*\(?([0-9]{1,4})?\)?", text)
    if match is None:
        raise InvalidArgumentError(
            f"{cells.path}, line {cells.line}, gpus_per_node: '{text[:80]}' is no whole number", remedy="8 (or n/s)"
        )
    return min(max(1, int(match[1] or _GPUS_PER_NODE)), _MOST_GPUS_PER_NODE)


def kind_of(row: Row) -> Kind | None:
    """Return the collective that a row measures; None for training."""
    if re.search(r"bandwidth|\bbusbw\b|\balgbw\b|latency|^time", row.metric.lower()) is None:
        return None
    words = f"{row.strategy} {row.model}".lower()
    return next((kind for pattern, kind in _KINDS if re.search(pattern, words)), None)


def algorithm_of(row: Row) -> Algorithm | None:
    """Return the algorithm that a row was measured with; None: what NCCL chose."""
    words = re.sub(r"\([^)]*\)", " ", row.strategy).lower()
    return next((algorithm for pattern, algorithm in _FORCED if re.search(pattern, words)), None)


def caller_of(row: Row) -> Caller:
    """Return what started the collectives."""
    words = row.system.lower()
    return "torch" if "nccl-tests" not in words and re.search(r"torch|all_reduce_bench", words) else "nccl-tests"


def size_of(row: Row) -> int:
    """Return the bytes of the buffer. Raises CannotForecastError."""
    match = _SIZE.search(row.text) or _SIZE.search(row.model)
    if match is None:
        raise CannotForecastError("no size such as 16GiB in global_batch_or_tokens or model")
    return _core.parse_size(f"{match[1]}{match[2]}")


def machine_of(row: Row) -> Machine:
    """Return the nodes of a row. Raises CannotForecastError."""
    if nccl.generation_of(row.gpu) is None:
        raise CannotForecastError(f"gpu '{row.gpu[:80]}' is not one of NCCL's generations that are known")
    fields: dict[str, Any] = {"bandwidth": "100Gbps"} | node_fields(row.gpu)
    if row.gpus > row.gpus_per_node:
        if nics := _NICS.search(row.inter):
            count, rate = int(nics[1]), float(nics[2])
        elif whole := _RATE.search(row.inter):
            count = row.gpus_per_node
            rate = float(whole[1]) / (1 if whole[2].lower() == "gpu" else count)
        else:
            raise CannotForecastError(
                f"inter_bw '{row.inter[:80]}' does not say the rate between nodes, such as 8 x 400 Gbit/s"
            )
        fields |= {"bandwidth": f"{count * rate}Gbps", "nics_per_node": count}
    fields |= {"gpu": row.gpu, "gpus_per_node": row.gpus_per_node, "channel": "rdma", "latency": "0us"}
    if is_through_host(row):
        fields |= _of_host(row)
    fields |= _of_efa(row)
    has_switch = "mesh" not in fields and "pcie" not in row.gpu.lower()
    fields["intra_link"] = "nvswitch" if has_switch else "nvlink" if "mesh" in fields else "pcie"
    return Machine.of(load_cluster(None, **fields))


def is_through_host(row: Row) -> bool:
    """Return whether messages between nodes passed through the host's memory: sockets, or RDMA without GPUDirect."""
    return re.search(r"\bTCP\b|\bno GPUDirect\b", row.inter) is not None


def _of_host(row: Row) -> dict[str, Any]:
    """Return the channel of such a row, with the helper threads and sockets that it states."""
    if "TCP" not in row.inter:
        return {"gpudirect": False}
    fields: dict[str, Any] = {"channel": "tcp", "latency": f"{1e6 * channels.constant('tcp.latency'):g}us"}
    if stated := _SOCKETS.search(row.inter):
        fields["nccl_sockets"] = {"threads": int(stated[1]), "per_thread": int(stated[2])}
    return fields


def _of_efa(row: Row) -> dict[str, Any]:
    """Return latency and efficiency of Amazon's EFA, if a row was measured over it."""
    words = f"{row.inter} {row.system}"
    named = _INSTANCE.search(words)
    if named is None and re.search(r"\bEFA\b", words) is None:
        return {}
    generation = nccl.generation_of(row.gpu)
    assert generation is not None
    instance = named[0].lower() if named else _INSTANCES.get(generation.name, "p5")
    cluster = load_cluster(next(name for name in cluster_names() if name.partition(".")[0] == instance))
    own = {"latency": f"{cluster.latency_s * 1e6:g}us"}
    return own if cluster.efficiency is None else own | {"efficiency": cluster.efficiency}


@dataclass(frozen=True)
class _Question:
    kind: Kind
    size: int
    group: Group
    machine: Machine
    algorithm: Algorithm | None
    caller: Caller


@lru_cache(maxsize=4096)
def _question(row: Row) -> _Question:
    """Return what a row asks for. Raises CannotForecastError with the reason."""
    kind = kind_of(row)
    if kind is None:
        raise CannotForecastError("is training; this study forecasts collectives")
    if row.gpus < 2:
        raise CannotForecastError("one GPU has no collectives")
    group = Group(row.gpus, row.gpus_per_node)
    return _Question(kind, size_of(row), group, machine_of(row), algorithm_of(row), caller_of(row))


def forecast(row: Row) -> Compared:
    """Return the forecast of a row. Raises CannotForecastError with the reason."""
    try:
        question = _question(row)
        forecast = collective_time(
            question.kind,
            question.size,
            question.group,
            question.machine,
            algorithm=question.algorithm,
            caller=question.caller,
        )
    except InvalidArgumentError as error:
        raise CannotForecastError(str(error)) from None
    return Compared(row, forecast, _in_metric(row, forecast))


def _in_metric(row: Row, time: CollectiveTime) -> float:
    words, unit = row.metric.lower(), row.unit.lower()
    rate = re.match(r"(g|m)b/s|(g|m)bit/s|(g|m)bps", unit)
    if "bandwidth" in words or "bw" in words:
        if rate is None:
            raise CannotForecastError(f"unit '{row.unit[:80]}' is not GB/s")
        factor = 1e9 if unit.startswith("g") else 1e6
        factor /= 1 if unit[1:].startswith("b/s") else 8
        is_bus = "bus" in words
        return time.algorithm_bandwidth * (bus_factor(time.kind, time.group.ranks) if is_bus else 1.0) / factor
    scale = {"s": 1.0, "ms": 1e-3, "us": 1e-6}.get(unit)
    if scale is None:
        raise CannotForecastError(f"unit '{row.unit[:80]}' is none of s, ms and us")
    return time.seconds / scale


# How many values are tried on each side of the prior, within twice its uncertainty, and then around the best; and how
# often each constant's turn comes.
_TRIED = (12, 10)
_ROUNDS = 3


def calibrated() -> list[Constant]:
    """Return the constants that were fitted to measurements."""
    return [it for it in nccl.all_constants().values() if it.calibrated]


def fitted(constants: Sequence[Constant], rows: Sequence[Row]) -> dict[Constant, float]:
    """Return the constants' values with the least sum of relative errors, one after the other, from their priors.

    Those on which no row depends keep their priors.
    """
    values = {it: it.prior or it.value for it in constants}
    using = {it: [row for row in rows if _depends(row, it, values)] for it in constants}
    for _ in range(_ROUNDS):
        for constant in constants:
            best = constant.prior or constant.value
            step = 2 * constant.uncertainty
            for count in _TRIED if using[constant] else ():
                step /= count
                tried = [best * math.exp(step * place) for place in range(-count, count + 1)]
                best = min(tried, key=lambda value: _misfit(using[constant], values | {constant: value}))
            values[constant] = best
    return values


def _depends(row: Row, constant: Constant, values: Mapping[Constant, float]) -> bool:
    with assuming(values):
        before = forecast(row).value
    with assuming({**values, constant: 1.1 * values[constant]}):
        return forecast(row).value != before


def _misfit(rows: Sequence[Row], values: Mapping[Constant, float]) -> float:
    with assuming(values):
        return sum(abs(forecast(row).error) for row in rows)


def leave_one_source_out(rows: Sequence[Row]) -> list[Compared]:
    """Return the forecasts of each source's rows with constants that were fitted to the other sources' rows only."""
    compared = []
    for source in dict.fromkeys(row.source for row in rows):
        own = [row for row in rows if row.source == source]
        others = [row for row in rows if row.source != source and not is_through_host(row)]
        theirs = [
            it
            for it in calibrated()
            if any(row.id.startswith(prefix.strip()) for prefix in it.calibrated.split(",") for row in own)
        ]
        with assuming(fitted(theirs, others)):
            compared += [forecast(row) for row in own]
    return compared


@dataclass(frozen=True)
class Collectives:
    """The output of the study."""

    title: str
    rows: Sequence[Compared]
    skipped: Sequence[tuple[Row, str]]
    without_source: Sequence[Compared]
    trained: Sequence[Trained] = ()
    """Rows of training."""
    trained_without_source: Sequence[Trained] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        return {
            "rows": [_plain(it) for it in self.rows],
            "training": [it.to_dict() for it in self.trained],
            "training_summary": {name: training.numbers(rows) for name, rows in training.parts(self.trained)},
            "training_by_source": {
                source: training.numbers([it for it in self.trained if it.case.group == source])
                for source in dict.fromkeys(it.case.group for it in self.trained)
            },
            "training_without_source": {
                name: training.numbers(rows) for name, rows in training.parts(self.trained_without_source)
            },
            "skipped": [{"line": row.line, "id": row.id, "reason": reason} for row, reason in self.skipped],
            "summary": {name: _numbers(rows) for name, rows in _parts(self.rows)},
            "without_source": {name: _numbers(rows) for name, rows in _parts(self.without_source)},
        }

    def to_csv(self) -> str:
        """Return the rows as CSV: collectives, or training if there are none or after an empty line."""
        if self.trained:
            own = training.to_csv(self.trained)
            return f"{self._collectives_csv()}\n{own}" if self.rows else own
        return self._collectives_csv()

    def _collectives_csv(self) -> str:
        return csv_of([_plain(it) for it in self.rows], ["line"])

    def text(self, width: int) -> list[str]:
        """Return a table for each source, the summary and what is not forecast, as lines for people."""
        lines = [*wrapped(self.title, width), ""]
        for source in dict.fromkeys(it.row.source for it in self.rows):
            lines += [click.style(line, bold=True) for line in wrapped(source, width)]
            lines += [*_table([it for it in self.rows if it.row.source == source]), ""]
        for what, compared in (
            ("", self.rows),
            ("with constants fitted without a row's source: ", self.without_source),
        ):
            for name, rows in _parts(compared):
                numbers = _numbers(rows)
                sentence = (
                    f"{what}{name}: {units.count(numbers['rows'], 'row')}, mean error {numbers['mean']:.1%}, "
                    f"greatest {numbers['worst']:.1%}"
                )
                lines += wrapped(sentence, width)
        if self.trained:
            lines += ["", *training.table(self.trained, self.trained_without_source, width)]
        if self.skipped:
            lines += ["", click.style("Not forecast", bold=True)]
            reasons = dict.fromkeys(reason for _, reason in self.skipped)
            for reason in reasons:
                names = [row.id or f"line {row.line}" for row, why in self.skipped if why == reason]
                more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
                listed = ", ".join(names[:_MOST_NAMES]) + more
                lines += wrapped(f"{units.count(len(names), 'row')}, {reason}: {listed}", width)
        return lines


def run(
    plots: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    data: Path | None = None,
    *,
    anchor: bool = False,
) -> Collectives:
    """Forecast the collectives of a file, and its rows of training; `anchor`: see `training.forecasts`.

    Raises InvalidArgumentError for an invalid file.
    """
    if plots is not None:
        raise InvalidArgumentError("--plots: the study of collectives has no figure", remedy="drop --plots")
    rows = read(data or BUILT_IN)
    compared, skipped = forecast_each(rows, forecast, progress)
    where = "published bandwidths of NCCL's collectives" if data is None else str(data)
    title = f"{where}: {units.count(len(rows), 'row')}; error = forecast / published - 1"
    trained: list[Trained] = []
    blind: list[Trained] = []
    if data is not None:
        plain = transformers.read_rows(data)
        trained, reasons = training.forecasts(plain, progress, anchor=anchor)
        blind = training.leave_one_source_out(plain, anchor=anchor)
        names = {row.line: own["id"] for row, own in zip(rows, plain, strict=True)}
        known = {it.case.name for it in trained}
        skipped = [
            (row, why if kind_of(row) is not None else reasons.get(names[row.line], why))
            for row, why in skipped
            if names[row.line] not in known
        ]
    return Collectives(title, compared, skipped, leave_one_source_out([it.row for it in compared]), trained, blind)


def _parts(rows: Sequence[Compared]) -> list[tuple[str, list[Compared]]]:
    one = [it for it in rows if it.forecast.group.nodes == 1]
    through_host = [it for it in rows if it.forecast.group.nodes > 1 and is_through_host(it.row)]
    several = [it for it in rows if it.forecast.group.nodes > 1 and not is_through_host(it.row)]
    named = (("one node", one), ("several nodes", several), ("several nodes, through the host", through_host))
    return [(name, part) for name, part in named if part]


def _numbers(rows: Sequence[Compared]) -> dict[str, Any]:
    sizes = [abs(it.error) for it in rows]
    return {"rows": len(sizes), "mean": sum(sizes) / len(sizes), "worst": max(sizes)}


def _plain(it: Compared) -> dict[str, Any]:
    return {
        "line": it.row.line,
        "id": it.row.id,
        "source": it.row.source,
        "collective": it.forecast.kind,
        "bytes": it.forecast.size,
        "gpu": it.row.gpu,
        "gpus": it.row.gpus,
        "nodes": it.forecast.group.nodes,
        "algorithm": it.forecast.algorithm,
        "protocol": it.forecast.protocol,
        "metric": it.row.metric,
        "unit": it.row.unit,
        "published": it.row.value,
        "forecast": it.value,
        "error": it.error,
        "time_s": it.forecast.seconds,
    }


def _table(rows: Sequence[Compared]) -> list[str]:
    columns = [Column("collective", left=True), Column("size"), Column("GPUs"), Column("published")]
    columns += [Column("forecast"), Column("error"), Column("algorithm", left=True), Column("protocol", left=True)]
    cells = [
        [
            it.forecast.kind,
            it.row.text or units.size(it.forecast.size),
            f"{it.row.gpus} {it.row.gpu}",
            f"{it.row.value:g}",
            units.digits(it.value),
            f"{it.error:+.1%}",
            it.forecast.algorithm,
            it.forecast.protocol,
        ]
        for it in rows
    ]
    return render(columns, [cells])


def fit() -> dict[str, float]:
    """Return the calibrated constants, fitted to the built-in rows: those of crates/nccl/data/calibration.json."""
    rows = [row for row in read(BUILT_IN) if not is_through_host(row)]
    return {it.name: value for it, value in fitted(calibrated(), rows).items()}


def current() -> dict[str, float]:
    """Return the calibrated constants as they are."""
    return {it.name: value_of(it) for it in calibrated()}
