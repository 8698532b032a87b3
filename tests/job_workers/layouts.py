"""Calls of a job on arrays that are cut and placed in memory differently on each rank."""

import random

import numpy as np
import paceline.job

from job_workers.values import DTYPES, NO_AVERAGE, OPS, check_combined, said, stored, values

LENGTH = 60


def cut(array, draw):
    """The same elements as one array, as arrays of any shapes, at an offset or at an address that is not aligned.

    Returns what is given to a call, and what collects the elements again.
    """
    how, kind = draw.choice(["whole", "square", "cut", "offset", "unaligned"]), array.dtype
    if how == "whole":
        parts = [array.copy()]
    elif how == "square":
        parts = [array.reshape(4, 3, -1).copy()]
    elif how == "cut":
        places = sorted(draw.sample(range(len(array) + 1), 3))
        parts = [part.copy() for part in np.split(array, places)]
    elif how == "offset":
        parts = [np.concatenate([array[:7], array])[7:]]
    else:
        memory = bytearray(array.nbytes + 1)
        parts = [np.frombuffer(memory, kind, len(array), offset=1)]
        parts[0][:] = array
    return parts if how == "cut" else parts[0], lambda: np.concatenate([part.reshape(-1) for part in parts])


def everything(rank, _size):
    with paceline.job.join() as job:
        for turn in range(4):
            draw = random.Random(100 * turn + rank)
            for dtype in DTYPES:
                _reduce(job, dtype, draw)
                _move(job, dtype, draw)


def _reduce(job, dtype, draw):
    for number, op in enumerate(OPS):
        if op == "average" and dtype in NO_AVERAGE:
            continue
        seeds = [(source, number) for source in range(job.size)]
        own, elements = cut(values(dtype, LENGTH, job.rank, number), draw)
        job.all_reduce(own, op, **said(dtype))
        check_combined(elements(), op, dtype, seeds, "all_reduce")
        own, elements = cut(values(dtype, LENGTH, job.rank, number), draw)
        job.reduce(own, op, 0, **said(dtype))
        if job.rank == 0:
            check_combined(elements(), op, dtype, seeds, "reduce")
        whole, _ = cut(values(dtype, LENGTH, job.rank, number), draw)
        got, elements = cut(np.zeros(LENGTH, stored(dtype)), draw)
        counts = [LENGTH] + [0] * (job.size - 1)
        job.reduce_scatter(
            whole, op, out=got if job.rank == 0 else np.zeros(0, stored(dtype)), counts=counts, **said(dtype)
        )
        if job.rank == 0:
            check_combined(elements(), op, dtype, seeds, "reduce_scatter")


def _move(job, dtype, draw):
    every = [values(dtype, LENGTH, source, 9) for source in range(job.size)]
    own, elements = cut(every[job.rank], draw)
    job.broadcast(own, 1, **said(dtype))
    np.testing.assert_array_equal(elements(), every[1])
    given, _ = cut(every[job.rank], draw)
    out, elements = cut(np.zeros(LENGTH * job.size, stored(dtype)), draw)
    job.all_gather(given, out, **said(dtype))
    np.testing.assert_array_equal(elements(), np.concatenate(every))
    got, elements = cut(np.zeros(LENGTH, stored(dtype)), draw)
    after, before = (job.rank + 1) % job.size, (job.rank - 1) % job.size
    sent = job.send(given, after, async_=True, **said(dtype))
    job.recv(got, before, **said(dtype))
    sent.wait()
    np.testing.assert_array_equal(elements(), every[before])
