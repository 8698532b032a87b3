"""Operations on named tensors, directly on the native module; each rank reports its view. Arguments: kind and more."""

import contextlib
import os
import signal
import sys
import time

import numpy as np
import paceline
from paceline.job.job import InvalidArgumentError, JobError

from job_workers.values import DTYPES, tell, values, wide


class Named:
    """A coordinator of some ranks, and the calls on it with numpy arrays."""

    def __init__(self, job, ranks=None, **settings):
        self.native = job._joined().coordinator(ranks or range(job.size), "test", **settings)
        self.rank, self.size = self.native.rank, self.native.size

    def request(self, call, name, array=None, shape=None, **how):
        array = np.zeros(0, "uint8") if array is None else array
        inputs = [(array.ctypes.data, array.size)] if array.size else []
        shape = array.shape if shape is None else shape
        return self.native.request(call, name, inputs=inputs, dtype=str(array.dtype), shape=shape, keep=array, **how)

    def begin(self, *requests, waits=False):
        self.native.submit(list(requests), waits=waits)
        return requests

    def all_reduce(self, name, array, op="sum", **how):
        return self.begin(self.request("all_reduce", name, array, op=op, **how))[0]

    def now(self, call, name, array=None, **how):
        """Wait until it ends; return the result, if any."""
        (operation,) = self.begin(self.request(call, name, array, **how), waits=True)
        assert operation.wait(30)
        assert operation.done()
        if call in ("all_reduce", "broadcast", "barrier"):
            return None
        return np.frombuffer(operation.data(), array.dtype)


def total(dtype, length, size, seed):
    return sum(wide(values(dtype, length, rank, seed), dtype) for rank in range(size))


def in_any_order(job, seed, threshold):
    """Every rank requests the same tensors, some in groups, each in its own order, and waits for some of them."""
    named = Named(job, threshold=int(threshold), capacity=20)
    draw = np.random.default_rng([int(seed), job.rank])
    groups = [[0], [1, 2], [3], [4, 5, 6], *[[tensor] for tensor in range(7, 30)]]
    kinds = {tensor: [d for d in DTYPES if d != "bfloat16"][tensor % 6] for group in groups for tensor in group}
    for step in range(6):
        arrays, begun = {}, []
        for index in draw.permutation(len(groups)):
            requests = []
            for tensor in groups[index]:
                arrays[tensor] = values(kinds[tensor], 1 + 40 * tensor, job.rank, step)
                requests.append(named.request("all_reduce", f"t{tensor}", arrays[tensor], op="sum"))
            begun += named.begin(*requests)
            if draw.random() < 0.1:
                time.sleep(0.003)
        for index in draw.permutation(len(begun)):
            assert begun[index].wait(30), begun[index].name
        for tensor, array in arrays.items():
            want = total(kinds[tensor], array.size, job.size, step)
            np.testing.assert_allclose(array.astype("float64"), want.astype(array.dtype), rtol=4e-3, err_msg=tensor)
    tell(through=True)


def calls(job):
    """Every call, with data that differ between ranks."""
    named, size = Named(job), job.size
    for step in range(3):
        rows = np.full((job.rank + step, 3), job.rank, "int64")
        gathered = named.now("all_gather", "g", rows, shape=[3], own=[len(rows)]).reshape(-1, 3)
        assert gathered[:, 1].tolist() == [rank for rank in range(size) for _ in range(rank + step)]
        array = np.full(5, job.rank, "float64")
        named.now("broadcast", "b", array, root=step % size)
        assert (array == step % size).all()
        # Row i of rank r goes to rank i % size and contains both numbers.
        splits = [job.rank + to + step for to in range(size)]
        sent = np.concatenate([np.full((count, 2), 10 * job.rank + to, "int32") for to, count in enumerate(splits)])
        got = named.now("all_to_all", "a", sent, shape=[2], own=splits).reshape(-1, 2)
        assert got[:, 0].tolist() == [10 * r + job.rank for r in range(size) for _ in range(r + job.rank + step)]
        whole = np.arange((2 * size + 1) * 4, dtype="float32").reshape(-1, 4)
        part = named.now("reduce_scatter", "r", whole, op="sum", postscale=0.5).reshape(-1, 4)
        first = sum(2 + (rank < 1) for rank in range(job.rank))
        mine = slice(first, first + 2 + (job.rank < 1))
        np.testing.assert_allclose(part, whole[mine] * size * 0.5)
        named.now("barrier", "x")
        for op, want in (("min", 1), ("max", size), ("product", np.prod(np.arange(1, size + 1)))):
            array = np.full(3, job.rank + 1, "int32")
            named.now("all_reduce", op, array, op=op)
            assert (array == want).all(), op
    # A group numbers its own ranks.
    if job.size > 2 and job.rank > 0:
        some = job._joined().coordinator(range(1, job.size), "some")
        array = np.ones(4, "float32")
        (operation,) = [
            some.request("all_reduce", "s", inputs=[(array.ctypes.data, 4)], dtype="float32", shape=[4], op="sum")
        ]
        some.submit([operation])
        operation.wait(30)
        assert (array == job.size - 1).all()
        assert (some.rank, some.ranks) == (job.rank - 1, list(range(1, job.size)))
        some.close()
    tell(through=True)


def uneven(job):
    """Rank r has data for r + 1 steps, then joins; sums are of those that have data."""
    named = Named(job)
    for _ in range(2):
        for step in range(job.rank + 1):
            array = np.ones(10, "float32")
            named.all_reduce(f"w{step % 2}", array).wait(30)
            assert (array == job.size - step).all(), (step, array)
        if job.rank == job.size - 1:
            last = job.size - 1
            array = np.ones(job.size, "float32")
            for name, call, options in [
                ("p", "all_reduce", {"op": "product"}),
                ("g", "all_gather", {"shape": [1], "own": [job.size]}),
                ("b", "broadcast", {"root": 0}),
                ("r", "broadcast", {"root": last}),
                ("s", "reduce_scatter", {"op": "sum"}),
                ("t", "all_to_all", {"shape": [1], "own": [1] * job.size}),
            ]:
                with failing():
                    named.now(call, name, array, **options)
            time.sleep(0.1)
        joined = named.native.join()
        assert joined.wait(30)
        assert joined.source() == job.size - 1
    tell(through=True)


@contextlib.contextmanager
def failing(**more):
    try:
        yield
    except (JobError, InvalidArgumentError) as error:
        tell(kind=type(error).__name__, error=str(error), at=time.monotonic(), **more)
    else:
        tell(kind="none", error="", **more)


def mistakes(job):
    """Requests that differ between ranks fail on all of them; the others continue."""
    named = Named(job, warn_after_s=0.3, give_up_after_s=1.0)
    with failing(what="shape"):
        named.all_reduce("w", np.ones(2 + job.rank, "float32")).wait(30)
    with failing(what="dtype"):
        named.all_reduce("d", np.ones(2, ["float32", "int32"][job.rank % 2])).wait(30)
    with failing(what="root"):
        named.now("broadcast", "r", np.ones(2, "float32"), root=job.rank)
    if job.rank == 0:
        time.sleep(0.2)  # what the others have asked for is in flight meanwhile
    first = named.all_reduce("t", np.ones(2, "float32"))
    if job.rank != 0:
        with failing(what="twice"):
            named.all_reduce("t", np.ones(2, "float32"))
    first.wait(30)
    with failing(what="twice at once"):
        twice = [named.request("all_reduce", "u", np.ones(2, "float32"), op="sum") for _ in range(2)]
        named.begin(*twice)
    with failing(what="again"):
        named.begin(first)
    if job.rank != 1:
        with failing(what="missing"):
            named.all_reduce("m", np.ones(2, "float32")).wait(30)
    else:
        time.sleep(1.5)
    for what, wrong in {
        "elements": {"array": np.ones(3, "float32"), "shape": [4], "op": "sum"},
        "no op": {"array": np.ones(3, "float32")},
        "unknown dtype": {"array": np.ones(3, "complex64"), "op": "sum"},
    }.items():
        with failing(what=what):
            named.request("all_reduce", what, **wrong)
    array = np.ones(2, "float32")
    named.now("all_reduce", "w", array, op="sum")
    tell(through=bool((array == job.size).all()))


def lose(job, how):
    """Rank 1 ends or stops while the others wait for a tensor that it has not requested."""
    named = Named(job)
    named.now("barrier", "b")
    if job.rank == 1:
        time.sleep(0.3)
        tell(ends_at=time.monotonic())
        if how == "close":
            job.close()
            time.sleep(2)
            return
        os.kill(os.getpid(), getattr(signal, how))
    with failing():
        named.all_reduce("w", np.ones(2, "float32")).wait(60)
    with failing(again=True):
        named.all_reduce("v", np.ones(2, "float32")).wait(60)
    time.sleep(1.5)  # whoever leaves first would be named to those that are slow
    job.close()


def idle(job):
    """An idle coordinator costs nothing."""
    named = Named(job)
    named.now("barrier", "b")
    begin = time.process_time()
    time.sleep(2)
    tell(busy_s=time.process_time() - begin)
    named.now("barrier", "b")


def main():
    kind, *words = sys.argv[1:]
    with paceline.job.join() as job:
        globals()[kind](job, *words)


if __name__ == "__main__":
    main()
