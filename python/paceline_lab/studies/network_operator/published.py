"""The paper's published values, row by row, and the configuration of each: published.csv.

M. A. Chang, D. Bottini, L. Jian, P. Kumar, A. Panda, S. Shenker, "How to Train your DNN: The Network Operator Edition".
32 workers, 25 Gbit/s and one server unless the row says otherwise. Rows of one table agree with one another to about
0.5 %, different tables to about 2 %: that is the study's own noise.

- *8 servers, tensors cut*: 8 pieces for each tensor. VGG-16's largest is 0.83 of the model, for which 8 are too coarse:
  8 servers x 32 workers are exact.
- Table 1: 8 workers; 1, 2, 4 and 8 servers with TensorFlow's assignment, simulated by the authors and real. The rate is
  not published; 5 Gbit/s fits the first column.
- Table 9: without the barrier; the time of two iterations.
- The toy example: the end of the aggregation phase, an iteration minus the multicast of the model, 3 times 3 s. The
  authors' switch does not store and forward; with whole tensors ours does, and takes 3 s more, so they are cut here.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from paceline_lab.studies.network_operator.runs import Config, Simulations
from paceline_lab.studies.report import Compared, Skipped

MODELS = ("vgg-16", "inception-v3", "resnet-101", "resnet-200")
TITLES = {
    "vgg-16": "VGG-16",
    "inception-v3": "Inception-v3",
    "resnet-101": "ResNet-101",
    "resnet-200": "ResNet-200",
    "toy": "toy",
}


@dataclass(frozen=True)
class Inputs:
    """The paper's table of inputs. The "first" backward pass is the one that runs first: the last layer's."""

    layers: int
    gigabits: float
    forward_s: float
    backward_after_first_s: float
    backward_network_s: float


INPUTS = {
    "inception-v3": Inputs(21, 0.715, 0.176, 0.296, 0.028),
    "vgg-16": Inputs(22, 6.58, 0.169, 0.024, 0.263),
    "resnet-101": Inputs(103, 1.42, 0.176, 0.180, 0.052),
    "resnet-200": Inputs(202, 2.06, 0.357, 0.34, 0.082),
}
TABLE_1_GBPS = 5
TABLE_1_SERVERS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Row:
    """One published value: times x seconds of `config` minus `offset`, or seconds of `over` / those of `config`."""

    table: str
    row: str
    model: str
    published: float
    unit: str
    calibrated: bool
    """Whether the traces' few free parameters were calibrated on it."""
    config: Config
    over: Config | None
    times: float
    offset: float

    def configs(self) -> tuple[Config, ...]:
        """Return the configurations to simulate for it."""
        return (self.config,) if self.over is None else (self.config, self.over)

    def compared(self, simulations: Simulations) -> Compared:
        """Return it with its simulated value."""
        seconds = simulations[self.config]
        value = self.times * seconds - self.offset if self.over is None else simulations[self.over] / seconds
        return Compared(self.table, self.row, TITLES[self.model], self.published, value, self.unit, self.calibrated)


@cache
def rows() -> list[Row]:
    """Return all rows: those on which parameters were calibrated, then the others."""
    with Path(__file__).with_name("published.csv").open(encoding="utf-8", newline="") as file:
        return [_row(cells) for cells in csv.DictReader(file)]


_NUMBERS = {"workers": int, "gbps": float, "servers": int, "slices": int, "compute_speedup": float}
_WORDS = {"yes": True, "no": False}


def _row(cells: dict[str, str]) -> Row:
    settings = {field.name: cells[field.name] for field in fields(Config) if cells.get(field.name)}
    values = {
        name: _NUMBERS[name](text) if name in _NUMBERS else _WORDS.get(text, text) for name, text in settings.items()
    }
    config = Config(**values)  # type: ignore[arg-type]
    over = Config(config.model, cells["over"], compute_speedup=config.compute_speedup) if cells["over"] else None
    return Row(
        cells["table"],
        cells["row"],
        config.model.partition(",")[0],
        float(cells["published"]),
        cells["unit"],
        cells["calibrated"] == "yes",
        config,
        over,
        float(cells["times"] or 1),
        float(cells["offset"] or 0),
    )


def table_1_config(model: str, servers: int) -> Config:
    """Return the configuration of a column of Table 1."""
    return Config(model, "ps", 8, TABLE_1_GBPS, servers=servers, tensorflow=True)


def table_1(model: str, source: str) -> list[float]:
    """Return the published seconds of a model by servers; `source`: simulated or real."""
    own = [row for row in rows() if row.model == model and row.row.endswith(f", {source}")]
    values = {row.config.servers: row.published for row in own}
    return [values[servers] for servers in TABLE_1_SERVERS]


def skipped(rows: Sequence[Row]) -> Iterator[Skipped]:
    """Return values that the paper gives for other models in the same row, but not for this one."""
    given: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        given.setdefault((row.table, row.row), set()).add(row.model)
    for (table, name), models in given.items():
        if models <= set(MODELS):
            for model in (model for model in MODELS if model not in models):
                yield Skipped(table, name, TITLES[model], "no value is published")
