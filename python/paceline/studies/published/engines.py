"""Maps a published system to the simulator: library × channel, from the words of `sync` and `system`.

| engine | model |
| --- | --- |
| Horovod, NCCL | one flat ring over all GPUs, or trees (`native`), tensors fused, a coordinator on rank 0 |
| Horovod, MPI | the same through the host's memory, where a rank copies and adds |
| CUDA-aware MPI | recursive halving and doubling on GPU buffers |
| Horovod, DDL | rings inside the node, then between nodes |
| DistributedDataParallel | NCCL's ring or trees over buckets of 25 MB |
| Gloo | a ring through the host's memory |
| Distributed TensorFlow | reduction inside the node, then servers that hold whole variables, over gRPC or Verbs |
| BytePS | reduction inside the node, then separate servers that share every tensor |
| Ray SGD | reduction inside the node, then a server on every node, through the object store |
| replicas of one process | reduction inside the node |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.errors import PacelineError
from paceline.studies.published.constants import as_rate, constant
from paceline.studies.published.data import Row
from paceline.studies.published.network import Channel, channel_of, knows_inside, names_channel


class CannotForecastError(PacelineError):
    """A row cannot be forecast; the message says why."""


@dataclass(frozen=True)
class Engine:
    """A library on a channel. `call_s`: per tensor, on the training thread; `negotiation_s`: per tensor and rank."""

    name: str
    strategy: str
    channel: Channel
    options: Mapping[str, Any] = field(default_factory=dict)
    cluster: Mapping[str, Any] = field(default_factory=dict)
    # TCP connections between two nodes.
    streams: int = 1
    call_s: float = 0.0
    negotiation_s: float = 0.0
    # Tensors are fused as they become ready, not up to a size.
    fuses: bool = False
    assumed: tuple[str, ...] = ()


# Larger than any model's gradients.
RAY_BUCKET = 1 << 40
_YEAR = re.compile(r"\b20[12]\d\b")
# Horovod has had the response cache since 0.16.2 (2019).
_CACHED_SINCE = 2020
# GPUs newer than that release.
_SINCE_THEN = ("a100", "a800", "h100", "h200", "a10", "l4", "b200")


def _horovod(row: Row, name: str, strategy: str, channel: Channel, **more: Any) -> Engine:  # noqa: ANN401
    year = max((int(year) for year in _YEAR.findall(row.source)), default=0)
    cached = year >= _CACHED_SINCE if year else any(gpu in row.gpu.lower() for gpu in _SINCE_THEN)
    return Engine(
        name=f"Horovod, {name}",
        strategy=strategy,
        channel=channel,
        options=more.pop("options", {}),
        call_s=constant("call"),
        negotiation_s=0.0 if cached else constant("horovod.negotiation"),
        fuses=True,
        assumed=() if year or cached else ("Horovod without a response cache (before 0.16.2, 2019)",),
        **more,
    )


def _host(name: str) -> dict[str, str]:
    return {"host_bandwidth": as_rate(constant(name))}


def _nccl(row: Row) -> Engine:
    return _horovod(row, "NCCL", "native", channel_of(row))


def _mpi_cpu(row: Row) -> Engine:
    return _horovod(row, "MPI through the host", "ring", channel_of(row), streams=4, cluster=_host("mpi.host"))


def _mpi_gpu(row: Row) -> Engine:
    return _horovod(row, "CUDA-aware MPI", "halving-doubling", Channel.RDMA)


def _ddl(row: Row) -> Engine:
    return _horovod(row, "DDL", "hierarchical", channel_of(row), options={"inside": "ring"})


def _gloo(row: Row) -> Engine:
    return Engine("Gloo", "ring", Channel.TCP, {"bucket_size": int(constant("ddp.bucket"))}, _host("mpi.host"))


def _baidu(row: Row) -> Engine:
    return Engine("Baidu's ring over MPI", "ring", channel_of(row), {}, _host("mpi.host"), streams=4)


def _ddp(row: Row) -> Engine:
    bucket = {"bucket_size": int(constant("ddp.bucket"))}
    return Engine("DistributedDataParallel, NCCL", "native", channel_of(row), bucket, call_s=constant("call"))


def _replicas(row: Row) -> Engine:
    if row.nodes > 1:
        raise CannotForecastError("replicas of one process run on one node, but the row has several")
    inside = {"intra_bandwidth": as_rate(constant("tf.nccl"))}
    return Engine("replicas, NCCL", "ring", channel_of(row), {"overlap": False}, inside)


def _host_replicas(row: Row) -> Engine:
    if row.nodes > 1:
        return _tensorflow(row)
    inside = {"intra_bandwidth": as_rate(constant("inside.pcie")), "servers": "colocated"}
    return Engine("replicas, parameters on the host", "sharded-ps", channel_of(row), {"inside": "root"}, inside)


def _tensorflow(row: Row) -> Engine:
    fast = re.search(r"grpc\s*\+|verbs|gdr", f"{row.sync} {row.system}".lower()) is not None
    cluster = {"servers": "colocated"} if fast else {"servers": "colocated", **_host("grpc.host")}
    name = "Distributed TensorFlow, gRPC" + (" and another channel" if fast else "")
    # Horovod's comparison ran one process per GPU; elsewhere one process drives all GPUs of a node.
    if "horovod/horovod" in row.source:
        return Engine(f"{name}, a process a GPU", "ps", channel_of(row), {"servers": servers_of(row)}, cluster, 4)
    options = {"chunk": "whole", "servers": servers_of(row), "inside": "ring"}
    return Engine(name, "sharded-ps", channel_of(row), options, cluster, streams=4)


def _byteps(row: Row) -> Engine:
    options = {"servers": servers_of(row), "inside": "ring"}
    return Engine("BytePS", "sharded-ps", channel_of(row), options, _host("byteps.host"), streams=4)


def _ray(row: Row) -> Engine:
    # A worker sends all gradients together once they are complete, and each server holds a part.
    options = {"servers": row.nodes, "inside": "root", "bucket_size": RAY_BUCKET, "overlap": False}
    return Engine("Ray SGD", "sharded-ps", Channel.TCP, options, {"servers": "colocated", **_host("ray.host")}, 4)


_RULES: tuple[tuple[str, Callable[[Row], Engine]], ...] = (
    (r"byteps", _byteps),
    (r"\bddl\b|ddl-", _ddl),
    (r"\bray\b", _ray),
    (r"mpi-allreduce-cpu|(horovod|mpi).*\bcpu\b", _mpi_cpu),
    (r"cuda-?aware|mpi-allreduce-gpu|mpi-opt|\bmpi\b.*gpu", _mpi_gpu),
    (r"parameter_server on cpu|intra-node .*parameter", _host_replicas),
    (r"replicated nccl", _replicas),
    (r"grpc|disttf|distributed tf|distributed tensorflow|^ps\b|parameter.?server", _tensorflow),
    (r"gloo", _gloo),
    (r"baidu", _baidu),
    (r"\bddp\b|pytorch|torch", _ddp),
    (r"horovod.*\bmpi\b|\bmpi\b", _mpi_cpu),
    (r"nccl|horovod", _nccl),
)


def engine_of(row: Row) -> Engine:
    """Return the engine of a row. Raises CannotForecastError."""
    if row.sync in ("-", "none"):
        raise CannotForecastError("does not synchronise gradients: a measurement of something else")
    words = f"{row.sync} {row.system}".lower()
    for pattern, make in _RULES:
        if re.search(pattern, words):
            engine = make(row)
            return replace(engine, assumed=(*engine.assumed, *_guesses(row, engine)))
    raise CannotForecastError(f"system '{row.system[:80]}' is unknown; docs/results/published.md lists the known ones")


def _guesses(row: Row, engine: Engine) -> list[str]:
    """Return notes on values that the row omits and the engine assumes."""
    made = []
    if row.nodes > 1 and not names_channel(row):
        made.append(f"{engine.channel.value} between nodes")
    if (
        "servers" in engine.options
        and row.servers
        and not _PLAIN.match(row.servers)
        and not row.servers.startswith("=")
    ):
        made.append(f"a server a node (ps '{row.servers[:40]}' is not a number)")
    if row.gpus_per_node > 1 and not knows_inside(row.gpu):
        made.append(f"PCI Express between the GPUs of a node ({row.gpu[:40]})")
    return made


_PLAIN = re.compile(r"[1-9]\d*$")
_AT = re.compile(r"at (\d+) nodes? (.+)", re.IGNORECASE)
_OF_MODEL = re.compile(r"(\d+) \(([^)]+)\)")


def servers_of(row: Row) -> int:
    """`3`, `= workers; at 8 nodes 6 (Inc) / 4 (R152)`; by default one per node."""
    if plain := _PLAIN.match(row.servers):
        return min(int(plain[0]), 1024)
    if (at := _AT.search(row.servers)) and int(at[1]) == row.nodes:
        for count, model in _OF_MODEL.findall(at[2]):
            if _abbreviates(model.lower(), row.model.lower()):
                return max(1, int(count))
    return row.nodes


def _abbreviates(short: str, word: str) -> bool:
    """`r152` is short for `resnet152`."""
    letters = iter(word)
    return word[:1] == short[:1] and all(letter in letters for letter in short)
