#!/usr/bin/env python3
"""Trains a real model on an emulated cluster, forecasts it from a recording of the same run, and compares.

One resnet18 per rank, one message per gradient (no fusion), always the same batch, so that a step consists of
computation and communication alone. Prints the table of docs/results/validation.md, "Real training".

    python scripts/validate_training.py [--workers 2] [--bandwidth 500Mbps] [--repeats 3] [STRATEGY ...]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WARMUP, RECORDED, TIMED = 2, 4, 6
STRATEGIES = ("ring", "recursive-doubling", "ps", "ps-aggregation", "async-ps")


def train(batch: int, pixels: int) -> None:
    """Rank 0 prints the seconds of each step, from the end of one optimizer.step() to the end of the next."""
    import paceline.torch as hvd
    import torch
    from torchvision import models

    hvd.init()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = models.resnet18()
    names = list(model.named_parameters())
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=names)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    images, labels = torch.randn(batch, 3, pixels, pixels), torch.randint(1000, (batch,))
    ends = [time.perf_counter()]
    for _ in range(WARMUP + RECORDED + TIMED + 1):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        ends.append(time.perf_counter())
    if hvd.rank() == 0:
        print(json.dumps([after - before for before, after in itertools.pairwise(ends)]), flush=True)
    hvd.shutdown()


def compare(strategy: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One run, and the forecast from what it recorded."""
    import paceline
    from paceline._core import parse_rate
    from paceline.catalog.strategies import find_strategy
    from paceline_lab import emulate

    knobs, path = find_strategy(strategy).knobs, folder / f"{strategy}.json"
    servers, switch = int("servers" in knobs), "aggregation" in knobs
    settings: dict[str, Any] = {"servers": servers, "pull": "step"} if servers else {}
    if not find_strategy(strategy).is_synchronous:
        settings = {"servers": servers, "staleness": 0}  # Others need more steps until their order has settled.
    # The servers of a training job send sums while other gradients still arrive
    # (docs/reference/from-horovod.md). With them there are more processes than cores: under SCHED_FIFO they do not
    # disturb each other, but a backward pass keeps the rank's own communication from running beside it.
    simulated = {**settings, "pull": "step", "overlap": False} if servers else {}
    if servers and find_strategy(strategy).is_synchronous:
        simulated["barrier"] = False
    bandwidth = parse_rate(options.bandwidth)
    shape = {"workers": options.workers, "servers": servers, "switch": switch, "realtime": bool(servers)}
    with emulate.cluster(**shape, bandwidth_bps=bandwidth) as cluster:
        output = emulate.Collected()
        code = cluster.run(
            [sys.executable, __file__, "--batch", str(options.batch), "--pixels", str(options.pixels)],
            env={"OMP_NUM_THREADS": "1", "HOROVOD_FUSION_THRESHOLD": "0"},
            output=output,
            limit_s=600,
            strategy=strategy,
            record=path,
            record_steps=RECORDED,
            record_warmup=WARMUP,
            switch=switch,
            **settings,
        )
        if code:
            raise SystemExit(f"{strategy}: exit code {code}: {output.stderr(0)[-2000:]}")
        steps = json.loads(output.stdout(0))
    # The steps without hooks are the last ones.
    measured = statistics.median(steps[-TIMED:])
    network = "fifo" if switch else "fluid"
    # An emulated rate is what TCP delivers, and nothing is fused: the bare schedule, not the library of the recording.
    forecast = paceline.simulate(
        path,
        None,
        strategy,
        workers=options.workers,
        bandwidth=options.bandwidth,
        network=network,
        library="none",
        **simulated,
    )
    return {
        "strategy": strategy,
        "measured_s": measured,
        "simulated_s": forecast.iteration_s,
        "error": forecast.iteration_s / measured - 1,
        "compute_s": forecast.compute_s,
        "spread": (max(steps[-TIMED:]) - min(steps[-TIMED:])) / 2 / measured,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strategies", nargs="*", metavar="STRATEGY", default=STRATEGIES)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--bandwidth", default="500Mbps")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--pixels", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3, help="the run with the median error counts")
    options = parser.parse_args()
    if "RANK" in os.environ:
        train(options.batch, options.pixels)
        return
    print("| strategy | workers | computes | measured | spread | simulated | error |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for strategy in options.strategies:
        with tempfile.TemporaryDirectory() as folder:
            rows = [compare(strategy, options, Path(folder)) for _ in range(options.repeats)]
        row = sorted(rows, key=lambda row: row["error"])[len(rows) // 2]
        times = (f"{row[field] * 1e3:.0f} ms" for field in ("compute_s", "measured_s"))
        simulated = f"{row['simulated_s'] * 1e3:.0f} ms | {row['error']:+.1%}"
        print(
            "|",
            strategy,
            "|",
            options.workers,
            "|",
            " | ".join(times),
            f"| ±{row['spread']:.1%} | {simulated} |",
            flush=True,
        )


if __name__ == "__main__":
    from paceline.errors import InvalidArgumentError

    try:
        main()
    except InvalidArgumentError as error:
        sys.exit(f"error: {error}")
