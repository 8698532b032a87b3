"""What ranks of `make gpu` say of a fault among them: die, lost, stuck, late, free, alloc, differ or stress."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import paceline.torch  # noqa: F401 - registers the backend
import torch
import torch.distributed as dist
from paceline.errors import PacelineError

LIMIT_S = 4
CLOCK_HZ = 2e9
"""At least the frequency of today's devices."""


def die(rank: int, device: torch.device) -> None:
    """Rank 1 is killed while streams of others wait for it."""
    values = torch.ones(1 << 20, device=device)
    for turn in range(200):
        dist.all_reduce(values)
        values /= dist.get_world_size()
        if turn == 50 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    torch.cuda.synchronize()


def lost(rank: int, device: torch.device) -> None:
    """A kernel of rank 1 fails, with which its context is lost."""
    values = torch.ones(1 << 20, device=device)
    dist.all_reduce(values)
    torch.cuda.synchronize()
    if rank == 1:
        values[torch.tensor([1 << 40], device=device)] = 0
    for _ in range(100):
        dist.all_reduce(values)
        time.sleep(0.1)


def stuck(rank: int, device: torch.device) -> None:
    """The stream of rank 1 does not come to an operation within the limit."""
    values = torch.ones(1 << 20, device=device)
    dist.all_reduce(values)
    torch.cuda.synchronize()
    if rank == 1:
        torch.cuda._sleep(int(CLOCK_HZ * 2.5 * LIMIT_S))
    for _ in range(100):
        dist.all_reduce(values)
        time.sleep(0.1)


def late(rank: int, device: torch.device) -> None:
    """The stream of rank 1 comes late to an operation that nobody waits for yet; that of rank 0 goes on meanwhile."""
    values = torch.ones(1 << 20, device=device)
    dist.all_reduce(values)
    torch.cuda.synchronize()
    if rank == 1:
        torch.cuda._sleep(int(CLOCK_HZ * LIMIT_S / 2))
    work = dist.all_reduce(values, async_op=True)
    assert work is not None, "it is asynchronous"
    future = work.get_future()
    time.sleep(LIMIT_S / 8)
    began = time.monotonic()
    if rank == 0:
        torch.cuda.current_stream().synchronize()
        waited_s = time.monotonic() - began
        assert waited_s < LIMIT_S / 16, f"the current stream waited {waited_s:.2f} s for rank 1's"
    future.wait()
    assert (values == dist.get_world_size() ** 2).all(), "a wrong sum"


def free(rank: int, device: torch.device) -> None:
    """Allocations are freed and made anew between operations, at the same addresses and at others."""
    size = dist.get_world_size()
    for turn in range(60):
        elements = (1 << 20) * (1 + turn % 7) + turn % 3 * 40_000_000
        values = torch.full((elements,), float(rank + turn), device=device)
        dist.all_reduce(values)
        assert (values == sum(range(size)) + size * turn).all(), f"turn {turn}: a wrong sum"
        del values
        torch.cuda.empty_cache()


def alloc(rank: int, device: torch.device) -> None:
    """Whether memory of torch's allocator can be shared depends on PYTORCH_CUDA_ALLOC_CONF."""
    values = torch.full((1000,), float(rank), device=device)
    dist.all_reduce(values)
    assert values[0].item() == sum(range(dist.get_world_size())), "a wrong sum"


def differ(rank: int, device: torch.device) -> None:
    """The ranks call operations of different sizes."""
    dist.all_reduce(torch.ones(100 + rank, device=device))


def stress(rank: int, device: torch.device) -> None:
    """Three groups in three streams, behind kernels that take random times."""
    size = dist.get_world_size()
    groups = [dist.new_group(list(range(size))) for _ in range(3)]
    streams = [torch.cuda.Stream() for _ in groups]
    torch.manual_seed(rank)
    for turn in range(150):
        begun = []
        for number, (group, stream) in enumerate(zip(groups, streams, strict=True)):
            with torch.cuda.stream(stream):
                values = torch.full((10_000 * (number + 1) * (1 + turn % 50),), float(rank + turn), device=device)
                torch.cuda._sleep(int(torch.randint(1, 300_000, ()).item()))
                values += 1
                begun.append((dist.all_reduce(values, group=group, async_op=True), values, stream))
        for work, reduced, stream in begun:
            with torch.cuda.stream(stream):
                work.wait()
                doubled = reduced * 2
                right = (doubled == 2 * (sum(range(size)) + size * (turn + 1))).all().item()
            assert right, f"turn {turn}: a wrong sum"


FAULTS: dict[str, Callable[[int, torch.device], None]] = {
    "die": die,
    "lost": lost,
    "stuck": stuck,
    "late": late,
    "free": free,
    "alloc": alloc,
    "differ": differ,
    "stress": stress,
}


def main(name: str) -> None:
    """Say as one line of JSON how it ended here, and how long the device took to come free."""
    dist.init_process_group("paceline", timeout=timedelta(seconds=LIMIT_S))
    rank, device = dist.get_rank(), torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    said = None
    try:
        FAULTS[name](rank, device)
    except (PacelineError, torch.AcceleratorError) as error:
        said = f"{type(error).__name__}: {error}"
    began = time.monotonic()
    with contextlib.suppress(torch.AcceleratorError):  # The context is lost.
        torch.cuda.synchronize()
    released_s = time.monotonic() - began
    print(json.dumps({"fault": name, "rank": rank, "error": said, "released_s": round(released_s, 2)}), flush=True)
    if said is None:
        dist.destroy_process_group()
    else:
        os._exit(0)  # The job has failed, and says so; not again at the end.


if __name__ == "__main__":
    main(*sys.argv[1:])
