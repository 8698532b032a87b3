"""The same training script under Horovod and under Paceline: how far weights, momenta and losses differ after 20 steps.

Both run in Horovod's environment, ~/.cache/paceline/bench/horovod (docs/results/benchmarks.md says how to make it).
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

ROOT = Path(__file__).resolve().parents[1]
HOROVOD = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline/bench/horovod/bin"
STEPS = 20
CASES = [
    (begin, dtype, compression, passes)
    for begin in ("fresh", "loaded")
    for dtype in ("float32", "float64")
    for compression in ("none", "fp16")
    for passes in (1, 2)
]


def network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def trained(library: str, begin: str, dtype: torch.dtype, compression: str, passes: int) -> dict[str, torch.Tensor]:
    """After SGD with momentum; ranks begin with different weights and learning rates, which the broadcasts make equal.

    `fresh` broadcasts and then wraps the optimizer, as Horovod's MNIST example does; `loaded` wraps, loads a state and
    then broadcasts, as its ImageNet example does when it resumes.
    """
    hvd: Any = importlib.import_module(f"{library}.torch")
    rank = hvd.rank()
    torch.manual_seed(1000 + rank)
    made = torch.Generator().manual_seed(50 + rank)
    net = network().to(dtype)

    def loss() -> torch.Tensor:
        x = torch.randn(16, 3, 16, 16, generator=made, dtype=torch.float64).to(dtype)
        return functional.cross_entropy(net(x), torch.randint(0, 10, (16,), generator=made))

    def plain() -> torch.optim.SGD:
        decay = 1e-4 if begin == "loaded" else 0.0
        return torch.optim.SGD(net.parameters(), lr=0.05 * (1 + rank), momentum=0.9, weight_decay=decay)

    def wrapped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        return hvd.DistributedOptimizer(
            optimizer,
            named_parameters=net.named_parameters(),
            compression=getattr(hvd.Compression, compression),
            backward_passes_per_step=passes,
        )

    optimizer = plain()
    if begin == "loaded":
        loss().backward()
        optimizer.step()
        state = optimizer.state_dict()
        optimizer = wrapped(plain())
        optimizer.load_state_dict(state)
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    if begin == "fresh":
        optimizer = wrapped(optimizer)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(passes):
            (loss() / passes).backward()
        optimizer.step()
    momenta = [optimizer.state[parameter]["momentum_buffer"].flatten() for parameter in net.parameters()]
    return {
        "weights": torch.cat([parameter.detach().flatten() for parameter in net.parameters()]),
        "momenta": torch.cat(momenta),
        "loss": hvd.allreduce(loss().detach(), name="loss").reshape(1),
    }


def rank_of(library: str, out: Path) -> None:
    hvd: Any = importlib.import_module(f"{library}.torch")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    hvd.init()
    result = {case: trained(library, case[0], getattr(torch, case[1]), *case[2:]) for case in CASES}
    torch.save(result, out / f"{library}-{hvd.rank()}.pt")
    hvd.shutdown()


def both(ranks: int, out: Path) -> None:
    """Run the script under each."""
    python, script = str(HOROVOD / "python"), str(Path(__file__).resolve())
    horovodrun = [str(HOROVOD / "horovodrun"), "-np", str(ranks), "--gloo", "-H", f"localhost:{ranks}"]
    paceline = [str(Path(sys.executable).with_name("paceline")), "run", "-np", str(ranks), "--"]
    for library, start in (("horovod", horovodrun), ("paceline", paceline)):
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "python")}
        environ["PATH"] = f"{HOROVOD}:{environ['PATH']}"
        command = [*start, python, script, "--as", library, "--out", str(out)]
        ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600, check=False)
        if ended.returncode:
            sys.exit(f"{library} failed:\n{ended.stdout[-3000:]}{ended.stderr[-3000:]}")


def compared(ranks: int, out: Path) -> None:
    """Print one row per case: the largest difference over all ranks, relative to the largest value, if there is any."""
    print(f"| begins | dtype | compression | passes | {' | '.join(('weights', 'momenta', 'loss'))} |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    theirs = [torch.load(out / f"horovod-{rank}.pt") for rank in range(ranks)]
    ours = [torch.load(out / f"paceline-{rank}.pt") for rank in range(ranks)]
    for case in CASES:
        cells = []
        for what in ("weights", "momenta", "loss"):
            pairs = [(a[case][what].double(), b[case][what].double()) for a, b in zip(theirs, ours, strict=True)]
            apart = max(((a - b).abs().max() / a.abs().max()).item() for a, b in pairs)
            cells.append(f"{apart:.1e}" if apart else "same bits")
        print(f"| {' | '.join(map(str, case))} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--as", dest="library", choices=["horovod", "paceline"], help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.library:
        rank_of(options.library, options.out)
        return
    if not (HOROVOD / "horovodrun").exists():
        sys.exit(f"there is no {HOROVOD / 'horovodrun'}; docs/results/benchmarks.md says how to make it")
    with tempfile.TemporaryDirectory() as folder:
        both(options.ranks, Path(folder))
        compared(options.ranks, Path(folder))


if __name__ == "__main__":
    main()
