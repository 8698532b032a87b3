"""The study `ray-sgd`: Ray's distributed SGD, Horovod and Distributed TensorFlow, 4 to 64 V100.

p3.16xlarge (8 V100 and 25 Gbit/s per node), ResNet-101, batch 64 per GPU. The published values are images/s of one Ray
worker with 1 to 8 GPUs, and weak-scaling factors over 4 GPUs on one node; the rest is forecast. The engines and
constants are those of `published`; only the path inside the node is new.

The 8 GPUs of a node form a hybrid cube mesh: each has NVLinks to 4 others, and reaches 3 over PCI Express and the bus
between the sockets. *Simple* reduces to one GPU: with 8 GPUs, three gradients take that slower path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from paceline._core import Trace
from paceline.catalog.builtin import load_cluster, load_trace
from paceline.catalog.channels import constant, with_channel
from paceline.catalog.constants import as_rate
from paceline.catalog.libraries import find_library
from paceline.forecast.run import result_of
from paceline.forecast.scenario import Scenario
from paceline.settings.keywords import CoreOptions

from paceline_lab.studies import run_in_turn
from paceline_lab.studies.claims import judged
from paceline_lab.studies.curves import Panel, draw
from paceline_lab.studies.report import ClaimResult, Compared, Prediction, Study

TITLE = (
    "Ray distributed SGD evaluation: ResNet-101, batch 64, p3.16xlarge (8 V100 and 25 Gbit/s a node): images/s, and "
    "weak scaling over 4 GPUs on one node"
)
_MODEL, _BATCH = "resnet-101", 64
# One Ray worker with one GPU: the baseline of all values.
_ONE_GPU = 218.0
_ONE_WORKER = {2: 388.0, 4: 759.0, 8: 985.0}
HOROVOD, TENSORFLOW, RAY = "Horovod", "Distributed TensorFlow", "Ray"
_LIBRARIES = {HOROVOD: "horovod-uncached@2.8", TENSORFLOW: "tensorflow-grpc", RAY: "ray-sgd"}
SYSTEMS = (HOROVOD, TENSORFLOW, RAY)
# System → speedup over 4 GPUs at (GPUs, nodes).
_FACTORS = {
    HOROVOD: {(8, 2): 1.9, (16, 4): 1.9},
    TENSORFLOW: {(8, 2): 1.8, (16, 4): 2.7},
    RAY: {(8, 2): 1.8, (16, 4): 2.2},
}
SIMPLE, NCCL, IDEAL = "simple", "NCCL", "ideal"
_GPUS = (4, 8, 16, 32, 64)
_SCALING = "weak scaling over 4 GPUs"
# NVLink of p3.16xlarge's hybrid cube mesh.
_DIRECT_PEERS = 4
_MESH = 8
# *ideal* moves nothing inside a node.
_NO_LIMIT = 1e14


@dataclass(frozen=True)
class Layout:
    """A configuration: system, GPUs, GPUs per node, and the reduction inside the node."""

    system: str
    gpus: int
    per_node: int
    inside: str = NCCL

    @property
    def nodes(self) -> int:
        """Number of nodes, all of them full."""
        return self.gpus // self.per_node


def port_bps(gpus: int, inside: str) -> float:
    """Return the rate at which one GPU of a node receives from the others, in bits per second.

    In *simple*, peers send simultaneously, each over its own NVLink; those without an NVLink to the root share the bus
    between the sockets, which is then the bottleneck. One process sends for all GPUs of a node, so NCCL also reduces to
    one GPU, in the time of its ring: 2 (n - 1) / n of the bytes at its rate.
    """
    if inside == NCCL:
        return gpus * find_library("tensorflow-replicas").required("intra_bandwidth")
    peers = gpus - 1
    if gpus < _MESH:
        return max(1, peers) * constant("inside.nvlink-one")
    return peers / (peers - _DIRECT_PEERS) * constant("inside.qpi")


@lru_cache(maxsize=1)
def _step() -> Trace:
    return load_trace(_MODEL).with_batch(_BATCH).scaled_to_rate(_ONE_GPU)


@lru_cache(maxsize=256)
def rate(layout: Layout) -> float:
    """Return images/s."""
    workers, per_node = layout.gpus, layout.per_node
    if layout.inside == IDEAL:  # One GPU's gradient stands for the whole node's.
        workers, per_node = layout.nodes, 1
    if layout.gpus == 1:
        return _ONE_GPU
    inside: dict[str, Any] = {}
    if layout.system != HOROVOD:
        bps = port_bps(layout.per_node, layout.inside) if layout.inside != IDEAL else _NO_LIMIT
        inside["intra_bandwidth"] = as_rate(bps)
    # As p3.16xlarge, except that the path inside the node is that of the layout.
    inside.setdefault("intra_bandwidth", as_rate(constant("inside.nvlink-v100")))
    machine = with_channel(load_cluster(None, bandwidth="25Gbps", gpus_per_node=per_node, **inside), "tcp")
    library = find_library(_LIBRARIES[layout.system])
    options: CoreOptions = {} if layout.system == HOROVOD else {"servers": layout.nodes, "inside": "root"}
    scenario = Scenario.of(_step(), machine, library.strategy, workers, library=library, **options)
    return layout.gpus * _BATCH / result_of(scenario).iteration_s


def _system(system: str, gpus: int, per_node: int) -> Layout:
    return Layout(system, gpus, min(gpus, per_node), SIMPLE if system == RAY else NCCL)


def factor(system: str, gpus: int, per_node: int = 4) -> float:
    """Return the speedup over 4 GPUs on one node."""
    return rate(_system(system, gpus, per_node)) / rate(_system(system, 4, 4))


def _rows() -> list[Compared]:
    model = "ResNet-101"
    rows = [
        Compared(
            "one Ray worker",
            f"{gpus} GPUs of a node",
            model,
            published,
            rate(Layout(RAY, gpus, gpus, SIMPLE)),
            "/s",
            gpus == 2,
        )
        for gpus, published in _ONE_WORKER.items()
    ]
    for system, points in _FACTORS.items():
        for (gpus, nodes), published in points.items():
            row = f"{system}, {gpus} GPUs on {nodes} nodes"
            calibrated = system == RAY
            rows.append(Compared(_SCALING, row, model, published, factor(system, gpus), "x", calibrated))
    return rows


def _forecasts() -> list[Prediction]:
    values = []
    for per_node in (4, 8):
        for system in SYSTEMS:
            for gpus in _GPUS:
                row = f"{system}, {per_node} a node"
                if gpus >= per_node:
                    layout = _system(system, gpus, per_node)
                    values.append(Prediction("throughput", row, f"{gpus} GPUs", rate(layout), "/s"))
        for inside in (SIMPLE, NCCL, IDEAL):
            for gpus in _GPUS:
                if gpus >= per_node:
                    row, layout = f"Ray, {inside}, {per_node} a node", Layout(RAY, gpus, per_node, inside)
                    values.append(Prediction("inside the node", row, f"{gpus} GPUs", rate(layout), "/s"))
    return values


def _factors() -> list[Prediction]:
    """Return speedups over 4 GPUs of one node, for the figure."""
    return [
        Prediction(_SCALING, f"{system}, 4 a node", f"{gpus} GPUs", factor(system, gpus), "x")
        for system in SYSTEMS
        for gpus in _GPUS
    ]


def _panels() -> dict[str, Panel]:
    of_one_node = [(RAY, float(gpus), rate) for gpus, rate in _ONE_WORKER.items()]
    factors = [(system, float(gpus), x) for system, points in _FACTORS.items() for (gpus, _), x in points.items()]
    return {
        "throughput": Panel("throughput", "GPUs", "images/s", [it for it in of_one_node if it[1] >= min(_GPUS)]),
        _SCALING: Panel("speedup over 4 GPUs of one node", "GPUs", "speedup", factors),
        "inside the node": Panel("Ray, by the reduction inside the node", "GPUs", "images/s"),
    }


def _claims() -> list[ClaimResult]:
    sixteen = {per_node: rate(_system(RAY, 16, per_node)) for per_node in (4, 8)}
    horovod = {gpus: rate(_system(HOROVOD, gpus, 8)) for gpus in (8, 16)}
    inside = {(how, gpus): rate(Layout(RAY, gpus, gpus, how)) for how in (SIMPLE, NCCL) for gpus in (4, 8)}
    ideal = {gpus: rate(Layout(RAY, gpus, gpus, IDEAL)) for gpus in (4, 8)}
    near = {gpus: rate(_system(RAY, gpus, 4)) / rate(_system(HOROVOD, gpus, 4)) for gpus in (8, 16)}
    close = {gpus: rate(_system(RAY, gpus, 4)) / rate(_system(TENSORFLOW, gpus, 4)) for gpus in (8, 16)}
    return judged(
        "ray-sgd",
        [
            {"Ray, 16 GPUs, 4 a node, /s": sixteen[4], "8 a node, /s": sixteen[8]},
            {"8 on one node, /s": horovod[8], "16 on two, /s": horovod[16]},
            {f"Ray / Horovod, {gpus} GPUs": ratio for gpus, ratio in near.items()},
            {f"Ray / Distributed TensorFlow, {gpus} GPUs": ratio for gpus, ratio in close.items()},
            *({"simple, /s": inside[SIMPLE, gpus], "NCCL, /s": inside[NCCL, gpus]} for gpus in (4, 8)),
            {f"{how}, {gpus} GPUs, of ideal": value / ideal[gpus] for (how, gpus), value in inside.items()},
        ],
    )


def run(plots: Path | None = None, progress: Callable[[int, int], None] | None = None) -> Study:
    """Simulate everything; draw the figure if a folder is given."""
    rows, forecasts, claims = run_in_turn((_rows, _forecasts, _claims), progress)
    drawn: list[str] = []
    if plots is not None:
        title = "Ray, Horovod and Distributed TensorFlow: ResNet-101, batch 64 per GPU, V100, 25 Gbit/s a node"
        drawn = [str(draw([*forecasts, *_factors()], plots / "ray-sgd.png", title, _panels()))]
    notes = (
        "Base of everything: 218 images/s of one GPU. Rows without a figure number have factors from the text.",
        "16 GPUs on 4 nodes reached 1.9 to 2.7 times the throughput of 4; no constant explains that together with 1.8 "
        "to 1.9 on 2.",
    )
    return Study(TITLE, rows, claims, drawn, notes=notes, forecasts=forecasts)
