"""The systems of a study on workers, rates and traces of your own: the same tables, without published values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from paceline import sweep
from paceline._core import parse_rate
from paceline._internal import units
from paceline.catalog.builtin import load_trace
from paceline.errors import InvalidArgumentError
from paceline.forecast.result import Result
from paceline.settings.table import SETTINGS, SWEEP

from paceline_lab.studies.network_operator.mechanisms import MECHANISMS, RING_WHOLE, strategy_of
from paceline_lab.studies.report import Prediction, Study


@dataclass(frozen=True)
class System:
    """A system that a study compares, as a forecast."""

    strategy: str
    library: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """The systems of a study by their names there, the first of which others are compared with; and its usual setup."""

    systems: Mapping[str, System]
    traces: Sequence[str]
    workers: Sequence[int]
    bandwidth: Sequence[str] | None
    cluster: str | None = None


@dataclass(frozen=True)
class Own:
    """Values that replace those of a study; empty ones stand for the study's."""

    workers: Sequence[int] = ()
    bandwidth: Sequence[str] = ()
    traces: Sequence[str] = ()

    @classmethod
    def of(cls, workers: Sequence[str] | None, bandwidth: Sequence[str] | None, traces: Sequence[str]) -> Own | None:
        """Check what was typed; None if nothing was. Raises InvalidArgumentError, which names the option."""
        if workers is None and bandwidth is None and not traces:
            return None
        counts = () if workers is None else SETTINGS["workers"].check(workers, None, SWEEP)
        rates = () if bandwidth is None else SETTINGS["bandwidth"].check(bandwidth, None, SWEEP)
        return cls(counts, rates, traces)


_NONE = "none"
_COMPARISONS: Mapping[str, Comparison] = {
    "network-operator": Comparison(
        {
            name: System(strategy_of(name), _NONE, {"chunk": "whole"} if name == RING_WHOLE else {})
            for name in MECHANISMS
        },
        ("netop-vgg-16", "netop-inception-v3", "netop-resnet-101", "netop-resnet-200"),
        (32,),
        ("25Gbps",),
    ),
    "ray-sgd": Comparison(
        {
            "Horovod": System("ring", "horovod-uncached"),
            "Distributed TensorFlow": System("sharded-ps", "tensorflow-grpc"),
            "Ray": System("sharded-ps", "ray-sgd"),
        },
        ("resnet-101",),
        (4, 8, 16, 32, 64),
        None,
        "p3.16xlarge",
    ),
    "ddl-nccl": Comparison(
        {"Horovod, NCCL": System("native", "horovod"), "Horovod, DDL": System("native", "horovod-ddl")},
        ("resnet-50",),
        (4, 8, 16, 24),
        None,
        "longhorn",
    ),
    "cuda-aware-mpi": Comparison(
        {
            "gRPC": System("sharded-ps", "tensorflow-grpc"),
            "gRPC+Verbs": System("sharded-ps", "tensorflow-verbs"),
            "gRPC+GDR": System("sharded-ps", "tensorflow-gdr"),
            "NCCL2": System("ring", "horovod-uncached"),
            "CUDA-aware MPI": System("halving-doubling", "horovod-mpi-gpu"),
            "MPI through the host": System("halving-doubling", "horovod-mpi"),
        },
        ("resnet-50", "mobilenet-v1"),
        (2, 4, 8, 16, 32, 64),
        None,
        "piz-daint",
    ),
}


def comparison_of(study: str) -> Comparison:
    """Return the comparison of a study. Raises InvalidArgumentError for one with values of its own only."""
    if study not in _COMPARISONS:
        known = units.listed([f"paceline study {name}" for name in _COMPARISONS], "or")
        raise InvalidArgumentError(f"--workers, --bandwidth and --trace have no effect on {study}", remedy=known)
    return _COMPARISONS[study]


def run(
    study: str, title: str, own: Own, plots: Path | None, progress: Callable[[int, int], None] | None = None
) -> Study:
    """Forecast the systems of a study with other values; draw a figure if a folder is given."""
    what = comparison_of(study)
    traces = [load_trace(word) for word in (own.traces or what.traces)]
    workers = list(own.workers or what.workers)
    rates = list(own.bandwidth or what.bandwidth or [])
    results: dict[str, list[Result]] = {}
    for done, (name, system) in enumerate(what.systems.items()):
        if progress is not None:
            progress(done, len(what.systems))
        options: dict[str, Any] = {"library": system.library, **system.options}
        options |= {"bandwidth": rates} if rates else {}
        results[name] = sweep(traces, what.cluster, system.strategy, workers=workers, **options)  # type: ignore[arg-type]
    first = next(iter(what.systems))
    each: list[str | None] = [*rates] or [None]
    values: list[Prediction] = []
    for is_gain in (False, True):
        table, unit = (f"speed-up over {first}", "x") if is_gain else ("iteration time", "s")
        for trace, rate, count in product([one.name for one in traces], each, workers):
            where = trace if rate is None else f"{trace}, {units.rate(parse_rate(rate))}"
            base = _result(results[first], trace, rate, count).iteration_s
            for name, found in results.items():
                own_s = _result(found, trace, rate, count).iteration_s
                figure = base / own_s if is_gain else own_s
                values.append(Prediction(f"{where}: {table}", name, f"{count} GPUs", figure, unit))
    drawn: list[str] = []
    if plots is not None:
        from paceline_lab.studies.curves import Panel, draw

        tables = list(dict.fromkeys(it.table for it in values))
        panels = {
            table: Panel(
                table.partition(":")[0], "workers", table.partition(": ")[2] + (" (s)" if "time" in table else "")
            )
            for table in tables
        }
        drawn = [str(draw(values, plots / f"{study}-own.png", f"{study}, with values of your own", panels))]
    note = "Workers, rates or traces are your own: nothing is published for them, and no claim is tested."
    return Study(title, [], [], drawn, simulations=sum(map(len, results.values())), notes=(note,), forecasts=values)


def _result(results: Sequence[Result], trace: str, rate: str | None, workers: int) -> Result:
    wanted = None if rate is None else parse_rate(rate)
    return next(
        it for it in results if it.trace == trace and it.workers == workers and wanted in (None, it.bandwidth_bps)
    )
