"""The study `cuda-aware-mpi`: gRPC, gRPC over other channels, and all-reduce with MPI and NCCL.

A. A. Awan et al., "Scalable Distributed DNN Training using TensorFlow and CUDA-Aware MPI: Characterization, Designs,
and Performance Evaluation". Only numbers in the abstract and text are compared; no values are read off the figures.
Latencies: 16 GPUs, one per node, 100 Gbit/s InfiniBand. Training: Piz Daint, one P100 per node.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from paceline._core import Cluster, Trace
from paceline.catalog.builtin import load_cluster, load_trace
from paceline.catalog.channels import with_channel
from paceline.catalog.libraries import find_library
from paceline.catalog.rates import rates_of
from paceline.forecast.run import result_of
from paceline.forecast.scenario import Scenario
from paceline.settings.keywords import CoreOptions

from paceline_lab.studies import run_in_turn
from paceline_lab.studies.claims import judged
from paceline_lab.studies.curves import Panel, draw
from paceline_lab.studies.own import Comparison
from paceline_lab.studies.report import ClaimResult, Compared, Prediction, Study

TITLE = (
    'A. A. Awan et al., "Scalable Distributed DNN Training using TensorFlow and CUDA-Aware MPI": latency of '
    "all-reduces, training on Piz Daint"
)
_SIZES = {"8 B": 8, "1 KiB": 1 << 10, "64 KiB": 1 << 16, "1 MiB": 1 << 20, "16 MiB": 1 << 24, "256 MiB": 1 << 28}
_RANKS = 16
_GPUS = (2, 4, 8, 16, 32, 64)
_BATCHES = (16, 32, 64, 128)
_MOBILENET = "mobilenet-v1"
_LIKE = {_MOBILENET: "mobilenet-v2"}
"""No rate is published for these on a P100: they are as much slower there than on a V100 as a similar model."""


DESIGNS = {
    "NCCL2": "horovod-nccl2",
    "CUDA-aware MPI": "horovod-mpi-gpu",
    "MPI through the host": "horovod-mpi",
    "Baidu": "baidu-ring",
    "gRPC": "tensorflow-grpc",
    "gRPC+Verbs": "tensorflow-verbs",
    "gRPC+GDR": "tensorflow-gdr",
}
"""The library of each design, with the strategy that it uses by itself."""
ALL_REDUCES = ("NCCL2", "CUDA-aware MPI", "MPI through the host")


def _scenario(name: str, trace: Trace, machine: Cluster, ranks: int) -> Scenario:
    library = find_library(DESIGNS[name])
    options: CoreOptions = {"servers": ranks} if library.strategy == "sharded-ps" else {}
    return Scenario.of(trace, machine, library.strategy, ranks, library=library, **options)


@lru_cache(maxsize=128)
def latency(name: str, size: int) -> float:
    """Return the latency in seconds of an all-reduce of `size` bytes over 16 ranks."""
    machine = with_channel(load_cluster(None, bandwidth="100Gbps"), "rdma")
    return result_of(_scenario(name, Trace.all_reduce(f"allreduce:{size}B"), machine, _RANKS)).iteration_s


@lru_cache(maxsize=8)
def _device_rate(model: str) -> float:
    """Return images/s of one P100."""
    if (like := _LIKE.get(model)) is None:
        return rates_of(model)["P100"].samples_per_s
    trace, rates = load_trace(model), rates_of(like)
    on_v100 = trace.batch / (trace.forward_s + trace.backward_s + trace.optimizer_s)
    return on_v100 * rates["P100"].samples_per_s / rates["V100"].samples_per_s


def _step(model: str, batch: int = 64) -> Trace:
    """Return a model's step on a P100, whose published rate is assumed to be the same at every batch size."""
    return load_trace(model).with_batch(batch).scaled_to_rate(_device_rate(model))


def _training(name: str, trace: Trace, gpus: int, bandwidth: str | None = None) -> Scenario:
    return _scenario(name, trace, with_channel(load_cluster("piz-daint", bandwidth=bandwidth)), gpus)


@lru_cache(maxsize=256)
def rate(name: str, model: str, gpus: int, batch: int = 64) -> float:
    """Return images/s on Piz Daint."""
    return gpus * batch / result_of(_training(name, _step(model, batch), gpus)).iteration_s


def efficiency(name: str, model: str, gpus: int) -> float:
    """Return the scaling efficiency."""
    return rate(name, model, gpus) / gpus / _device_rate(model)


COMPARISON = Comparison(tuple(DESIGNS), _training, ("resnet-50", _MOBILENET), _step, _GPUS)


def _forecasts() -> list[Prediction]:
    values = [
        Prediction("all-reduce over 16 GPUs", name, label, 1e6 * latency(name, size), "us")
        for name in ALL_REDUCES
        for label, size in _SIZES.items()
    ]
    for model in ("resnet-50", _MOBILENET):
        values += [
            Prediction(f"{model} on Piz Daint", name, f"{gpus} GPUs", rate(name, model, gpus), "/s")
            for name in DESIGNS
            for gpus in _GPUS
        ]
    values += [
        Prediction("resnet-50, 64 GPUs, by batch", name, f"batch {batch}", rate(name, "resnet-50", 64, batch), "/s")
        for name in DESIGNS
        for batch in _BATCHES
    ]
    return values


def _rows() -> list[Compared]:
    mpi, grpc = "CUDA-aware MPI", "gRPC"
    large = latency(mpi, 1 << 28) / latency("NCCL2", 1 << 28)
    ratio = {model: rate(mpi, model, 64) / rate(grpc, model, 64) for model in ("resnet-50", _MOBILENET)}
    return [
        Compared(
            "abstract",
            "efficiency of Horovod-MPI, 64 GPUs",
            "ResNet-50",
            90.0,
            100 * efficiency(mpi, "resnet-50", 64),
            "%",
            False,
        ),
        Compared("abstract", "latency over NCCL2's, large messages", "256 MiB", 0.71, large, "x", False),
        Compared("abstract", "throughput over gRPC's, Piz Daint", "ResNet-50", 1.8, ratio["resnet-50"], "x", False),
        Compared("abstract", "throughput over gRPC's, Piz Daint", "MobileNet", 3.2, ratio[_MOBILENET], "x", False),
    ]


def _claims() -> list[ClaimResult]:
    faster = {label: latency("NCCL2", size) / latency("CUDA-aware MPI", size) for label, size in _SIZES.items()}
    beaten = {name: rate(name, "resnet-50", 64) / rate("gRPC", "resnet-50", 64) for name in DESIGNS if name != "gRPC"}
    batch = {size: rate("CUDA-aware MPI", "resnet-50", 64, size) / 64 for size in (16, 128)}
    gains = {
        title: rate("CUDA-aware MPI", model, 64) / rate("gRPC", model, 64)
        for title, model in (("ResNet-50", "resnet-50"), ("MobileNet", _MOBILENET))
    }
    figures = [
        {f"NCCL2 / MPI, {label}": value for label, value in faster.items()},
        {"MPI / NCCL2, 256 MiB": 1 / faster["256 MiB"]},
        {f"{name} / gRPC": ratio for name, ratio in beaten.items()},
        {name: rate(name, "resnet-50", 64) for name in ALL_REDUCES},
        {f"batch {size}, /s a GPU": value for size, value in batch.items()},
        {"of linear": efficiency("CUDA-aware MPI", "resnet-50", 64)},
        *({title: gains[title]} for title in gains),
        gains,
    ]
    return judged("cuda-aware-mpi", figures)


def run(plots: Path | None = None, progress: Callable[[int, int], None] | None = None) -> Study:
    """Simulate everything; draw the figures if a folder is given."""
    rows, values, claims = run_in_turn((_rows, _forecasts, _claims), progress)
    drawn: list[str] = []
    if plots is not None:
        latencies = [it for it in values if it.unit == "us"]
        rates = [it for it in values if it.unit == "/s"]
        of_latency = {"all-reduce over 16 GPUs": Panel("16 GPUs, one a node, InfiniBand", "size", "latency (us)")}
        of_rates = {
            "resnet-50 on Piz Daint": Panel("ResNet-50, batch 64", "GPUs", "images/s"),
            f"{_MOBILENET} on Piz Daint": Panel("MobileNet v1, batch 64", "GPUs", "images/s"),
            "resnet-50, 64 GPUs, by batch": Panel("ResNet-50, 64 GPUs", "batch per GPU", "images/s"),
        }
        title = "All-reduces: MPI's latency is the lowest\n(simulated; only ratios are published)"
        drawn = [str(draw(latencies, plots / "cuda-aware-mpi-latency.png", title, of_latency))]
        title = "Piz Daint, one P100 a node: gRPC scales worst (simulated; only ratios are published)"
        drawn.append(str(draw(rates, plots / "cuda-aware-mpi.png", title, of_rates)))
    notes = (
        "The channels gRPC+Verbs and gRPC+GDR are only forecast, not run.",
        "MobileNet is version 1. No rate of it is published: it follows from MobileNet v2's (309 images/s on a P100 at "
        "batch 12, limited by a host) and the CPU time of both.",
        "The number of servers is not published: one per node is assumed, sharing its NIC.",
    )
    return Study(TITLE, rows, claims, drawn, notes=notes, forecasts=values)
