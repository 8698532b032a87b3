"""What a rank does while its partner leaves, is slow, or fails because of another. Words: the kind, its arguments."""

import os
import signal
import sys
import time

import numpy as np
import paceline

from job_workers.failures import failing
from job_workers.values import tell


def transfer(job, megabytes, way="send", wait_s=0.0):
    """Rank 0 sends and leaves at once, after rank 1 has waited; `async`: it does not even wait for its own send."""
    data = np.arange(int(float(megabytes) * 1e6) // 8)
    if job.rank == 0:
        time.sleep(float(wait_s))
        if way == "async":
            job.send(data, 1, async_=True)
        else:
            job.send(data, 1)
        begin = time.monotonic()
        job.close()
        tell(closed_in=time.monotonic() - begin)
        return
    begin = time.monotonic()
    got = np.empty_like(data)
    tell(waiting=True)
    with failing():
        job.recv(got, None if way == "anybody" else 0)
        assert (got == data).all()
    tell(took_s=time.monotonic() - begin)


def collective(job, call, elements, wait_s=0.0):
    """All ranks begin an operation; rank 0 leaves without waiting for it."""
    array = np.full(int(elements), job.rank, "float32")
    job.barrier()
    handle = getattr(job, call)(array, async_=True)
    if job.rank == 0:
        job.close()
        return
    time.sleep(float(wait_s))
    with failing():
        handle.wait()


def begun(job, megabytes, how, wait_s):
    """Rank 0 begins a send or an all-reduce and ends; rank 1 begins its part later."""
    data = np.arange(int(float(megabytes) * 1e6) // 8, dtype="float64")
    job.barrier()
    if job.rank == 1:
        time.sleep(float(wait_s))
        got = np.ones_like(data)
        with failing():
            if how == "all_reduce":
                job.all_reduce(got)
                assert (got == data + 1).all()
            else:
                job.recv(got, 0)
                assert (got == data).all()
        tell(received=len(got))
        return
    if how == "all_reduce":
        job.all_reduce(data, async_=True)
    else:
        job.send(data, 1, async_=True)
    if how == "close":
        job.close()
    elif how == "sys.exit":
        sys.exit(0)
    elif how == "exception":
        raise RuntimeError("after a send has begun")


def receives_and_ends(job):
    """Rank 0 begins a receive and ends; rank 1 sends later, and the memory gets what it sends."""
    job.barrier()
    if job.rank == 1:
        time.sleep(2)
        job.send(np.arange(1000.0), 0)
        return
    got = np.empty(1000)
    job.recv(got, 1, async_=True)
    job.close()
    tell(complete=bool((got == np.arange(1000.0)).all()))


def never_begun(job, seconds):
    """Both ranks begin what the other never does, and end, rank 1 later."""
    job.barrier()
    if job.rank == 1:
        time.sleep(float(seconds))
    job.send(np.ones(1_000_000), 1 - job.rank, async_=True)
    begin = time.monotonic()
    job.close()
    tell(ended_in=time.monotonic() - begin)


def other_orders(job):
    """Each rank makes another group first."""
    with failing(begin=time.monotonic()):
        for name in ("a", "b") if job.rank == 0 else ("b", "a"):
            job.group([0, 1], name)


def never_sent(job):
    """Rank 0 sends one message and leaves; rank 1 waits for two."""
    job.barrier()
    if job.rank == 0:
        job.send(np.ones(10), 1)
        return
    with failing(number=1):
        job.recv(np.empty(10), 0)
    with failing(number=2, begin=time.monotonic()):
        job.recv(np.empty(10), 0)


def behind(job, megabytes, way):
    """A small operation of one group behind a large one of another that has just been begun."""
    pair = job.group(range(job.size), "small")
    large = np.ones(int(float(megabytes) * 1e6) // 4, "float32")
    job.barrier()
    begin = time.monotonic()
    with failing():
        if way == "async":
            handle = job.all_reduce(large, async_=True)
            pair.all_reduce(np.ones(4, "float32"))
            handle.wait()
        elif way == "sync":  # who is through with the first early waits in the second
            job.broadcast(large, 0)
            pair.barrier()
        else:
            job.all_reduce(large, strategy=way)
    tell(took_s=time.monotonic() - begin)


def bystander(job, how):
    """Rank 2 ends; rank 0 fails because of that and leaves; rank 1 waits for rank 0 in a group without rank 2."""
    pair = job.group([0, 1], "pair") if job.rank < 2 else None
    job.barrier()
    if job.rank == 2:
        tell(ends_at=time.monotonic())
        if how == "close":
            return
        os.kill(os.getpid(), getattr(signal, how))
    if job.rank == 0:
        with failing():
            job.group([0, 2], "others").all_reduce(np.ones(3))
        job.close()
        return
    with failing():
        pair.barrier()


def server_dies(job):
    """The parameter server dies: rank 0 needs it and leaves, rank 1 waits for rank 0."""
    gradient = np.ones(1000, "float32")
    job.all_reduce(gradient)
    job.barrier()
    if job.rank == 0:
        server = next(peer["pid"] for peer in job.status()["peers"] if peer["server"] == 0)
        os.kill(server, signal.SIGKILL)
        with failing():
            for _ in range(1000):
                job.all_reduce(gradient)
        job.close()
        return
    with failing():
        job.barrier()


def join(job):
    """Nothing more than to join, and to meet once."""
    with failing():
        job.barrier()


def main(kind, *words):
    with failing(joining=True):
        job = paceline.job.join()
        globals()[kind](job, *words)


if __name__ == "__main__":
    main(*sys.argv[1:])
