#!/usr/bin/env python3
"""Trains a ResNet-18, a GPT and a ViT on this CPU, and compares their steps with a calibration's forecasts of them.

    paceline calibrate --device cpu -o cpu.json
    python scripts/validate_calibration.py cpu.json [--rounds 3] [--steps 6] [--json]

Each round records every model once, really running and computed by the device file in turn. What counts is the median
of their ratios over the rounds. If the calibration used one thread, steps are measured as the calibration was: by the
time for which the thread ran. Exits with 1 if the mean error is beyond 10 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 0.1
MODELS = ("resnet18", "gpt", "vit")
WARMUP = 2


def main() -> int:
    """Train, forecast and compare; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", help="the file that `paceline calibrate --device cpu` has written")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--train", choices=MODELS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    threads = json.loads(Path(given.device).read_text(encoding="utf-8"))["multiprocessors"]
    if given.train:
        train(given.train, threads, given.steps)
        return 0
    pairs: dict[str, list[tuple[float, float]]] = {model: [] for model in MODELS}
    for _ in range(given.rounds):
        for model in MODELS:
            real = recorded(given.device, model, given.steps, alone=threads == 1)
            forecast = recorded(given.device, model, given.steps, computed=True)
            pairs[model].append((real, forecast))
    rows = [row(model, those) for model, those in pairs.items()]
    mean = statistics.mean(abs(one["error"]) for one in rows)
    if given.json:
        print(json.dumps({"threads": threads, "rounds": given.rounds, "models": rows, "mean_error": mean}, indent=1))
    else:
        print(f"{threads} threads, {given.rounds} pairs\n\nmodel     measured  forecast   error   pairs")
        for one in rows:
            errors = " ".join(f"{error:+.1%}" for error in one["errors"])
            milliseconds = f"{one['measured_s'] * 1e3:7.1f}ms {one['forecast_s'] * 1e3:7.1f}ms"
            print(f"{one['model']:<9}{milliseconds} {one['error']:+7.1%}   {errors}")
        print(f"\nmean error {mean:.1%}")
    return int(mean > LIMIT)


def row(model: str, pairs: list[tuple[float, float]]) -> dict[str, Any]:
    """Return the medians of a model's pairs."""
    errors = [forecast / real - 1 for real, forecast in pairs]
    return {
        "model": model,
        "measured_s": statistics.median(real for real, _ in pairs),
        "forecast_s": statistics.median(forecast for _, forecast in pairs),
        "error": statistics.median(errors),
        "errors": errors,
    }


def recorded(device: str, model: str, steps: int, *, computed: bool = False, alone: bool = False) -> float:
    """Return the seconds of a step by `paceline record`.

    Args:
        device: The device file.
        model: Of `MODELS`.
        steps: To record.
        computed: Whether the device file computes them, instead of running.
        alone: Whether the time for which the thread ran counts.
    """
    with tempfile.TemporaryDirectory() as folder:
        script = [sys.executable, __file__, device, "--train", model, "--steps", str(2 * steps + WARMUP + 2)]
        options = ["--gpu", device] if computed else ["--steps", str(steps), "--warmup", str(WARMUP)]
        command = [sys.executable, "-m", "paceline", "record", *options, "--json", "-o", f"{folder}/trace.json"]
        result = subprocess.run([*command, "--", *script], capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"{model}: {result.stderr.strip()}")
    summary = json.loads(result.stdout[result.stdout.index("{\n") :])
    if alone:
        return float(result.stdout.partition(_RAN)[2].split()[0])
    return float(summary["step_s"])


_RAN = "seconds that a step ran: "


def train(name: str, threads: int, steps: int) -> None:
    """Train a model for some steps, and print the median of the time for which this thread ran in a step."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    loss, optimizer = {"resnet18": resnet18, "gpt": gpt, "vit": vit}[name]()
    ran = []
    for _ in range(steps):
        begin = time.thread_time()
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()
        ran.append(time.thread_time() - begin)
    print(f"{_RAN}{statistics.median(ran[WARMUP:])}", flush=True)


def resnet18() -> tuple[Callable[[], Any], Any]:
    """Return the loss and the optimizer of a ResNet-18 on 16 images of 128 x 128."""
    import torch
    from torch.nn import functional
    from torchvision import models

    model = models.resnet18()
    images, labels = torch.randn(16, 3, 128, 128), torch.randint(1000, (16,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return lambda: functional.cross_entropy(model(images), labels), optimizer


def gpt() -> tuple[Callable[[], Any], Any]:
    """Return the loss and the optimizer of the GPT of examples/gpt.py: 4 layers of 384, 4 sequences of 256 words."""
    sys.path.insert(0, str(ROOT / "examples"))
    import torch
    from gpt import GPT
    from torch.nn import functional

    model = GPT(vocabulary=8000, sequence=256, layers=4, hidden=384, heads=6)
    words = torch.randint(8000, (4, 257))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def loss() -> Any:  # noqa: ANN401
        return functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())

    return loss, optimizer


def vit() -> tuple[Callable[[], Any], Any]:
    """Return the loss and the optimizer of torchvision's ViT: 6 layers of 384, 16 images of 112 x 112."""
    import torch
    from torch.nn import functional
    from torchvision.models import VisionTransformer

    model = VisionTransformer(112, 16, num_layers=6, num_heads=6, hidden_dim=384, mlp_dim=1536)
    images, labels = torch.randn(16, 3, 112, 112), torch.randint(1000, (16,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return lambda: functional.cross_entropy(model(images), labels), optimizer


if __name__ == "__main__":
    sys.exit(main())
