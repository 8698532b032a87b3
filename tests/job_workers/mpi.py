"""A rank of a job over MPI. The first argument says what it does, a second one the strategy."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import paceline

from job_workers.values import DTYPES, LENGTHS, LONG, NO_AVERAGE, OPS, Digest, check_combined, said, tell, values

LENGTH = 1000


def join(**settings):
    return paceline.job.join(**{"transport": "mpi", **settings})


def native():
    """Every dtype and op by the library, in one job after another; groups of some ranks; a ring beside it."""
    digest = Digest()
    for turn in range(2):
        with join(strategy="native") as job:
            for length in [*LENGTHS, LONG]:
                for dtype in DTYPES:
                    for number, op in enumerate(OPS):
                        if op == "average" and dtype in NO_AVERAGE:
                            continue
                        seeds = [(rank, number) for rank in range(job.size)]
                        array = values(dtype, length, job.rank, number)
                        job.all_reduce(array, op, **said(dtype))
                        check_combined(array, op, dtype, seeds, "native")
                        digest.add(array)
            begun = [job.all_reduce(np.full(LENGTH, 1.0 + turn), async_=True) for turn in range(20)]
            assert [handle.wait()[0] for handle in begun] == [job.size * (1.0 + turn) for turn in range(20)]
            backwards = job.group(range(job.size)[::-1], "backwards")
            assert set(backwards.all_reduce(np.full(LENGTH, float(job.rank)))) == {job.size * (job.size - 1) / 2}
            if job.rank < 2:
                pair = job.group([1, 0], "pair")
                assert set(pair.all_reduce(np.full(LENGTH, job.rank + 1, "int32"))) == {3}
            ring = job.all_reduce(np.full(LENGTH, job.rank, "int64"), strategy="ring")
            assert set(ring) == {job.size * (job.size - 1) / 2}
            about = job.status()["mpi"]
    threads = sorted(name for name in _threads() if "mpi" in name or "driver" in name)
    tell(digest=digest.text(), about=about, threads=threads, turn=turn)


def _threads():
    for task in Path("/proc/self/task").iterdir():
        yield (task / "comm").read_text().strip()


def waits(seconds):
    """Rank 0 is late; the others report what waiting cost them, and all report the cost of idling."""
    with join(strategy="ring") as job:
        array = np.ones(LENGTH)
        job.all_reduce(array)
        if job.rank == 0:
            time.sleep(seconds)
        before = time.process_time()
        job.all_reduce(array)
        waited = time.process_time() - before
        before = time.process_time()
        time.sleep(1)
        tell(rank=job.rank, waited=waited, idle=time.process_time() - before)


def fails(how, strategy, transport="mpi"):
    """Rank 1 does not take part as it should; the others report their errors."""
    job = join(strategy=strategy, timeout_s=4, transport=transport)
    array = np.ones(LENGTH)
    job.all_reduce(array)
    if job.rank == 1:
        time.sleep(0.5)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        array = np.ones(LENGTH - 1)
    began = time.monotonic()
    try:
        job.all_reduce(array)
    except paceline.job.JobError as error:
        tell(rank=job.rank, error=str(error), took=time.monotonic() - began)
        job.close()
        sys.exit(1)


def inside_mpi(level):
    """mpi4py owns MPI in this process."""
    import mpi4py

    mpi4py.rc.thread_level = level
    from mpi4py import MPI

    try:
        with join(strategy="ring") as job:
            total = job.all_reduce(np.full(LENGTH, MPI.COMM_WORLD.Get_rank() + 1.0))
            tell(total=total[0], ended=MPI.COMM_WORLD.allreduce(1))
    except paceline.InvalidArgumentError as error:
        tell(error=str(error))


def many_small():
    """More messages than a peer accepts: the others wait at the sender."""
    with join(strategy="ring") as job:
        handles = []
        if job.rank == 0:
            handles = [job.send(np.full(10, number, "int32"), 1, async_=True) for number in range(5000)]
        elif job.rank == 1:
            time.sleep(1)
            received = np.empty(10, "int32")
            for number in range(5000):
                assert job.recv(received, 0) == 0
                assert set(received) == {number}
        for handle in handles:
            handle.wait()
        job.barrier()
        tell(done=True)


def threads_share():
    """Several threads, each with its own group."""
    with join(strategy="ring") as job:
        groups = [job.group(range(job.size), f"thread {number}") for number in range(3)]
        wrong = []

        def work(group):
            for turn in range(30):
                got = group.all_reduce(np.full(20_000, job.rank + turn, "float32"))[0]
                if got != sum(rank + turn for rank in range(job.size)):
                    wrong.append(got)

        workers = [threading.Thread(target=work, args=[group]) for group in groups]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        tell(wrong=wrong)


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    globals()[what](*[float(word) if word.isdigit() else word for word in words])
