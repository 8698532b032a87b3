"""A rank of `make gpu`: compares results on a device with the CPU's, also of Horovod's calls; or times collectives."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import paceline
import paceline.torch  # noqa: F401 - registers the backend
import torch
import torch.distributed as dist
from torch import Tensor

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8)
LENGTHS = (1, 1000, 1_500_001)


def numbers(dtype: torch.dtype, length: int, rank: int) -> Tensor:
    """Return small whole numbers, whose sums are exact in every dtype."""
    return ((torch.arange(length) + rank) % 7).to(dtype)


def correct(device: torch.device) -> int:
    """Compare all strategies and dtypes, and the other collectives, with the CPU's results; return how many."""
    rank, size = dist.get_rank(), dist.get_world_size()
    compared = 0

    def same(got: Tensor, want: Tensor, what: str) -> None:
        nonlocal compared
        compared += 1
        if not torch.equal(got.cpu(), want):
            raise SystemExit(f"rank {rank}: {what} is wrong: {got.flatten()[:4]} instead of {want.flatten()[:4]}")

    strategies = [entry.name for entry in paceline.all_strategies() if not entry.is_offloaded]
    group = dist.group.WORLD
    for dtype in DTYPES:
        for length in LENGTHS:
            parts = [numbers(dtype, length, source) for source in range(size)]
            total = torch.stack(parts).sum(0, dtype=dtype)
            for strategy in strategies:
                own = parts[rank].to(device)
                # What the stream does before is seen, and what it does after comes after.
                own.mul_(1)
                group.allreduce([own], strategy=strategy).wait()
                same(own * 1, total, f"all_reduce by {strategy} of {dtype} x {length}")
            whole = torch.zeros(size * length, dtype=dtype, device=device)
            dist.all_gather_into_tensor(whole, parts[rank].to(device))
            same(whole, torch.cat(parts), f"all_gather of {dtype} x {length}")
            sent = parts[rank].to(device)
            dist.broadcast(sent, size - 1)
            same(sent, parts[size - 1], f"broadcast of {dtype} x {length}")
            wide = torch.cat([numbers(dtype, length, place) for place in range(size)])
            got = torch.zeros(length, dtype=dtype, device=device)
            dist.reduce_scatter_tensor(got, wide.to(device))
            same(got, (numbers(dtype, length, rank).to(torch.int64) * size).to(dtype), f"reduce_scatter of {dtype}")
    for dtype in DTYPES:
        parts = [numbers(dtype, 1000, source) for source in range(size)]
        for op, want in combined(torch.stack(parts)).items():
            if op == dist.ReduceOp.AVG and not dtype.is_floating_point:
                continue
            own = parts[rank].to(device)
            dist.all_reduce(own, op)
            same(own, want.to(dtype), f"all_reduce {op} of {dtype}")
    # Back to back without a wait in between, on another stream than the default.
    with torch.cuda.stream(torch.cuda.Stream(device)):
        own = torch.full((3_000_000,), rank + 1.0, device=device)
        works = [dist.all_reduce(own, async_op=True) for _ in range(3)]
        for work in works:
            work.wait()
        same(own, torch.full((3_000_000,), sum(range(1, size + 1)) * size * size * 1.0), "three all-reduces in a row")
    # Callbacks run in streams of their own, as those of communication hooks do.
    for round in range(20):
        own = torch.full((3_000_000,), rank + 1.0, device=device)
        doubled = dist.all_reduce(own, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
        same(doubled.wait(), torch.full((3_000_000,), size * (size + 1.0)), f"round {round} in a callback")
    # Behind what the stream does for a while, and before what it does next.
    for round in range(20):
        own = torch.full((100_000,), float(rank), device=device)
        torch.cuda._sleep(2_000_000 * ((rank + round) % size))
        own += round
        dist.all_reduce(own)
        own *= 2
        want = 2.0 * (size * round + sum(range(size)))
        same(own, torch.full((100_000,), want), f"round {round} behind a stream that sleeps")
    return compared


def combined(parts: Tensor) -> dict[dist.ReduceOp, Tensor]:
    """Return what each reduction makes of the ranks' numbers."""
    wide = parts.to(torch.float64 if parts.is_floating_point() else torch.int64)
    return {
        dist.ReduceOp.SUM: wide.sum(0),
        dist.ReduceOp.AVG: wide.sum(0) / len(parts),
        dist.ReduceOp.MIN: wide.min(0).values,
        dist.ReduceOp.MAX: wide.max(0).values,
        dist.ReduceOp.PRODUCT: wide.prod(0),
    }


def horovod(device: torch.device) -> int:
    """Compare Horovod's calls with the CPU's results, many in flight at once; return how many."""
    import paceline.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    compared = 0
    for dtype in DTYPES:
        parts = [[numbers(dtype, 1000 + 333 * at, source) for source in range(size)] for at in range(24)]
        tensors = [part[rank].to(device) for part in parts]
        order = range(24) if rank % 2 else reversed(range(24))  # The ranks agree on one.
        handles = {at: hvd.allreduce_async_(tensors[at], name=f"{dtype}.{at}", op=hvd.Sum) for at in order}
        for at, handle in handles.items():
            got = hvd.synchronize(handle) * 1
            if not torch.equal(got.cpu(), torch.stack(parts[at]).sum(0, dtype=dtype)):
                raise SystemExit(f"rank {rank}: allreduce_async_ of {dtype}, tensor {at}, is wrong: {got[:4]}")
        sent = parts[0][rank].to(device)
        hvd.broadcast_(sent, size - 1, name=f"sent.{dtype}")
        if not torch.equal(sent.cpu(), parts[0][-1]):
            raise SystemExit(f"rank {rank}: broadcast_ of {dtype} is wrong: {sent[:4]}")
        gathered = hvd.allgather(parts[0][rank].to(device), name=f"gathered.{dtype}")
        if not torch.equal(gathered.cpu(), torch.cat(parts[0])):
            raise SystemExit(f"rank {rank}: allgather of {dtype} is wrong: {gathered[:4]}")
        compared += len(parts) + 2
    # Rank 0 has no more data: it contributes zeros until the others have none either.
    for turn in range(3) if rank else ():
        got = hvd.allreduce(torch.full((1000,), rank + turn, device=device), name=f"joined.{turn}", op=hvd.Sum)
        want = sum(range(1, size)) + turn * (size - 1)
        if not (got == want).all():
            raise SystemExit(f"rank {rank}: allreduce after rank 0 has joined is wrong: {got[:4]} instead of {want}")
        compared += 1
    hvd.join()
    return compared


def collective(call: str, size: int, device: torch.device) -> Callable[[], object]:
    """Return a function that starts a collective whose larger side has so many bytes."""
    ranks = dist.get_world_size()
    whole = torch.ones(max(size // 4, ranks) // ranks * ranks, device=device)
    part = torch.ones(len(whole) // ranks, device=device)
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
    }
    return calls[call]


def timed(call: str, device: torch.device, size: int, seconds: float) -> float:
    """Return the median time of a collective, until the device has the result, in microseconds."""
    begin = collective(call, size, device)
    for _ in range(3):
        begin()
    torch.cuda.synchronize(device)
    times: list[float] = []
    # All ranks stop together: the number of rounds comes from the first one's measurement.
    began = time.perf_counter()
    begin()
    torch.cuda.synchronize(device)
    count = torch.tensor([max(3, min(2000, int(seconds / (time.perf_counter() - began + 1e-6))))], device=device)
    dist.broadcast(count, 0)
    for _ in range(int(count.item())):
        began = time.perf_counter()
        begin()
        torch.cuda.synchronize(device)
        times.append((time.perf_counter() - began) * 1e6)
    return statistics.median(times)


def main(what: str, backend: str = "paceline", calls: str = "all_reduce", sizes: str = "4", seconds: str = "1") -> None:
    """Join, do it, and let rank 0 say the results."""
    if what == "horovod":
        import paceline.torch as hvd

        hvd.init()
        device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
        torch.cuda.set_device(device)
        compared = horovod(device)
        if hvd.rank() == 0:
            print(json.dumps({"compared": compared}), flush=True)
        hvd.shutdown()
        return
    dist.init_process_group(backend)
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    if what == "correct":
        said = [{"compared": correct(device), "status": status()}]
    else:
        said = (
            {"call": call, "bytes": size, "median_us": timed(call, device, size, float(seconds))}
            for call in calls.split(",")
            for size in map(int, sizes.split(","))
        )
    for line in said:
        if dist.get_rank() == 0:
            print(json.dumps(line), flush=True)
    if what != "correct" and backend == "paceline" and dist.get_rank() == 0:
        print(json.dumps({"status": status()}), flush=True)
    dist.destroy_process_group()


def status() -> dict[str, object]:
    """Return what Paceline counts of devices."""
    answer = json.loads(dist.group.WORLD._job.engine.status())
    return {key: answer[key] for key in ("cuda", "cuda_ipc", "cuda_mpi", "mpi") if key in answer}


if __name__ == "__main__":
    main(*sys.argv[1:])
