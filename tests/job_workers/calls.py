"""Every other operation on every dtype against numpy; segments; handles; buffers without numpy. Word: the transport."""

import array
import sys
import time

import numpy as np
import paceline

from job_workers.values import DTYPES, NO_AVERAGE, OPS, Digest, check_combined, holdings, said, stored, tell, values

LENGTHS = [0, 1, 3, 1000, 70_001]


def same(got, want):
    assert got.tobytes() == want.tobytes(), (got[:8], want[:8])


def of_all(job, dtype, length, seed):
    return [values(dtype, length, rank, seed) for rank in range(job.size)]


def in_place(job, dtype, length, how):
    for root in range(job.size):
        every, mine = of_all(job, dtype, length, root), values(dtype, length, job.rank, root)
        assert job.broadcast(mine, root, **how) is mine
        same(mine, every[root])
        for number, op in enumerate(OPS):
            if op == "average" and dtype in NO_AVERAGE:
                continue
            seeds, mine = [(rank, number) for rank in range(job.size)], values(dtype, length, job.rank, number)
            job.reduce(mine, op, root, **how)
            if job.rank == root:
                check_combined(mine, op, dtype, seeds, f"reduce to {root}")
            else:
                same(mine, values(dtype, length, job.rank, number))


def reduce_scatter(job, dtype, length, how, digest):
    for number, op in enumerate(OPS):
        if op == "average" and dtype in NO_AVERAGE:
            continue
        whole = values(dtype, job.size * length, job.rank, number)
        part = job.reduce_scatter(whole, op, **how)
        same(whole, values(dtype, job.size * length, job.rank, number))
        assert part.shape == (length,)
        # The parts of all ranks, put together, are the all-reduce.
        together = job.all_gather(part, **how).reshape(-1)
        seeds = [(rank, number) for rank in range(job.size)]
        check_combined(together, op, dtype, seeds, "reduce_scatter")
        digest.add(together)


def exchanged(job, dtype, length, how):
    every, mine = of_all(job, dtype, length, 7), values(dtype, length, job.rank, 7)
    out = job.all_gather(mine, **how)
    assert out.shape == (job.size, length)
    same(out, np.stack(every))
    for root in range(job.size):
        out = job.gather(mine, root=root, **how)
        assert (out is None) == (job.rank != root)
        if out is not None:
            same(out, np.stack(every))
        got = np.empty(length, stored(dtype))
        assert job.scatter(got, np.stack(every) if job.rank == root else None, root, **how) is got
        same(got, every[job.rank])
    table = [values(dtype, job.size * length, rank, 8).reshape(job.size, length) for rank in range(job.size)]
    same(job.all_to_all(table[job.rank], **how), np.stack([row[job.rank] for row in table]))


def uneven(job):
    """Lengths that differ between ranks, some of them 0."""
    counts = [(rank * 37) % 101 for rank in range(job.size)]
    every = [values("int64", counts[rank], rank) for rank in range(job.size)]
    together, mine = np.concatenate(every), every[job.rank]
    same(job.all_gather(mine, counts=counts), together)
    out = job.gather(mine, root=job.size - 1, counts=counts)
    if out is not None:
        same(out, together)
    got = np.empty(counts[job.rank], "int64")
    same(job.scatter(got, together if job.rank == 0 else None, counts=counts), mine)
    whole = np.arange(sum(counts), dtype="int64") * (job.rank + 1)
    part = job.reduce_scatter(whole, counts=counts)
    first = sum(counts[: job.rank])
    factor = job.size * (job.size + 1) // 2
    same(part, np.arange(first, first + counts[job.rank], dtype="int64") * factor)
    sent = [[(a * 5 + b * 3) % 11 for b in range(job.size)] for a in range(job.size)]
    come = [sent[rank][job.rank] for rank in range(job.size)]
    blocks = [[np.full(sent[a][b], 100 * a + b, "int32") for b in range(job.size)] for a in range(job.size)]
    got = job.all_to_all(np.concatenate(blocks[job.rank]), counts=sent[job.rank], out_counts=come)
    same(got, np.concatenate([blocks[rank][job.rank] for rank in range(job.size)]))


def by_strategy(job):
    """Reduce-scatter and all-gather by each strategy that has them, of any length; the input stays as it is."""
    for strategy in paceline.all_strategies():
        if "all-gather" not in strategy.collectives or strategy.is_offloaded:
            refused(job, strategy.name)
            continue
        for length in (*LENGTHS, 300_001):
            whole = np.concatenate([values("int64", length, part, job.rank) for part in range(job.size)])
            given = whole.copy()
            sums = [sum(values("int64", length, part, rank) for rank in range(job.size)) for part in range(job.size)]
            part = job.reduce_scatter(whole, strategy=strategy.name)
            same(part, sums[job.rank])
            same(whole, given)
            same(job.all_gather(part, strategy=strategy.name), np.stack(sums))
            segments = [whole[: length // 2], whole[length // 2 :]]
            half, rest = np.empty(length // 3, "int64"), np.empty(length - length // 3, "int64")
            job.reduce_scatter(segments, "average", out=[half, rest], strategy=strategy.name)
            # Rounded toward zero.
            same(np.concatenate([half, rest]), np.trunc(sums[job.rank] / job.size).astype("int64"))
    if job.size > 1:
        counts = [2] * (job.size - 1) + [0]
        try:
            job.all_gather(np.zeros(counts[job.rank]), counts=counts, strategy="ring")
        except paceline.InvalidArgumentError as error:
            assert "if counts differ" in str(error), error
        else:
            raise AssertionError


def refused(job, strategy):
    try:
        job.all_gather(np.zeros(3), strategy=strategy)
    except paceline.InvalidArgumentError as error:
        assert strategy in str(error), error
    else:
        raise AssertionError(strategy)


def segments(job):
    """Several arrays in one operation act as one; so do buffers from outside numpy."""
    parts = [np.full(n, job.rank + 1, "float32") for n in (1, 0, 70_000, 3)]
    assert job.all_reduce(parts) is parts
    assert all((part == job.size * (job.size + 1) / 2).all() for part in parts)
    got = [bytearray(3), bytearray(job.size * 4 - 3)]
    job.all_gather([b"ab", b"", bytes([job.rank, 7])], got)
    assert b"".join(got) == b"".join(bytes([97, 98, rank, 7]) for rank in range(job.size))
    ring = array.array("d", [job.rank, 1.5])
    job.all_reduce(ring)
    assert list(ring) == [job.size * (job.size - 1) / 2, 1.5 * job.size]
    scalar = np.array(2.0)
    assert job.all_reduce(scalar, "product") == 2.0**job.size


def transfers(job):
    """Around a ring, from any rank, and many under one tag or several; messages under a tag keep their order."""
    after, before = (job.rank + 1) % job.size, (job.rank - 1) % job.size
    got = np.empty(70_001, "float64")
    begun = job.send(values("float64", 70_001, job.rank, 1), after, tag=3, async_=True)
    assert job.recv(got, before, tag=3) == before
    same(got, values("float64", 70_001, before, 1))
    assert begun.wait() is None
    if job.rank == 0:
        froms = []
        for _ in range(2 * (job.size - 1)):
            word = bytearray(2)
            froms.append(job.recv(word, tag=9))
            assert word[0] == froms[-1] and word[1] == froms.count(froms[-1])
        assert sorted(froms) == sorted(list(range(1, job.size)) * 2)
    else:
        for turn in (1, 2):
            job.send(bytes([job.rank, turn]), 0, tag=9)
    outgoing = [job.send(np.array([k]), after, tag=k % 3, async_=True) for k in range(30)]
    incoming = [np.empty(1, "int64") for _ in range(30)]
    # The receives are called in another order than the sends; under one tag the order is the senders'.
    order = sorted(range(30), key=lambda k: (-(k % 3), k))
    handles = [job.recv(incoming[k], before, tag=k % 3, async_=True) for k in order]
    assert [handle.wait() for handle in [*handles, *outgoing]] == [before] * 30 + [None] * 30
    assert [int(got[0]) for got in incoming] == list(range(30))


def in_flight(job):
    """200 operations at once, waited for in another order."""
    arrays = [values("float32", 1 + 911 * (k % 7), job.rank, k) for k in range(200)]
    handles = [job.all_reduce(arrays[k], OPS[k % 5], async_=True, name=f"t{k}") for k in range(200)]
    for k in sorted(range(200), key=lambda k: (k * 77 + job.rank * 13) % 200):
        assert handles[k].wait(60) is arrays[k]
        seeds = [(rank, k) for rank in range(job.size)]
        check_combined(arrays[k], OPS[k % 5], "float32", seeds, "in flight")


def handles(job):
    """A handle tells whether its operation is over; too short a wait raises; a dropped handle's operation continues."""
    if job.rank == 0:
        late = job.barrier(async_=True)
        assert not late.done()
        try:
            late.wait(0.05)
        except TimeoutError as error:
            assert "0.05 s" in str(error)
        else:
            raise AssertionError
        job.send(b"x", job.size - 1, tag=5)
        late.wait()
        assert late.done() and late.wait() is None
    else:
        if job.rank == job.size - 1:
            job.recv(bytearray(1), 0, tag=5)
        job.barrier()
    dropped = np.ones(70_000, "float32")
    job.all_reduce(dropped, async_=True)
    end = time.monotonic() + 30
    while not (dropped == job.size).all():
        assert time.monotonic() < end
        time.sleep(0.005)


def of_dtype(job, dtype, digest):
    """Every operation on arrays of a dtype, of all lengths."""
    for length in LENGTHS:
        how = said(dtype)
        in_place(job, dtype, length, how)
        reduce_scatter(job, dtype, length, how, digest)
        exchanged(job, dtype, length, how)


OTHERS = [uneven, by_strategy, segments, transfers, in_flight, handles]


def main(transport):
    before, digest = holdings(), Digest()
    with paceline.job.join(transport=transport) as job:
        for dtype in DTYPES:
            of_dtype(job, dtype, digest)
        for check in OTHERS:
            check(job)
            job.barrier()
    tell(digests={transport: digest.text()}, before=before, after=holdings())


if __name__ == "__main__":
    main(sys.argv[1])
