"""Ranks of which one pauses; what each prints on standard error goes to a file."""

import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path

import torch
import torch.distributed as dist
from paceline import as_gloo
from torch.distributed.distributed_c10d import _get_default_group

LATE = 1


def _redirect(folder, rank):
    file = os.open(Path(folder) / f"{rank}.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 2)
    os.close(file)


def _pause(how, seconds):
    if how == "gil":  # other threads of this process cannot run Python
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    elif how == "stop":
        waker = f"sleep 0.2; kill -STOP {os.getpid()}; sleep {seconds}; kill -CONT {os.getpid()}"
        subprocess.Popen(["sh", "-c", waker])
        time.sleep(0.5)
    else:
        time.sleep(seconds)


def _call(mode, rank, size):
    """One call of every kind, after a pause; raises AssertionError for a wrong result."""
    ones = torch.ones(5)
    match mode:
        case "point-to-point":
            if rank == LATE:
                dist.send(ones, 0)
            elif rank == 0:
                dist.recv(received := torch.zeros(5), LATE)
                assert torch.equal(received, ones)
        case "barrier":
            dist.barrier()
        case "object":
            objects = [{"a": 1} if rank == LATE else None]
            dist.broadcast_object_list(objects, LATE)
            assert objects == [{"a": 1}]
        case "new group":
            dist.all_reduce(ones, group=dist.new_group(list(range(size))))
            assert ones[0] == size
        case "background":
            dist.all_reduce(ones, async_op=True).wait()
            assert ones[0] == size
        case _:
            dist.all_reduce(ones)
            assert ones[0] == size


def paused(rank, size, folder, modes, seconds):
    """Rank 1 pauses before each call; returns how long the calls of this rank have taken."""
    _redirect(folder, rank)
    took = []
    for mode in modes:
        began = time.monotonic()
        if rank == LATE:
            _pause(mode, seconds)
        _call(mode, rank, size)
        took.append(time.monotonic() - began)
    return took


def pauses_after_init(rank, size, folder, seconds):
    """Rank 1 pauses before the first collective."""
    _redirect(folder, rank)
    if rank == LATE:
        time.sleep(seconds)
    _call("first", rank, size)


def comes_late(store, rank, size, folder, seconds):
    """Rank 1 comes late to init_process_group."""
    _redirect(folder, rank)
    if rank == LATE:
        time.sleep(seconds)
    dist.init_process_group("paceline", store=store, rank=rank, world_size=size)


def limit(store, rank, size, backend, timeout):
    """The limit in seconds of a group that is made with this timeout, or with none."""
    if backend == "gloo":
        os.environ["PACELINE_AS_GLOO"] = "1"
        as_gloo.load()
    given = {} if timeout is None else {"timeout": timeout}
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, **given)
    return _get_default_group()._job.timeout_s


def subgroup(rank, size, timeout):
    """Rank 1 stays away from a call in a group with a limit of its own; returns how long that was waited for."""
    group = dist.new_group(list(range(size)), timeout=timeout)
    if rank == LATE:
        time.sleep(8)
        return 0.0
    began = time.monotonic()
    try:
        dist.all_reduce(torch.ones(3), group=group)
    except RuntimeError as error:
        assert "rank 0 waited 3 s for rank 1" in str(error) and " timeout after 3 s " in str(error), error
    return time.monotonic() - began


def counted(rank, size, calls):
    """Rank 1 makes so many calls, and no more; returns how the others' errors count them."""
    for _ in range(calls):
        dist.all_reduce(torch.ones(3))
    if rank == LATE:
        time.sleep(5)
        return ""
    try:
        dist.all_reduce(torch.ones(3))
    except RuntimeError as error:
        return str(error)
    return ""


def dies(rank, size):
    """Rank 1 is killed while rank 0 waits for it; returns after which time rank 0 knows."""
    began = time.monotonic()
    if rank == LATE:
        time.sleep(1.5)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(torch.ones(3))
    except RuntimeError as error:
        assert "rank 1 (" in str(error) and "died" in str(error), error
    return time.monotonic() - began
