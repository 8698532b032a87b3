"""What compression and rarer synchronization change in bytes, time and loss: a small GPT on this repository's text.

paceline run -np 2 -- python benches/compression.py --steps 160

All rows train side by side in one job, a step of each in turn, from the same weights and on the same batches: ratios of
times are medians of ratios within a turn. The loss is that of batches nobody trains on. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import paceline
import paceline.torch
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "examples"))
from gpt import GPT  # noqa: E402 - an example is no package

SHAPE = {"vocabulary": 256, "sequence": 64, "layers": 2, "hidden": 128, "heads": 4}
BATCH = 8
ROWS = [("none", 1), ("fp16", 1), ("int8", 1), ("powersgd:4", 1), ("powersgd:16", 1)]
ROWS += [("topk:0.01", 1), ("topk:0.1", 1), ("none", 8), ("int8", 8)]
HELD_OUT = 16


@dataclass
class Row:
    """A model in training."""

    compression: str
    every: int
    model: nn.Module
    optimizer: torch.optim.Optimizer
    seconds: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, compression: str, every: int) -> Row:
        torch.manual_seed(0)
        model: nn.Module = GPT(**SHAPE)
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        if every > 1:
            optimizer = paceline.torch.DiLoCo(optimizer, sync_every=every, compression=compression)
        else:
            model = DistributedDataParallel(model)
            paceline.torch.compression.register(model, compression)
        return cls(compression, every, model, optimizer)

    def step(self, tokens: Tensor) -> None:
        dist.barrier()
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        loss_of(self.model, tokens).backward()
        self.optimizer.step()
        self.seconds.append(time.perf_counter() - begin)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    out = model(tokens[:, :-1])
    return nn.functional.cross_entropy(out.flatten(0, 1), tokens[:, 1:].flatten())


def batches(text: Tensor, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    length = SHAPE["sequence"] + 1
    while True:
        begins = torch.randint(0, len(text) - length, (BATCH,), generator=generator)
        yield torch.stack([text[begin : begin + length] for begin in begins])


def sent(row: Row, ranks: int) -> float:
    """Return the bytes that a rank sends in an iteration, by the plan that forecasts and replays execute."""
    names = {name: list(one.shape) for name, one in GPT(**SHAPE).named_parameters()}
    gradients = [
        {"tensor": name, "ready_s": 1.0, "bytes": 4 * torch.Size(shape).numel(), "shape": shape}
        for name, shape in reversed(names.items())
    ]
    worker = {"forward": [{"layer": "all", "duration_s": 1.0, "tensors": [*names]}], "gradients": gradients}
    document = {"format": "paceline-trace", "version": 1, "name": "gpt", "batch": BATCH, "dtype": "float32"}
    text = json.dumps({**document, "device": "A100", "workers": [worker]})
    options = {"compression": row.compression, "sync_every": row.every, "library": "none", "bucket_size": "25MiB"}
    trace = paceline.Trace.from_json(text.encode(), "gpt")
    return paceline.simulate(trace, strategy="ring", workers=ranks, **options).bytes_sent_per_worker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=160)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("paceline")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pages = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
    text = torch.tensor(list("".join(page.read_text(encoding="utf-8") for page in pages).encode()))
    held, trained = text[: len(text) // 10], text[len(text) // 10 :]
    rows = [Row.of(*row) for row in ROWS]
    own = batches(trained, 1 + rank)
    for step in range(options.steps):
        tokens = next(own)
        for row in rows:
            row.step(tokens)
        if rank == 0 and (step + 1) % 50 == 0:
            print(f"step {step + 1}", file=sys.stderr, flush=True)
    tests = batches(held, 0)
    fixed = [next(tests) for _ in range(HELD_OUT)]
    plain = rows[0]
    if rank == 0:
        print("| `--compression` | `--sync-every` | bytes a step | time of a step | loss |")
        print("| --- | --- | --- | --- | --- |")
    for row in rows:
        if row.every > 1:
            row.optimizer.synchronize()  # type: ignore[attr-defined]
        with torch.no_grad():
            loss = statistics.fmean(loss_of(row.model, tokens).item() for tokens in fixed)
        # Of rounds, so that each has its exchange.
        whole = range(8 * row.every, options.steps + 1 - row.every, row.every)
        times = [
            sum(row.seconds[begin : begin + row.every]) / sum(plain.seconds[begin : begin + row.every])
            for begin in whole
        ]
        if rank == 0:
            share, ratio = sent(row, ranks) / sent(plain, ranks), statistics.median(times)
            print(f"| {row.compression} | {row.every} | {share:.2%} | {ratio:.2f} | {loss:.3f} |", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
