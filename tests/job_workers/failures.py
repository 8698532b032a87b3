"""Failures in a job, one kind per start; each rank reports its error and time. Arguments: kind, its arguments."""

import contextlib
import gc
import os
import signal
import sys
import time

import numpy as np
import paceline
from paceline.job.job import InvalidArgumentError, JobError

from job_workers.values import holdings, tell

VICTIM = 1


@contextlib.contextmanager
def failing(**more):
    """Reports what the block raised, when (on the clock that all processes share), and how long closing took."""
    try:
        yield
    except (JobError, InvalidArgumentError, KeyboardInterrupt) as error:
        tell(kind=type(error).__name__, error=str(error), at=time.monotonic(), **more)
    else:
        tell(kind="none", error="", at=time.monotonic(), **more)


def train(job, steps=10**9, length=10_000):
    """All-reduces without end."""
    gradient = np.ones(length, "float32")
    for step in range(steps):
        gradient[:] = 1
        job.all_reduce(gradient, name="layer1.weight")
        if step == 20:
            tell(training=True)


def die_while_training(job, how, length=10_000):
    """Rank 1 ends in the middle of it, in one of several ways; the others keep training."""
    if job.rank == VICTIM:
        train(job, 30, int(length))
        tell(ends_at=time.monotonic())
        if how == "exit":
            sys.exit(0)
        if how == "_exit":
            os._exit(7)
        if how == "exception":
            raise RuntimeError("out of cheese")
        if how == "close":
            job.close()
            time.sleep(1.5)
            return
        os.kill(os.getpid(), getattr(signal, how))
    with failing():
        train(job, length=int(length))
    again = time.monotonic()
    with failing(again=True):
        job.barrier()
    job.close()
    tell(closed_in=time.monotonic() - again, **holdings())


def tail(job):
    """Rank 0 broadcasts to a late rank and then does something else: the rest must be sent without its help."""
    array = np.ones(30_000_000, "float32")
    for _ in range(3):
        job.barrier()
        if job.rank != 0:
            time.sleep(0.2)
        begin = time.monotonic()
        job.broadcast(array, root=0)
        took = time.monotonic() - begin
        time.sleep(3 if job.rank == 0 else 0)
        tell(took_s=took)


def destroy(job):
    """Rank 0 drops a group in which it has begun an operation."""
    group = job.group(range(job.size), "brief")
    job.barrier()
    if job.rank == 0:
        handle = group.all_reduce(np.ones(10, "float32"), name="w", async_=True)
        time.sleep(0.3)
        del handle, group
        gc.collect()
    else:
        time.sleep(0.6)
        with failing(begin=time.monotonic()):
            group.all_reduce(np.ones(10, "float32"), name="w")
    # The job goes on.
    job.barrier()
    tell(through=True)


def die_before_calling(job):
    """The others wait in an operation that rank 1 never calls."""
    job.barrier()
    if job.rank == VICTIM:
        time.sleep(0.3)
        tell(ends_at=time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL)
    with failing():
        job.broadcast(np.zeros(5), VICTIM, name="weights")


def die_before_a_group_is_made(job):
    """The others get an error when they use the group."""
    job.barrier()
    if job.rank == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.5)
    tell(ends_at=time.monotonic())
    with failing():
        job.group(range(job.size), "new").barrier(name="first")


def late(job, seconds):
    """Rank 1 is busy elsewhere for this long."""
    if job.rank == VICTIM:
        time.sleep(float(seconds))
    with failing():
        job.all_reduce(np.zeros(5, "int64"), name="counters")


def counted(job, calls):
    """After so many operations in the default group, and one more in another, rank 1 calls nothing for a while."""
    other = job.group(range(job.size), "other")
    for _ in range(int(calls)):
        job.all_reduce(np.ones(4))
        other.barrier()
    other.barrier()
    if job.rank == VICTIM:
        time.sleep(5)
        return
    for group in (job, other):
        with failing():
            group.all_reduce(np.ones(4, "float32"))


def stopped_elsewhere(job):
    """Rank 1 is stopped. Rank 2 waits for it in a group of its own, and so never calls what rank 0 has called."""
    side = job.group([1, 2], "side") if job.rank else None
    job.barrier()
    if job.rank == VICTIM:
        os.kill(os.getpid(), signal.SIGSTOP)
    with failing():
        if side:
            side.all_reduce(np.ones(5))
        job.all_reduce(np.ones(5), name="counters")


def looked_at(job):
    """Rank 1 is stopped and takes nothing of what rank 0 sends; rank 0 asks what is in flight."""
    job.barrier()
    if job.rank == VICTIM:
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        handle = job.send(np.zeros(5_000_000), VICTIM, async_=True)
        time.sleep(0.5)
        begin = time.monotonic()
        status = job.status()
        tell(took_s=time.monotonic() - begin, in_flight=status["in_flight"], sent=status["bytes_sent"])
        with failing():
            handle.wait()


def mismatch(job):
    """In each group rank 1 calls a different operation. The job itself continues."""
    mine = job.rank == VICTIM

    def strategy(group):
        group.all_reduce(np.ones(1000, "float32"), strategy="tree" if mine else "ring", name="w")

    def transfer(group):
        if group.rank == 0:
            group.send(np.ones(3), VICTIM)
        elif mine:
            group.recv(np.ones(4, "float32"), 0)

    cases = {
        "length": lambda g: g.all_reduce(np.ones(11 if mine else 10, "float32"), name="w"),
        "dtype": lambda g: g.all_reduce(np.ones(10, "int32" if mine else "float32"), name="w"),
        "op": lambda g: g.all_reduce(np.ones(10, "float32"), "max" if mine else "sum", name="w"),
        "call": lambda g: g.barrier() if mine else g.all_reduce(np.ones(10, "float32"), name="w"),
        "root": lambda g: g.broadcast(np.ones(10, "float32"), 1 if mine else 2, name="w"),
        "reduce root": lambda g: g.reduce(np.ones(10, "float32"), root=1 if mine else 2, name="w"),
        "counts": lambda g: g.all_gather(np.ones(3), np.ones(10 if mine else 9), counts=[3, 3, 4 if mine else 3]),
        "own root": lambda g: g.broadcast(np.ones(10, "float32"), g.rank, name="w"),
        "same sum": lambda g: g.all_gather(np.ones(3 + g.rank), np.ones(12), counts=[5, 4, 3] if mine else [3, 4, 5]),
        "scattered": lambda g: g.scatter(np.ones(5 if mine else 4), np.ones(12) if g.rank == 0 else None),
        "long": lambda g: g.all_reduce(np.ones(300_000 if mine else 299_999, "float64"), name="w"),
        "nothing": lambda g: g.all_reduce(np.ones(0 if mine else 10, "float32"), name="w"),
        "strategy": strategy,
        "transfer": transfer,
    }
    for name, case in cases.items():
        group = job.group(range(job.size), name)
        begin = time.monotonic()
        with failing(case=name, begin=begin):
            case(group)
            # A rank that had already finished gets the error here.
            group.barrier()
        job.barrier()
    tell(done=True)


def fork(job):
    """A child forked after joining is no rank; it does not affect the others, and outlives its parent."""
    if job.rank == VICTIM:
        child = os.fork()
        if child == 0:
            with failing(child=True):
                job.all_reduce(np.ones(3))
            with failing(child=True):
                job.group([0, 1])
            job.close()
            sys.exit(0)  # Through the interpreter's exit, with all exit handlers.
        assert os.waitpid(child, 0)[1] == 0
    job.barrier()
    if job.rank == VICTIM:
        if os.fork() == 0:
            time.sleep(3)
            os._exit(0)
        tell(ends_at=time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL)
    with failing():
        job.barrier()


def interrupted(job, way):
    """Ctrl-C ends a wait; one can wait again for an asynchronous operation."""
    side = job.group([0, 1], "side")
    if job.rank == VICTIM:
        # Not before rank 0 has been interrupted.
        side.recv(bytearray(1), 0)
        with failing():
            job.all_reduce(np.ones(4, "float32"), name="named" if way == "async" else "")
        return
    ones = np.ones(4, "float32")
    begin, handle = time.monotonic(), None
    tell(waiting=True)
    try:
        if way == "async":
            handle = job.all_reduce(ones, name="named", async_=True)
            handle.wait()
        else:
            job.all_reduce(ones)
    except KeyboardInterrupt:
        tell(interrupted_after=time.monotonic() - begin)
    side.send(b"x", VICTIM)
    with failing():
        if handle is None:
            job.barrier()
        else:
            assert (handle.wait() == job.size).all()


def main(kind, *words):
    with failing(joining=True):
        job = paceline.job.join()
        globals()[kind](job, *words)


if __name__ == "__main__":
    main(*sys.argv[1:])
