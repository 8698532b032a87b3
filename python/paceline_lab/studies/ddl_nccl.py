"""The study `ddl-nccl`: Horovod over NCCL and over IBM's DDL on Longhorn, ResNet-50, batch 32, to 24 V100.

Longhorn has 4 V100 and one 100 Gbit/s InfiniBand card per node. The runs used TensorFlow 2.1 with `--model resnet50
--batch_size 32 --num_batches 100`: 1 to 4 GPUs with `--num_gpus` and no Horovod, then 4, 8, 16 and 24 with
`--variable_update=horovod` and HOROVOD_FUSION_THRESHOLD=16777216. The published values are slopes of linear
regressions, in images/s per GPU; DDL ran on at most two nodes. 2020-05-13.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from paceline._core import Trace
from paceline.catalog.builtin import load_cluster, load_trace
from paceline.catalog.channels import with_channel
from paceline.catalog.libraries import find_library
from paceline.catalog.rates import rates_of
from paceline.forecast.run import result_of
from paceline.forecast.scenario import Scenario
from paceline.settings.keywords import CoreOptions

from paceline_lab.studies.claims import judged
from paceline_lab.studies.curves import Panel, draw
from paceline_lab.studies.own import Comparison
from paceline_lab.studies.report import ClaimResult, Compared, Prediction, Study

TITLE = "DDL and NCCL under Horovod on Longhorn, 2020-05-13: ResNet-50, batch 32, slopes in images/s a GPU"
_MODEL, _BATCH, _PER_NODE = "resnet-50", 32, 4
_FUSION = 16_777_216
SINGLE, NCCL, DDL = "one process", "Horovod, NCCL", "Horovod, DDL"
_GPUS = {SINGLE: (1, 2, 3, 4), NCCL: (4, 8, 16, 24), DDL: (4, 8)}
# Slopes: one process with `--num_gpus` in either environment, then Horovod.
_PUBLISHED = {
    ("inside the node", "NCCL's environment"): (SINGLE, 294.8),
    ("inside the node", "DDL's environment"): (SINGLE, 300.8),
    ("between nodes", "NCCL"): (NCCL, 326.0),
    ("between nodes", "DDL"): (DDL, 330.6),
}


@lru_cache(maxsize=1)
def _step() -> Trace:
    device = rates_of(_MODEL)["V100"]
    return load_trace(_MODEL).with_batch(_BATCH).scaled_to_rate(device.samples_per_s)


@lru_cache(maxsize=64)
def rate(system: str, gpus: int) -> float:
    """Return images/s."""
    if gpus == 1:
        return rates_of(_MODEL)["V100"].samples_per_s
    return gpus * _BATCH / result_of(_scenario(system, _step(), gpus)).iteration_s


def _scenario(system: str, trace: Trace, gpus: int, bandwidth: str | None = None) -> Scenario:
    options: CoreOptions = {"bucket_size": "none"} if system == SINGLE else {"bucket_size": _FUSION}
    library = find_library("horovod-ddl" if system == DDL else "horovod@2.8")
    machine = with_channel(load_cluster("longhorn", gpus_per_node=min(gpus, _PER_NODE), bandwidth=bandwidth))
    strategy = "ring" if system == SINGLE else library.strategy
    return Scenario.of(trace, machine, strategy, gpus, library=library, **options)


COMPARISON = Comparison((NCCL, DDL), _scenario, (_MODEL,), lambda _: _step(), _GPUS[NCCL])


def slope(system: str) -> float:
    """Return images/s per GPU, by linear regression with an intercept."""
    gpus = _GPUS[system]
    return statistics.linear_regression(gpus, [rate(system, count) for count in gpus]).slope


def _claims() -> list[ClaimResult]:
    slopes = {system: slope(system) for system in _GPUS}
    gain = {"DDL / NCCL - 1": slopes[DDL] / slopes[NCCL] - 1, "NCCL, /s": slopes[NCCL], "DDL, /s": slopes[DDL]}
    figures = [
        # Without Horovod both environments run the same program.
        {"DDL / NCCL - 1": 0.0, "either, /s": slopes[SINGLE]},
        gain,
        gain,
        {
            "Horovod / one process - 1": slopes[NCCL] / slopes[SINGLE] - 1,
            "one process, /s": slopes[SINGLE],
            "Horovod, /s": slopes[NCCL],
        },
        {f"{gpus} GPUs, /s each": rate(NCCL, gpus) / gpus for gpus in (4, 24)},
        {f"{gpus} GPUs, of the slope": rate(SINGLE, gpus) / gpus / slopes[SINGLE] for gpus in (2, 3, 4)},
    ]
    return judged("ddl-nccl", figures)


def run(plots: Path | None = None, progress: Callable[[int, int], None] | None = None) -> Study:
    """Simulate everything; draw the figure if a folder is given."""
    points = [(system, gpus) for system, all_gpus in _GPUS.items() for gpus in all_gpus]
    values = []
    for done, (system, gpus) in enumerate(points):
        if progress is not None:
            progress(done, len(points))
        values.append(Prediction("throughput", system, f"{gpus} GPUs", rate(system, gpus), "/s"))
    if progress is not None:
        progress(len(points), len(points))
    values.sort(key=lambda it: int(it.model.split()[0]))
    rows = [
        Compared(table, row, "ResNet-50", published, slope(system), "/s/GPU", calibrated=False)
        for (table, row), (system, published) in _PUBLISHED.items()
    ]
    drawn: list[str] = []
    if plots is not None:
        title = "DDL and NCCL under Horovod scale almost linearly\nResNet-50, batch 32 per GPU, 4 V100 a node"
        panels = {"throughput": Panel("simulated; slopes are published, no throughput is", "GPUs", "images/s")}
        drawn = [str(draw(values, plots / "ddl-nccl.png", title, panels))]
    notes = (
        "Base: one V100's published 329 images/s at batch 32 in PyTorch; the study gives no rate for one GPU here.",
        "Without Horovod the two environments ran the same program: the 2.0 % between them is noise, and more than the "
        "published difference between DDL and NCCL.",
        "295 images/s a GPU in one process include runs of one GPU, which communicates nothing: Horovod's 326 are not "
        "explained by communication.",
    )
    return Study(TITLE, rows, _claims(), drawn, notes=notes, forecasts=values)
