"""Which library and channel a published system stands for, from the words of `sync` and `system`.

What a library costs is in `paceline.catalog.libraries`; nothing here is a constant of a forecast.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from paceline.catalog import channels
from paceline.catalog.libraries import find_library
from paceline.catalog.nodes import inside_of
from paceline.errors import PacelineError

from paceline_lab.studies.published.data import SERVERS_AT_NODES, Row


class CannotForecastError(PacelineError):
    """A row cannot be forecast; the message says why."""


R = TypeVar("R")
F = TypeVar("F")


def forecast_each(
    rows: Sequence[R], forecast: Callable[[R], F], progress: Callable[[int, int], None] | None
) -> tuple[list[F], list[tuple[R, str]]]:
    """Return the forecasts of rows, and those that have none, with the reason."""
    forecasts: list[F] = []
    skipped: list[tuple[R, str]] = []
    for done, row in enumerate(rows):
        if progress is not None:
            progress(done, len(rows))
        try:
            forecasts.append(forecast(row))
        except CannotForecastError as error:
            skipped.append((row, str(error)))
    if progress is not None:
        progress(len(rows), len(rows))
    return forecasts, skipped


@dataclass(frozen=True)
class Engine:
    """A library on a channel, and options of a forecast that the row decides."""

    library: str
    channel: str
    options: Mapping[str, Any] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    nccl: str = ""
    """The release of NCCL, if it is not the newest one that is known."""

    @property
    def name(self) -> str:
        """Return the name for tables."""
        return f"{self.library} over {self.channel.upper()}"

    @property
    def spec(self) -> str:
        """Return the library as `--library` takes it."""
        return f"{self.library}@{self.nccl}" if self.nccl else self.library


_YEAR = re.compile(r"\b20[12]\d\b")
# Horovod has had the response cache since 0.16.2 (2019).
_CACHED_SINCE = 2020
# GPUs newer than that release.
_SINCE_THEN = ("a100", "a800", "h100", "h200", "a10", "l4", "b200")


# The figures of NCCL 2.8 (2020) are those until 2.12 (2022).
_NCCL_2_8 = "2.8"
_NEWER_SINCE = 2023


def _engine(library: str, row: Row, **options: Any) -> Engine:  # noqa: ANN401
    own = find_library(library)
    old = own.strategy == "native" and not _is_since(row, _NEWER_SINCE)
    return Engine(library, own.channel or channel_of(row), options, nccl=_NCCL_2_8 if old else "")


def _year(row: Row) -> int:
    return max((int(year) for year in _YEAR.findall(row.source)), default=0)


def _is_since(row: Row, year: int) -> bool:
    """Return whether a row was measured in this year or later, or, if it does not say when, on GPUs of that time."""
    return _year(row) >= year if _year(row) else any(gpu in row.gpu.lower() for gpu in _SINCE_THEN)


def _nccl(row: Row) -> Engine:
    year, cached = _year(row), _is_since(row, _CACHED_SINCE)
    engine = _engine("horovod" if cached else "horovod-uncached", row)
    note = "Horovod without a response cache (before 0.16.2, 2019)"
    return engine if year or cached else replace(engine, assumed=(note,))


def _replicas(row: Row) -> Engine:
    if row.nodes > 1:
        raise CannotForecastError("replicas of one process run on one node, but the row has several")
    return _engine("tensorflow-replicas", row)


def _host_replicas(row: Row) -> Engine:
    return _tensorflow(row) if row.nodes > 1 else _engine("tensorflow-host", row)


def _tensorflow(row: Row) -> Engine:
    words = f"{row.sync} {row.system}".lower()
    if re.search(r"gdr|gpudirect", words):
        return _engine("tensorflow-gdr", row, servers=servers_of(row))
    if re.search(r"grpc\s*\+\s*mpi", words):
        return _engine("tensorflow-mpi", row, servers=servers_of(row))
    if re.search(r"grpc\s*\+|verbs", words):
        return _engine("tensorflow-verbs", row, servers=servers_of(row))
    # Horovod's comparison ran one process per GPU; elsewhere one process drives all GPUs of a node.
    library = "tensorflow-grpc-process" if "horovod/horovod" in row.source else "tensorflow-grpc"
    return _engine(library, row, servers=servers_of(row))


def _byteps(row: Row) -> Engine:
    return _engine("byteps", row, servers=servers_of(row))


def _library(name: str) -> Callable[[Row], Engine]:
    return lambda row: _engine(name, row)


_RULES: tuple[tuple[str, Callable[[Row], Engine]], ...] = (
    (r"byteps", _byteps),
    (r"\bddl\b|ddl-", _library("horovod-ddl")),
    (r"\bray\b", _library("ray-sgd")),
    (r"mpi-allreduce-cpu|(horovod|mpi).*\bcpu\b", _library("horovod-mpi")),
    (r"cuda-?aware|mpi-allreduce-gpu|mpi-opt|\bmpi\b.*gpu", _library("horovod-mpi-gpu")),
    (r"parameter_server on cpu|intra-node .*parameter", _host_replicas),
    (r"replicated nccl", _replicas),
    (r"grpc|disttf|distributed tf|distributed tensorflow|^ps\b|parameter.?server", _tensorflow),
    (r"gloo", _library("ddp-gloo")),
    (r"baidu", _library("baidu-ring")),
    (r"\bddp\b|pytorch|torch", _library("ddp")),
    (r"horovod.*\bmpi\b|\bmpi\b", _library("horovod-mpi")),
    (r"nccl|horovod", _nccl),
)


def engine_of(row: Row) -> Engine:
    """Return the engine of a row. Raises CannotForecastError."""
    if row.sync in ("-", "none"):
        raise CannotForecastError("does not synchronize gradients: a measurement of something else")
    words = f"{row.sync} {row.system}".lower()
    for pattern, make in _RULES:
        if re.search(pattern, words):
            engine = make(row)
            return replace(engine, assumed=(*engine.assumed, *_guesses(row, engine)))
    raise CannotForecastError(f"system '{row.system[:80]}' is unknown; docs/results/published.md lists the known ones")


_SAY_RDMA = ("rdma", "verbs", "gdr", "infiniband", "roce", "ddl")
_SAY_TCP = ("tcp", "grpc", "gloo")


def names_channel(row: Row) -> bool:
    """Return whether `sync` or `system` names the channel."""
    words = f"{row.sync} {row.system}".lower()
    return any(word in words for word in (*_SAY_RDMA, *_SAY_TCP))


def channel_of(row: Row) -> str:
    """Return the channel that `sync` or `system` names; by default the usual one of the link's rate."""
    words = f"{row.sync} {row.system}".lower()
    if any(word in words for word in _SAY_RDMA):
        return "rdma"
    if any(word in words for word in _SAY_TCP):
        return "tcp"
    return channels.auto(row.link_bps or 0)


def _guesses(row: Row, engine: Engine) -> list[str]:
    """Return notes on values that the row omits and the engine assumes."""
    made = []
    if row.nodes > 1 and not names_channel(row):
        made.append(f"{engine.channel.upper()} between nodes")
    if (
        "servers" in engine.options
        and row.servers
        and not _PLAIN.match(row.servers)
        and not row.servers.startswith("=")
    ):
        made.append(f"a server a node (ps '{row.servers[:40]}' says no number)")
    if row.gpus_per_node > 1 and inside_of(row.gpu) is None:
        made.append(f"PCI Express between the GPUs of a node ({row.gpu[:40]})")
    return made


_PLAIN = re.compile(r"[1-9]\d*$")
_OF_MODEL = re.compile(r"(\d+) \(([^)]+)\)")


def servers_of(row: Row) -> int:
    """`3`, `= workers; at 8 nodes 6 (Inc) / 4 (R152)`; by default one per node."""
    if plain := _PLAIN.match(row.servers):
        return int(plain[0])
    if (at := SERVERS_AT_NODES.search(row.servers)) and int(at[1]) == row.nodes:
        for count, model in _OF_MODEL.findall(at[2]):
            if _abbreviates(model.lower(), row.model.lower()):
                return max(1, int(count))
    return row.nodes


def _abbreviates(short: str, word: str) -> bool:
    """`r152` is short for `resnet152`."""
    letters = iter(word)
    return word[:1] == short[:1] and all(letter in letters for letter in short)
