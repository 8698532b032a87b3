"""Calls again and again, while a rank meets its end at a random moment. Argument: JSON.

`calls`, in turn, `async_`, `length`, `operations` (None: until an error), `leaves` (a rank closes the job when its part
is done, and does not wait for others), `victim`, `fault` (SIGKILL, SIGSTOP, exit, or None), `delay_s`, `lag_s` by rank.
"""

import json
import os
import signal
import sys
import threading
import time
from itertools import count

import numpy as np
import paceline
from paceline.errors import JobError

from job_workers.values import holdings, tell

CALLS = (
    "all_reduce",
    "tree",
    "ps",
    "broadcast",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "barrier",
    "transfer",
    "group",
)


def full(length, value):
    return np.full(length, value, "float32")


def begin(job, call, length, number, how):
    """Start one operation; return its handle or result, and a check of what it must give."""
    size, me, root = job.size, job.rank, number % job.size
    how = {**how, "name": f"{call} {number}"}
    total, mine = size * (size + 1) / 2, full(length, me + 1)
    if call in ("all_reduce", "tree", "ps"):
        strategy = {"all_reduce": "ring"}.get(call, call)
        return job.all_reduce(mine, strategy=strategy, **how), lambda _: (mine == total).all()
    if call == "group":
        group = job.group(range(size), f"group {number}")
        return group.all_reduce(mine, **how), lambda _: (mine == total).all()
    if call == "broadcast":
        return job.broadcast(mine, root, **how), lambda _: (mine == root + 1).all()
    if call == "reduce":
        return job.reduce(mine, root=root, **how), lambda _: me != root or (mine == total).all()
    if call == "all_gather":
        return job.all_gather(mine, **how), lambda got: all((got[rank] == rank + 1).all() for rank in range(size))
    if call == "gather":
        return job.gather(
            mine, root=root, **how
        ), lambda got: me != root or all((got[rank] == rank + 1).all() for rank in range(size))
    if call == "scatter":
        parts = np.stack([full(length, rank + 1) for rank in range(size)]) if me == root else None
        got = full(length, 0)
        return job.scatter(got, parts, root, **how), lambda _: (got == me + 1).all()
    if call == "reduce_scatter":
        whole = full(size * length, me + 1)
        return job.reduce_scatter(whole, **how), lambda got: (got == total).all()
    if call == "all_to_all":
        table = np.stack([full(length, me * size + rank) for rank in range(size)])
        return job.all_to_all(table, **how), lambda got: all((got[r] == r * size + me).all() for r in range(size))
    if call == "transfer":
        how.pop("name")
        after, got = (root + 1) % size, full(length, 0)
        if me == root:
            return job.send(mine, after, **how), lambda _: True
        if me == after:
            return job.recv(got, root, **how), lambda _: (got == root + 1).all()
        return None, lambda _: True
    return job.barrier(**how), lambda _: True


def strike(fault):
    tell(ends_at=time.monotonic())
    if fault == "exit":
        os._exit(7)
    os.kill(os.getpid(), getattr(signal, fault))


def main(result):
    how = {"async_": True} if result["async_"] else {}
    number, call = -1, "join"
    try:
        job = paceline.job.join()
        me = job.rank
        if me == result["victim"] and result["fault"]:
            threading.Timer(result["delay_s"], strike, [result["fault"]]).start()
        time.sleep(result["lag_s"][me])
        for number in count() if result["operations"] is None else range(result["operations"]):
            call = result["calls"][number % len(result["calls"])]
            handle, good = begin(job, call, result["length"], number, how)
            got = handle.wait() if result["async_"] and handle is not None else handle
            if not good(got):
                tell(wrong=call)
                return
        if not result["leaves"]:
            job.barrier()
        tell(done=True)
    except JobError as error:
        tell(error=str(error), number=number, at=time.monotonic(), call=call)
        if number < 0:
            return
    begun = time.monotonic()
    job.close()
    tell(closed_in=time.monotonic() - begun, **holdings())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
