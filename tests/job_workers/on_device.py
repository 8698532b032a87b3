"""Operations on arrays of a CUDA device, over the stand-in; PACELINE_CUDA_LIBRARY names it.

Arguments: what to do, and its words.
"""

import contextlib
import os
import sys
import time

import numpy as np
import paceline
from cuda_stand_in import ByDLPack, Device
from paceline.errors import InvalidArgumentError, JobError

from job_workers.all_reduce import STRATEGIES
from job_workers.values import DTYPES, NO_AVERAGE, OPS, Digest, check_combined, said, tell, values


def device():
    return Device(os.environ["PACELINE_CUDA_LIBRARY"])


def all_reduce(transports, lengths):
    """Every strategy, dtype and op: as with arrays of the host, the same bits on every rank."""
    digests, on = {}, device()
    for transport in transports.split(","):
        digest = Digest()
        with paceline.job.join(transport=transport) as job:
            for strategy in STRATEGIES:
                begun = []
                for length in map(int, lengths.split(",")):
                    for dtype in DTYPES:
                        for number, op in enumerate(OPS):
                            if op == "average" and dtype in NO_AVERAGE:
                                continue
                            array = on.array(values(dtype, length, job.rank, number), on.stream())
                            handle = job.all_reduce(array, op, strategy=strategy, async_=True, **said(dtype))
                            begun.append((handle, array, op, dtype, [(rank, number) for rank in range(job.size)]))
                for handle, array, op, dtype, seeds in begun:
                    assert handle.wait() is array
                    check_combined(array.host(), op, dtype, seeds, strategy)
                    digest.add(array.host())
                    array.free()
            status = job.status()
        if os.environ["PACELINE_CUDA"] == "ipc":
            assert status["cuda_ipc"]["operations"] > 0, status
        else:
            assert status["cuda"][0]["bytes_to_host"] == status["cuda"][0]["bytes_to_device"] > 0, status
        digests[transport] = digest.text()
    tell(digests=digests)


def by_dlpack():
    """Arrays that offer nothing else."""
    on = device()
    with paceline.job.join() as job:
        for dtype in ("float32", "int64"):
            array = on.array(np.arange(1000, dtype=dtype) + job.rank)
            job.all_reduce(ByDLPack(array), "sum")
            want = job.size * np.arange(1000) + sum(range(job.size))
            assert array.host().tolist() == want.tolist(), array.host()
    tell(right=True)


def calls(transport):
    """Every other operation, with numbers that are known."""
    on = device()
    with paceline.job.join(transport=transport) as job:
        rank, size = job.rank, job.size

        def here(*numbers, shape=None):
            return on.array(np.array(numbers, "int64").reshape(shape or -1), on.stream())

        def empty(count, stream):
            return on.array(np.full(count, -1, "int64"), stream)

        # The output is in the stream of the input: a call has one.
        stream = on.stream()
        some = on.array(np.array([rank, 10 * rank], "int64"), stream)
        out = empty(2 * size, stream)
        job.all_gather(some, out)
        want = [number for other in range(size) for number in (other, 10 * other)]
        assert out.host().tolist() == want, out.host()
        got = empty(2, stream)
        job.reduce_scatter(on.array(np.arange(2 * size, dtype="int64") + rank, stream), "sum", out=got)
        base = sum(range(size))
        assert got.host().tolist() == [size * (2 * rank + i) + base for i in range(2)], got.host()
        parts = on.array(np.array([100 * rank + to for to in range(size)], "int64"), stream)
        theirs = empty(size, stream)
        job.all_to_all(parts, theirs)
        assert theirs.host().tolist() == [100 * other + rank for other in range(size)], theirs.host()
        root = here(*(range(5) if rank == size - 1 else [0] * 5))
        job.broadcast(root, root=size - 1)
        assert root.host().tolist() == list(range(5))
        summed = here(rank, 1)
        job.reduce(summed, "sum", root=0)
        assert summed.host().tolist() == ([base, size] if rank == 0 else [rank, 1]), summed.host()
        gathered = empty(size, stream) if rank == 0 else None
        job.gather(on.array(np.array([rank * rank], "int64"), stream), gathered)
        assert rank or gathered.host().tolist() == [other * other for other in range(size)]
        scattered = empty(1, stream)
        job.scatter(scattered, on.array(np.arange(size, dtype="int64") + 7, stream) if rank == 0 else None)
        assert scattered.host().tolist() == [7 + rank]
        # Around a ring; the last rank does not say from whom.
        handle = job.send(here(rank), (rank + 1) % size, tag=3, async_=True)
        message = here(-1)
        before = (rank - 1) % size
        assert job.recv(message, before if rank else None, tag=3) == before
        assert message.host().tolist() == [before]
        handle.wait()
        job.barrier()
    tell(right=True)


def in_order(by):
    """Back to back on one array without a wait; on arrays that lie elsewhere; and with what the stream still does."""
    on = device()
    with paceline.job.join() as job:
        stream = on.stream()
        # Several pieces, so that the second operation begins while the first is under way.
        length = 2_500_000
        array = on.array(np.full(length, job.rank + 1.0, "float32"), stream)
        handles = [job.all_reduce(array, async_=True) for _ in range(3)]
        for handle in handles:
            handle.wait()
        want = sum(range(1, job.size + 1)) * job.size**2
        assert (array.host() == want).all(), (array.host()[:4], want)
        # The next value is written by the stream, behind what it does now, and is what is sent.
        later = np.full(length, 5.0, "float32")
        array.write(later)
        job.all_reduce(array)
        assert (array.host() == 5.0 * job.size).all()
        if by == "ipc":
            return tell(right=True)
        # Rank 0 has its numbers on the host, and the others on a device; and each goes on with the other kind.
        numbers = np.arange(1000, dtype="float64") * (job.rank + 1)
        some = numbers if job.rank == 0 else on.array(numbers, stream)
        others = np.ones(3) if job.rank else on.array(np.ones(3), stream)
        one, two = job.all_reduce(some, async_=True), job.all_reduce(others, async_=True)
        one.wait(), two.wait()
        got = [array if isinstance(array, np.ndarray) else array.host() for array in (some, others)]
        assert (got[0] == np.arange(1000) * sum(range(1, job.size + 1))).all()
        assert (got[1] == job.size).all()
    return tell(right=True)


def wrong():
    """What a user may get wrong is named."""
    on = device()
    with paceline.job.join() as job:
        stream, other = on.stream(), on.stream()
        a, b = on.array(np.zeros(4, "float32"), stream), on.array(np.zeros(4, "float32"), other)
        said = []

        def refused(call, *arguments, **more):
            try:
                call(*arguments, **more)
            except InvalidArgumentError as error:
                said.append(str(error))
                return
            raise AssertionError("not refused")

        refused(job.all_reduce, [a, b])
        refused(job.all_gather, a, np.zeros((1, 4), "float32"))
        freed = on.array(np.zeros(4, "float32"), stream)
        on.synchronize(stream)
        freed.free()
        refused(job.all_reduce, freed)
        refused(job.all_reduce, on.array(np.zeros(4, "int8"), stream))
        refused(job.all_gather, a)
        assert job.all_reduce(a) is a
    tell(said=said)


def failing(length):
    """All-reduces until something fails; says what."""
    on = device()
    failed = None
    with paceline.job.join(timeout_s=3) as job:
        array = on.array(np.ones(int(length), "float32"), on.stream())
        try:
            for _ in range(6):
                job.all_reduce(array)
            # By NCCL, the host does not wait for what it has called.
            job.barrier()
        except JobError as error:
            failed = str(error)
        with contextlib.suppress(AssertionError):  # The context may be lost.
            on.settle()
    tell(failed=failed)


def stuck():
    """Rank 1's stream does not come to the operation: it waits for a number that nobody writes."""
    on = device()
    number = np.zeros(1, "uint32")
    with paceline.job.join(timeout_s=2) as job:
        stream = on.stream()
        array = on.array(np.ones(8, "float32"), stream)
        if job.rank == 1:
            on.wait_number(stream, number)
        failed = None
        # Not through the host, calls do not wait for devices: the error comes with a later one.
        for _ in range(100):
            try:
                job.all_reduce(array, name="weights")
                time.sleep(0.1)
            except JobError as error:
                failed = str(error)
                break
        number[0] = 1
        on.synchronize(stream)
    tell(failed=failed)


def by_nccl():
    """What NCCL has goes through it, in every dtype; the rest goes through the host, in the order of calls."""
    on = device()
    with paceline.job.join() as job:
        rank, size = job.rank, job.size
        stream = on.stream()
        for dtype in DTYPES:
            for number, op in enumerate(OPS):
                if op == "average" and dtype in NO_AVERAGE:
                    continue
                for length in (1, 1000, 200_000):
                    array = on.array(values(dtype, length, rank, number), stream)
                    job.all_reduce(array, op, name=f"{dtype} {op}", **said(dtype))
                    seeds = [(other, number) for other in range(size)]
                    check_combined(array.host(), op, dtype, seeds, "NCCL")
        root = on.array(np.arange(5.0) if rank == size - 1 else np.zeros(5), stream)
        job.broadcast(root, root=size - 1)
        assert root.host().tolist() == [0, 1, 2, 3, 4]
        summed = on.array(np.array([rank, 1], "int64"), stream)
        job.reduce(summed, "sum", root=0)
        assert summed.host().tolist() == ([sum(range(size)), size] if rank == 0 else [rank, 1])
        # NCCL's all-to-all is made of sends: it goes through the host.
        theirs = on.array(np.full(size, -1, "int64"), stream)
        job.all_to_all(on.array(np.array([100 * rank + to for to in range(size)], "int64"), stream), theirs)
        assert theirs.host().tolist() == [100 * other + rank for other in range(size)]
        whole = on.array(np.zeros((size, 3), "float32"), stream)
        job.all_gather(on.array(np.full(3, float(rank), "float32"), stream), whole)
        assert whole.host().tolist() == [[float(other)] * 3 for other in range(size)]
        part = on.array(np.zeros(70_000, "float32"), stream)
        job.reduce_scatter(on.array(np.arange(70_000.0 * size).astype("float32"), stream), "sum", out=part)
        want = np.arange(70_000.0 * rank, 70_000.0 * (rank + 1)).astype("float32") * size
        assert (part.host() == want).all()
        # Back to back, and a group in the opposite order.
        handles = [job.all_reduce(whole, async_=True) for _ in range(3)]
        handles[-1].wait()
        assert (whole.host() == np.repeat(np.arange(size), 3).reshape(size, 3) * size**3).all()
        reverse = job.group(list(reversed(range(size))), name="reverse")
        one = on.array(np.array([reverse.rank], "int32"), stream)
        reverse.broadcast(one, root=0)
        assert one.host().tolist() == [0]
        # And host memory.
        assert job.all_reduce(np.ones(3)).tolist() == [size] * 3
    tell(right=True)


def by_mpi():
    """What MPI has is given to it on the device, in every dtype; what it lacks goes through the host."""
    on = device()
    with paceline.job.join() as job:
        rank, size = job.rank, job.size
        stream = on.stream()
        operations = 0

        def reduced(dtype, length, number, op):
            array = on.array(values(dtype, length, rank, number), stream)
            job.all_reduce(array, op, name=f"{dtype} {op}", **said(dtype))
            check_combined(array.host(), op, dtype, [(other, number) for other in range(size)], "MPI")
            array.free()

        known = [dtype for dtype in DTYPES if dtype in ("float32", "float64", "int32", "int64")]
        for dtype in known:
            for number, op in enumerate(OPS):
                for length in (0, 1, 1000, 200_001):
                    reduced(dtype, length, number, op)
                    operations += 1
        for dtype in DTYPES:
            # MPI moves bytes: whatever they are.
            root = on.array(values(dtype, 999, size - 1, 7) if rank == size - 1 else values(dtype, 999, 99), stream)
            job.broadcast(root, root=size - 1, **said(dtype))
            assert (root.host() == values(dtype, 999, size - 1, 7)).all(), dtype
            whole = on.array(np.zeros(3 * size, root.dtype), stream)
            job.all_gather(on.array(values(dtype, 3, rank, 8), stream), whole, **said(dtype))
            assert (whole.host().reshape(size, 3) == [values(dtype, 3, other, 8) for other in range(size)]).all(), dtype
            operations += 2
        for op, factor in [("sum", 1), ("average", 1 / size)]:
            summed = on.array(np.array([rank, size], "float64"), stream)
            job.reduce(summed, op, root=size - 1)
            want = np.array([sum(range(size)), size * size]) * factor if rank == size - 1 else [rank, size]
            assert np.allclose(summed.host(), want), (op, summed.host())
            part = on.array(np.zeros(70_000, "float32"), stream)
            job.reduce_scatter(on.array(np.arange(70_000.0 * size).astype("float32"), stream), op, out=part)
            want = np.arange(70_000.0 * rank, 70_000.0 * (rank + 1)).astype("float32") * size * factor
            assert np.allclose(part.host(), want), op
            operations += 2
        # Several arrays at once; back to back; and a group in the opposite order.
        several = [on.array(np.full(length, rank + 1.0), stream) for length in (5, 0, 1000)]
        job.all_reduce(several, "average")
        assert all((array.host() == (size + 1) / 2).all() for array in several)
        array = on.array(np.ones(100_000), stream)
        for handle in [job.all_reduce(array, "average", async_=True), job.all_reduce(array, async_=True)]:
            handle.wait()
        assert (array.host() == size).all()
        # What the stream still does comes first.
        later = np.full(100_000, 5.0)
        array.write(later)
        job.all_reduce(array)
        assert (array.host() == 5.0 * size).all()
        reverse = job.group(list(reversed(range(size))), name="reverse")
        one = on.array(np.array([reverse.rank], "int32"), stream)
        reverse.broadcast(one, root=0)
        assert one.host().tolist() == [0]
        # Contributions are multiplied, too: torch's PREMUL_SUM.
        array = on.array(np.full(100_000, 2.0 * rank), stream)
        where = {"inputs": [(array.address, array.size)], "dtype": "float64", "stream": stream}
        job._communicator.submit("all_reduce", **where, prescale=0.5, postscale=3.0, keep=array).wait()
        assert (array.host() == 3.0 * sum(range(size))).all()
        operations += 6
        status = job.status()
        assert status["cuda_mpi"]["operations"] == operations, (status, operations)
        [copied] = status["cuda"]
        assert copied["operations"] == copied["bytes_to_host"] == copied["bytes_to_device"] == 0, status
        # And what MPI lacks.
        for dtype in (dtype for dtype in DTYPES if dtype not in known):
            reduced(dtype, 1000, 0, "sum")
        theirs = on.array(np.full(size, -1, "int64"), stream)
        job.all_to_all(on.array(np.array([100 * rank + to for to in range(size)], "int64"), stream), theirs)
        assert theirs.host().tolist() == [100 * other + rank for other in range(size)]
        assert job.all_reduce(np.ones(3)).tolist() == [size] * 3
        status = job.status()
        assert status["cuda"][0]["operations"] == 4, status
        assert status["cuda_mpi"]["operations"] == operations, status
    tell(right=True, cuda=status["mpi"]["cuda"])


def given():
    """How many operations of each kind were given to MPI, and how many went through the host."""
    on = device()
    try:
        job = paceline.job.join(timeout_s=10)
    except InvalidArgumentError as error:
        return tell(failed=str(error))
    with job:
        array = on.array(np.full(1000, job.rank + 1.0), on.stream())
        job.all_reduce(array)
        assert (array.host() == sum(range(1, job.size + 1))).all()
        job.broadcast(array)
        status = job.status()
        through_host = sum(device["operations"] for device in status.get("cuda", ()))
        by_ipc = status.get("cuda_ipc", {}).get("operations", 0)
        tell(mpi=status.get("cuda_mpi", {}).get("operations", 0), host=through_host, ipc=by_ipc)
    return None


def differing():
    """Ranks that call different things are told, and their streams go on."""
    on = device()
    with paceline.job.join(timeout_s=5) as job:
        array = on.array(np.ones(10 + job.rank, "float32"), on.stream())
        try:
            for _ in range(2000):
                job.all_reduce(array, name="weights")
            failed = None
        except JobError as error:
            failed = str(error)
        array.host()
    tell(failed=failed)


def dying():
    """Rank 1 dies in between: the others' streams go on, and the next call names it."""
    on = device()
    with paceline.job.join(timeout_s=20) as job:
        array = on.array(np.ones(10, "float32"), on.stream())
        job.all_reduce(array)
        array.host()
        if job.rank == 1:
            os._exit(7)
        try:
            while True:
                job.all_reduce(array, name="weights")
                array.host()
        except JobError as error:
            failed = str(error)
    tell(failed=failed)


def shared():
    """Whether the ranks use each other's memory, or why not."""
    on = device()
    with paceline.job.join(timeout_s=10) as job:
        array = on.array(np.full(1000, job.rank + 1.0), on.stream())
        try:
            job.all_reduce(array)
        except InvalidArgumentError as error:
            return tell(failed=str(error))
        assert (array.host() == sum(range(1, job.size + 1))).all()
        by = [name for name in ("nccl", "ipc") if f"cuda_{name}" in job.status()]
        return tell(by=by[0] if by else "host")


def large():
    """All-reduces, and the other operations, that are cut into parts, at sizes that do not divide well."""
    on = device()
    with paceline.job.join(timeout_s=20) as job:
        rank, size = job.rank, job.size
        stream = on.stream()
        for length in (1, 63, 64, 65, 1000, 100_003):
            some = np.arange(length) % 11
            array = on.array((some + rank).astype("float32"), stream)
            job.all_reduce(array)
            assert (array.host() == some * size + sum(range(size))).all(), length
            root = on.array((some if rank == size - 1 else some * 0).astype("int32"), stream)
            job.broadcast(root, root=size - 1)
            assert (root.host() == some).all(), length
            whole = on.array(np.full(length * size, -1, "int64"), stream)
            job.all_gather(on.array(some + rank, stream), whole)
            assert (whole.host().reshape(size, length) == [some + other for other in range(size)]).all(), length
            part = on.array(np.full(length, -1, "int64"), stream)
            job.reduce_scatter(on.array(np.arange(length * size) + rank, stream), "sum", out=part)
            want = (np.arange(length) + rank * length) * size + sum(range(size))
            assert (part.host() == want).all(), length
    tell(right=True)


def changing():
    """Allocations come and go between all-reduces; says what failed, and what was counted."""
    on = device()
    with paceline.job.join(timeout_s=5) as job:
        stream = on.stream()
        try:
            for number in range(12):
                arrays = [on.array(np.full(1000 + number % 3, job.rank + number, "float32"), stream) for _ in range(2)]
                for array in [*arrays, arrays[0]]:
                    job.all_reduce(array)
                times = [job.size, 1]
                for array, factor in zip(arrays, times, strict=True):
                    want = (sum(range(job.size)) + job.size * number) * factor
                    assert (array.host() == want).all(), (number, array.host()[:3], want)
                    array.free()
        except JobError as error:
            return tell(failed=str(error))
        return tell(failed=None, status=job.status()["cuda_ipc"])


def groups():
    """Three groups, each in a stream of its own."""
    on = device()
    with paceline.job.join(timeout_s=20) as job:
        rank, size = job.rank, job.size
        of = [job, job.group(list(reversed(range(size))), name="reverse"), job.group(list(range(size)), name="again")]
        streams = [on.stream() for _ in of]
        for number in range(15):
            begun = []
            for group, stream in zip(of, streams, strict=True):
                array = on.array(np.full(5000 * (1 + number), float(rank + number)), stream)
                begun.append((group.all_reduce(array, async_=True), array))
            for handle, array in begun:
                handle.wait()
                assert (array.host() == sum(range(size)) + size * number).all(), number
    tell(right=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
