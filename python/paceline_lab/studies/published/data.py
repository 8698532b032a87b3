"""Reads and checks a CSV file of published measurements (columns: docs/results/published.md)."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from paceline._internal.documents import read_small
from paceline._internal.files import unread
from paceline._internal.nearest import nearest
from paceline.errors import InvalidArgumentError

BUILT_IN = Path(__file__).parent / "published.csv"
COLUMNS = (
    "id",
    "system",
    "sync",
    "model",
    "gpu",
    "gpus",
    "nodes",
    "net_gbps_per_node",
    "batch_per_gpu",
    "base_1gpu_img_s",
    "measured",
    "metric",
    "well_posed",
    "ps",
    "gpus_per_process",
    "flow_gbps",
    "source",
    "note",
)
_MAY_BE_MISSING = frozenset(
    {
        *("sync", "well_posed", "ps", "source", "note", "base_1gpu_img_s", "batch_per_gpu", "id", "measured"),
        *("gpus_per_process", "flow_gbps"),
    }
)
SHARDED = (
    *("id", "source", "system", "strategy", "model", "params", "seq_len", "global_batch_or_tokens", "precision"),
    *("gpu", "gpus", "gpus_per_node", "intra_bw", "inter_bw", "metric", "value", "unit", "notes"),
)
"""Of collectives, and of training with sharding."""
SHARDED_MAY_BE_MISSING = frozenset(
    {"id", "params", "seq_len", "precision", "intra_bw", "inter_bw", "notes", "system", "source", "model"}
)
_MOST_GPUS = 4096
_MOST_SERVERS = 1024
_LEAST, _MOST = 1e-9, 1e18
"""Of any other number: what is outside is no measurement, whatever its unit."""
_MOST_BYTES = 16 << 20
_MOST_ROWS = 10_000


SERVERS_AT_NODES = re.compile(r"at (\d{1,4}) nodes? (.*\d \([^)]+\).*)", re.IGNORECASE)
"""In `ps`: `at 8 nodes 6 (Inc) / 4 (R152)`."""


class Kind(Enum):
    """The quantity that a metric measures."""

    RATE = "samples per second"
    FACTOR = "times the rate of fewer GPUs"
    EFFICIENCY = "share of linear scaling"
    SECONDS = "seconds per iteration"


@dataclass(frozen=True)
class Metric:
    """The metric of a row. `unit` is the factor to SI: 0.01 for %, 0.001 for ms."""

    kind: Kind
    over: int = 1
    over_nodes: bool = False
    per_gpu: bool = False
    collectives_only: bool = False
    unit: float = 1.0


@dataclass(frozen=True)
class Row:
    """A published measurement. `link_bps`: a node's link; `samples_per_s`: one GPU alone; None if not published.

    Without `measured` the row is only forecast.
    """

    line: int
    id: str
    system: str
    sync: str
    model: str
    gpu: str
    gpus: int
    nodes: int
    link_bps: float | None
    batch: int | None
    samples_per_s: float | None
    measured: float | None
    metric: Metric | None
    metric_text: str
    posed: str
    servers: str
    source: str
    note: str
    gpus_per_process: int | None = None
    """GPUs that one process drives, where a node has several such processes."""
    flow_bps: float | None = None
    """The most that one connection between two nodes carries, where the cloud limits it."""

    @property
    def well_posed(self) -> bool:
        """Whether everything that a forecast needs has been published."""
        return self.posed.lower().startswith("yes")

    @property
    def gpus_per_node(self) -> int:
        """GPUs per node; the last node may have fewer."""
        return math.ceil(self.gpus / self.nodes)


def read(path: Path) -> list[Row]:
    """Return all rows. Raises InvalidArgumentError naming file, line, column and remedy."""
    return [_row(cells) for cells in read_cells(path, COLUMNS, _MAY_BE_MISSING)]


def columns_of(path: Path) -> list[str]:
    """Return the names in the first line of a file, unchecked. Raises InvalidArgumentError if it cannot be read."""
    return [field.strip() for field in _lines(path, COLUMNS)[0][1]]


def read_cells(path: Path, columns: Sequence[str], may_be_missing: frozenset[str]) -> list[Cells]:
    """Return the cells of each row of a file with these columns. Raises InvalidArgumentError."""
    lines = _lines(path, columns)
    header = _header(path, lines[0][1], columns, may_be_missing)
    if len(lines) == 1:
        raise InvalidArgumentError(f"{path}: has no rows below its header", remedy="a row for each measurement")
    if len(lines) > _MOST_ROWS:
        raise InvalidArgumentError(
            f"{path}: must have at most {_MOST_ROWS} rows, not {len(lines) - 1}", remedy="fewer rows"
        )
    cells = []
    for line, fields in lines[1:]:
        if len(fields) != len(header):
            raise InvalidArgumentError(
                f"{path}, line {line}: has {len(fields)} fields, the header {len(header)}",
                remedy="text with a comma in quotes",
            )
        cells.append(Cells(path, line, dict(zip(header, (field.strip() for field in fields), strict=True))))
    return cells


def _lines(path: Path, columns: Sequence[str]) -> list[tuple[int, list[str]]]:
    """Return the lines that are not empty, at least one, with their numbers."""
    try:
        text = read_small(path, _MOST_BYTES).removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise unread(f"{path}", error, path) from None
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            f"{path}: byte {error.start} is not UTF-8", remedy=f"iconv -f LATIN1 -t UTF-8 {path}"
        ) from None
    # A file that ends in the middle of a quoted field is also an error.
    reader = csv.reader(text.splitlines(keepends=True), strict=True)
    try:
        lines = [(reader.line_num, fields) for fields in reader if any(field.strip() for field in fields)]
    except csv.Error as error:
        raise InvalidArgumentError(
            f"{path}, line {reader.line_num}: {error}", remedy="the missing quotation mark"
        ) from None
    if not lines:
        raise InvalidArgumentError(f"{path}: is empty", remedy=f"a first line with the columns: {','.join(columns)}")
    return lines


def _header(path: Path, fields: Sequence[str], columns: Sequence[str], may_be_missing: frozenset[str]) -> list[str]:
    names = [field.strip() for field in fields]
    for name in names:
        if name not in columns:
            near = nearest(name, list(columns))
            hint = near or f"one of {', '.join(columns)}"
            raise InvalidArgumentError(f"{path}, line 1: unknown column '{name[:80]}'", remedy=hint)
        if names.count(name) > 1:
            raise InvalidArgumentError(f"{path}, line 1: duplicate column '{name}'", remedy="one of the two")
    missing = [name for name in columns if name not in names and name not in may_be_missing]
    if missing:
        raise InvalidArgumentError(
            f"{path}, line 1: columns are missing: {', '.join(missing)}", remedy=f"{','.join(missing)} in the header"
        )
    return names


def _row(cell: Cells) -> Row:
    path, line = cell.path, cell.line
    gpus, nodes = cell.whole("gpus"), cell.whole("nodes")
    if nodes > gpus:
        raise InvalidArgumentError(
            f"{path}, line {line}, nodes: {nodes} nodes need at least {nodes} GPUs, not {gpus}",
            remedy=f"{gpus} nodes, or fewer",
        )
    link, flow = cell.number("net_gbps_per_node"), cell.number("flow_gbps")
    text = cell.required("metric")
    measured = cell.number("measured")
    return Row(
        line=line,
        id=cell.text("id"),
        system=cell.required("system"),
        sync=cell.text("sync"),
        model=cell.required("model"),
        gpu=cell.required("gpu"),
        gpus=gpus,
        nodes=nodes,
        link_bps=None if link is None else link * 1e9,
        batch=cell.whole("batch_per_gpu") if cell.text("batch_per_gpu") else None,
        samples_per_s=cell.number("base_1gpu_img_s"),
        measured=measured,
        metric=_metric(text, measured),
        metric_text=text,
        posed=cell.text("well_posed"),
        servers=_servers(cell),
        source=cell.text("source"),
        note=cell.text("note"),
        gpus_per_process=_gpus_per_process(cell, math.ceil(gpus / nodes)),
        flow_bps=None if flow is None else flow * 1e9,
    )


def _gpus_per_process(cell: Cells, per_node: int) -> int | None:
    if not cell.text("gpus_per_process"):
        return None
    count = cell.whole("gpus_per_process")
    if per_node % count:
        raise InvalidArgumentError(
            f"{cell.path}, line {cell.line}, gpus_per_process: {count} does not divide the {per_node} GPUs of a node",
            remedy=f"{per_node}, or a part of it",
        )
    return count


def _servers(cell: Cells) -> str:
    """Return the text of `ps`. Raises InvalidArgumentError for a malformed number; other words are a remark."""
    text = cell.text("ps")
    if re.match(r"[-+.]?\d", text) and not (re.fullmatch(r"[1-9]\d{0,3}", text) and int(text) <= _MOST_SERVERS):
        wanted = f"a whole number from 1 to {_MOST_SERVERS}"
    elif re.search(r"\bat\s+\d", text, re.IGNORECASE) and SERVERS_AT_NODES.search(text) is None:
        wanted = "a number of servers at a number of nodes, such as 'at 8 nodes 6 (Inc)'"
    elif text.startswith("=") and not re.match(r"=\s*workers\b", text):
        wanted = "'= workers', a server for each node; give a number, or nothing"
    else:
        return text
    raise InvalidArgumentError(f"{cell.path}, line {cell.line}, ps: '{text[:80]}' is not {wanted}", remedy=wanted)


def _metric(text: str, measured: float | None) -> Metric | None:
    metric = parse_metric(text)
    if metric is not None and metric.kind is Kind.EFFICIENCY and (measured or 0) > _MOST_EFFICIENCY:
        return replace(metric, unit=0.01)
    return metric


@dataclass(frozen=True)
class Cells:
    """The text of a row by column, and how it is read."""

    path: Path
    line: int
    values: Mapping[str, str]

    def text(self, name: str) -> str:
        """Return the text, empty if there is none."""
        return self.values.get(name, "")

    def required(self, name: str) -> str:
        """Return the text. Raises InvalidArgumentError if it is empty."""
        if not self.text(name):
            raise InvalidArgumentError(f"{self.path}, line {self.line}, {name}: is empty", remedy="a value")
        return self.text(name)

    def number(self, name: str) -> float | None:
        """Return the number, or None if the cell is empty. Raises InvalidArgumentError."""
        text = self.text(name)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not _LEAST <= value <= _MOST:
            raise InvalidArgumentError(
                f"{self.path}, line {self.line}, {name}: must be {_LEAST:g}-{_MOST:g}, not '{text[:80]}'",
                remedy="a number such as 12.5",
            )
        return value

    def whole(self, name: str) -> int:
        """Return the whole number above 0. Raises InvalidArgumentError."""
        text = self.required(name)
        most = _MOST_GPUS if name in ("gpus", "nodes") else 2**32 - 1
        if not (re.fullmatch(r"[0-9]{1,10}", text) and 1 <= int(text) <= most):
            raise InvalidArgumentError(
                f"{self.path}, line {self.line}, {name}: must be a whole number, 1-{most}, not '{text[:80]}'",
                remedy="a number such as 8",
            )
        return int(text)


_OVER = re.compile(r"(?:over|of|vs\.?|relative to)\s+(\d{1,4}|one|a single)\s*-?\s*(gpu|node|worker)")
# An efficiency above this is a percentage, even if not marked as one.
_MOST_EFFICIENCY = 1.5


def parse_metric(text: str) -> Metric | None:
    """Return a row's metric; None if it is unknown."""
    words = text.lower()
    over = _OVER.search(words)
    base = int(over[1]) if over is not None and over[1].isdigit() else 1
    nodes = over is not None and over[2] == "node"
    if re.search(r"(img|images|imgs|samples|sequences|examples)\s*(/|per)\s*s", words):
        return Metric(Kind.RATE, per_gpu=re.search(r"(/|per)\s*gpu", words) is not None)
    if re.search(r"over|\bvs\b", words) and (over is None or base < 1):
        return None  # relative to another system
    if "efficien" in words:
        return Metric(Kind.EFFICIENCY, base, nodes, unit=0.01 if "%" in words or "percent" in words else 1.0)
    if re.match(r"(x\b|times\b|factor|speed-?up)", words):
        return Metric(Kind.FACTOR, base, nodes)
    if unit := re.match(r"(s|sec|seconds|ms|milliseconds)\b", words):
        milli = unit[1] in ("ms", "milliseconds")
        only = "collective" in words or "allreduce" in words or "all-reduce" in words
        return Metric(Kind.SECONDS, collectives_only=only, unit=1e-3 if milli else 1.0)
    return None
