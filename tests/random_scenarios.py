"""Random scenarios, as `paceline simulate` makes them: traces and models, clusters, libraries, strategies, options.

`python random_scenarios.py` writes what comes out of some, which tests compare with: run it for a change that is meant.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from paceline.errors import InvalidArgumentError
from paceline.forecast.lowering import is_long
from paceline.forecast.prepare import prepare
from paceline.forecast.request import Sweep
from paceline.forecast.run import result_of
from paceline.forecast.scenario import Scenario
from paceline.settings.table import SIMULATE

OUTCOMES = Path(__file__).with_suffix(".json")
SEED, KEPT = 1, 400
TRACES = ("alexnet", "resnet-18", "resnet-50", "vgg-16", "inception-v3", "bert-large", "allreduce:64KB")
TRACES += ("allreduce:3MB/7", "allreduce:100MB")
MODELS = ("gpt2-small", "llama-3-8b", "mixtral-8x7b", "resnet-50", "bert-large")
CLUSTERS = [
    "100g-ethernet",
    "10g-ethernet",
    "25g-ethernet",
    "56g-infiniband",
    "dgx-1-p100",
    "dgx-1-v100",
    "dgx-a100",
    "dgx-b200",
    "dgx-h100",
    "dlperf-v100",
    "fat-tree-k16",
    "flat",
    "gb200-nvl72",
    "gb300-nvl72",
    "h100-pod",
    "h100-rails",
    "internevo-a100",
    "leaf-spine-25g",
    "longhorn",
    "p2.8xlarge",
    "p3.16xlarge",
    "p3dn.24xlarge",
    "p4d.24xlarge",
    "p4de.24xlarge",
    "p5.48xlarge",
    "p5en.48xlarge",
    "p6-b200.48xlarge",
    "piz-daint",
    "slingshot-dragonfly",
    "summit",
    "tpu-v4-torus",
]
LIBRARIES = [
    "none",
    "baidu-ring",
    "byteps",
    "ddp",
    "ddp-gloo",
    "horovod",
    "horovod-ddl",
    "horovod-mpi",
    "horovod-mpi-gpu",
    "horovod-uncached",
    "ray-sgd",
    "tensorflow-gdr",
    "tensorflow-grpc",
    "tensorflow-grpc-process",
    "tensorflow-host",
    "tensorflow-replicas",
    "tensorflow-verbs",
]
STRATEGIES = [
    "ps",
    "ps-multicast",
    "ps-aggregation",
    "ps-multicast-aggregation",
    "ring",
    "ring-multicast",
    "recursive-doubling",
    "halving-doubling",
    "tree",
    "hierarchical",
    "sharded-ps",
    "sharp",
    "native",
]
"""Named here, so that what is added to the catalog changes no draw."""
GPUS = ("v100", "a100", "h100", "b200", "t4")
_SHARDINGS = ("none", "zero1", "zero2", "zero3", "hsdp", "hsdp:2", "hsdp:4", "zero1:2", "zero2:4")
_DTYPES = ("float32", "float16", "bfloat16")
_DEGRADED = ("node0:0.5", "node1:0.25", "rack0:0.5", "leaf0:0.3", "spine0:0.5")
OPTIONS: dict[str, tuple[Any, ...]] = {
    "servers": (1, 2, 3, 4),
    "chunk": ("whole", "per-worker", "64KiB", "1MB"),
    "placement": ("round-robin", "even"),
    "distribution": ("round-robin", "block"),
    "pull": ("layer", "step"),
    "inside": ("root", "ring"),
    "network": ("fifo", "fluid"),
    "barrier": (True, False),
    "overlap": (True, False),
    "iterations": (1, 2, 3),
    "seed": (0, 1, 7),
    "critical_path": (True, False),
    "detail": (True, False),
    "compute_speedup": (0.5, 1.0, 2.0, 3.7),
    "bucket_size": ("none", "1MB", "25MB", "100MB"),
    "bandwidth": ("1Gbps", "10Gbps", "25Gbps", "100Gbps", "400Gbps"),
    "latency": ("0us", "2us", "30us"),
    "message_overhead": ("0us", "5us"),
    "channel": ("none", "auto", "tcp", "rdma"),
    "gpus_per_node": (1, 2, 4, 8),
    "intra_bandwidth": ("10GBps", "300GBps"),
    "stragglers": ("0:1.5", "1:2"),
    "degraded": _DEGRADED,
}
"""Options that any job may have, with values."""
PLANS: dict[str, tuple[Any, ...]] = {
    "reshard_after_forward": ("yes", "no", 2),
    "prefetch": (0, 1, 2),
    "accumulate": (1, 2, 3),
    "accumulate_sync": (True, False),
    "param_dtype": _DTYPES,
    "reduce_dtype": _DTYPES,
    "optimizer": ("adam", "sgd", "momentum"),
    "memory": ("16GB", "80GB"),
}
"""Those of plans."""


def _given(draw: random.Random) -> tuple[str, dict[str, Any]]:
    """Return what is trained, and options, most of which go together."""
    is_model = draw.random() < 0.35
    workers = draw.choice((1, 2, 3, 4, 6, 8, 12, 16, 24, 32))
    given: dict[str, Any] = {"workers": workers}
    if is_model:
        trace = draw.choice(MODELS)
        given |= {"gpu": draw.choice(GPUS), "workers": draw.choice((8, 16, 32, 64, 128, 512))}
        for name in ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel"):
            if draw.random() < 0.15:
                given[name] = draw.choice((1, 2, 4, 8))
        if "pipeline_parallel" in given and draw.random() < 0.5:
            given["microbatches"] = draw.choice((2, 8))
    else:
        trace = draw.choice(TRACES)
    if draw.random() < 0.5:
        given["cluster"] = draw.choice(CLUSTERS)
    if draw.random() < 0.6:
        given["library"] = draw.choice(LIBRARIES)
    if draw.random() < 0.6:
        given["strategy"] = draw.choice(STRATEGIES)
    if draw.random() < 0.1:
        given["coordinator"] = draw.choice(("negotiate", "global-sleep", "nonblocking", "partitioned", "graph"))
    if draw.random() < 0.35:
        given["sharding"] = draw.choice(_SHARDINGS)
        given |= {name: draw.choice(values) for name, values in PLANS.items() if draw.random() < 0.15}
    elif draw.random() < 0.15:
        given["accumulate"] = draw.choice((1, 2, 3))
    if draw.random() < 0.12:
        given["compression"] = draw.choice(("none", "fp16", "bf16", "int8", "powersgd:4", "powersgd:32", "topk:0.01"))
    if draw.random() < 0.08:
        given["sync_every"] = draw.choice((1, 4, 16))
    given |= {name: draw.choice(values) for name, values in OPTIONS.items() if draw.random() < 0.06}
    return trace, given


def scenarios(seed: int) -> Iterator[tuple[str, Scenario]]:
    """Yield scenarios without end, each with the words that it was made of; what is refused is left out."""
    draw = random.Random(seed)
    while True:
        trace, given = _given(draw)
        try:
            made = prepare(Sweep.of(trace, given, SIMULATE, one_strategy=True)).scenarios
        except InvalidArgumentError:
            continue
        yield f"{trace} {given}", made[0]


def outcome(scenario: Scenario) -> dict[str, Any]:
    """Return the numbers of a forecast, or why there is none; nothing of one that takes long."""
    try:
        if is_long(scenario):
            return {}
        result = result_of(scenario)
    except InvalidArgumentError as error:
        return {"error": str(error)}
    memory = None if result.sharded is None else result.sharded.memory.peak_bytes
    numbers = {"iteration_s": result.iteration_s, "exposed_s": result.exposed_communication_s, "memory": memory}
    return {**numbers, "messages": result.messages, "bucket_size": result.bucket_size}


def outcomes(count: int) -> list[dict[str, Any]]:
    """Return the outcomes of so many scenarios."""
    return [{"scenario": words, **outcome(scenario)} for words, scenario in islice(scenarios(SEED), count)]


if __name__ == "__main__":
    lines = ",\n".join(map(json.dumps, outcomes(KEPT)))
    OUTCOMES.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
