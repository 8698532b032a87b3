"""A rank whose coordinator's core is lent to its other threads and processes while nothing is pending."""

import os
import signal
import statistics
import time
from pathlib import Path

import paceline.torch as hvd
import torch
from paceline.hvd.partition import share

LATE_S = 2.0


def within(check):
    """Whether it comes true soon."""
    until = time.monotonic() + LATE_S
    while time.monotonic() < until:
        if check():
            return True
        time.sleep(0.002)
    return False


def threads():
    return [int(thread.name) for thread in Path("/proc/self/task").iterdir()]


def taken_by_an_operation(cores, child):
    """Whether it has the core at its end; the core is given back 2 ms later, which may be before the look."""
    hvd.allreduce(torch.ones(4), name="taken")
    return os.sched_getaffinity(0) == set(cores.framework) and os.sched_getaffinity(child) == set(cores.pipeline)


def lent(rank, size):
    """Cores are taken with the first operation and given back after the last, from a forked process, too."""
    everything = set(os.sched_getaffinity(0))
    before = torch.get_num_threads()
    hvd.init()
    cores = share(sorted(everything), 0, 1)
    both = {cores.coordinator, *cores.framework}
    assert within(lambda: os.sched_getaffinity(0) == both), os.sched_getaffinity(0)
    assert torch.get_num_threads() == before
    bound = {int(name) for name in threads() if os.sched_getaffinity(int(name)) == {cores.coordinator}}
    assert len(bound) >= 1, "the coordinator's thread stays on its core"
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        assert within(lambda: os.sched_getaffinity(child) == {cores.coordinator, *cores.pipeline})
        for _ in range(3):
            assert within(lambda: taken_by_an_operation(cores, child))
            assert within(lambda: os.sched_getaffinity(0) == both)
            assert within(lambda: os.sched_getaffinity(child) == {cores.coordinator, *cores.pipeline})
        # While operations follow one another, the core stays taken, unless other programs have it for long.
        stayed, until = [], time.monotonic() + 0.1
        while time.monotonic() < until:
            hvd.allreduce(torch.ones(4), name="often")
            stayed.append(os.sched_getaffinity(0) == set(cores.framework))
        assert statistics.mean(stayed) > 0.9
        assert within(lambda: os.sched_getaffinity(0) == both)
        took = []
        for _ in range(20):
            assert within(lambda: os.sched_getaffinity(0) == both)
            began = time.perf_counter()
            hvd.allreduce(torch.ones(4), name="timed")
            first = time.perf_counter() - began
            began = time.perf_counter()
            hvd.allreduce(torch.ones(4), name="timed")
            took.append(first - (time.perf_counter() - began))
        print(f"taking the core: {statistics.median(took) * 1e6:.0f} us, {len(threads())} threads", flush=True)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    hvd.shutdown()
    assert set(os.sched_getaffinity(0)) == everything
    assert all(os.sched_getaffinity(one) == everything for one in threads())
