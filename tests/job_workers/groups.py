"""A random sequence of operations on random groups, in flight in a different order on each rank, checked against numpy.

Arguments: seed, number of operations, and transport. All ranks draw the same plan from the seed.
"""

import sys
from dataclasses import dataclass

import numpy as np
import paceline

from job_workers.values import (
    DTYPES,
    NO_AVERAGE,
    OPS,
    Digest,
    average,
    check_combined,
    narrow,
    said,
    stored,
    tell,
    values,
    wide,
)

STRATEGIES = [None, *(entry.name for entry in paceline.all_strategies() if not entry.is_offloaded)]
CALLS = ["all_reduce"] * 5 + ["broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter"]
CALLS += ["all_to_all", "barrier", "transfer"]


@dataclass
class Planned:
    """One operation, as all ranks know it."""

    number: int
    group: int
    call: str
    dtype: str
    op: str
    length: int
    root: int
    other: int
    strategy: str | None


def plan(seed, size, count):
    draw = np.random.default_rng(seed)
    groups = [list(range(size))]
    for _ in range(int(draw.integers(2, 6))):
        groups.append([int(rank) for rank in draw.permutation(size)[: draw.integers(1, size + 1)]])
    steps = []
    for number in range(count):
        group = int(draw.integers(len(groups)))
        members = len(groups[group])
        call, dtype = str(draw.choice(CALLS)), str(draw.choice(DTYPES))
        op = str(draw.choice(OPS if dtype not in NO_AVERAGE else [op for op in OPS if op != "average"]))
        length = int(draw.choice([0, 1, 7, 100, 5_000, 40_000])) + int(draw.integers(3))
        root, other = (int(rank) for rank in draw.integers(members, size=2))
        strategy = STRATEGIES[int(draw.integers(len(STRATEGIES)))]
        steps.append(Planned(number, group, call, dtype, op, length, root, other, strategy))
    return groups, steps


def begin(group, step):
    """The operation and a check of its result; None if this rank takes no part."""
    dtype, op, length, root, number = step.dtype, step.op, step.length, step.root, step.number
    how = {**said(dtype), "name": f"step {number}", "async_": True}
    size, me = group.size, group.rank
    every = [values(dtype, length, group.ranks[rank], number) for rank in range(size)]
    seeds = [(rank, number) for rank in group.ranks]
    mine = every[me]
    what = f"step {number}: {step}"

    def combined(got):
        check_combined(got, op, dtype, seeds, what)

    def equal(want):
        return lambda got: _equal(got, want, what)

    if step.call == "all_reduce":
        return group.all_reduce(mine, op, strategy=step.strategy, **how), combined
    if step.call == "broadcast":
        return group.broadcast(mine, root, **how), equal(values(dtype, length, group.ranks[root], number))
    if step.call == "reduce":
        untouched = equal(values(dtype, length, group.ranks[me], number))
        return group.reduce(mine, op, root, **how), combined if me == root else untouched
    if step.call == "all_gather":
        return group.all_gather(mine, **how), equal(np.stack(every))
    if step.call == "gather":
        return group.gather(mine, root=root, **how), equal(np.stack(every)) if me == root else lambda got: None
    if step.call == "scatter":
        out, whole = np.empty(length, stored(dtype)), np.stack(every) if me == root else None
        return group.scatter(out, whole, root, **how), equal(mine)
    if step.call == "reduce_scatter":
        counts = [length // size + (rank < length % size) for rank in range(size)]
        return group.reduce_scatter(mine, op, counts=counts, **how), lambda got: _part(got, step, group, counts, seeds)
    if step.call == "all_to_all":
        tables = [values(dtype, size * length, group.ranks[rank], number).reshape(size, length) for rank in range(size)]
        return group.all_to_all(tables[me], **how), equal(np.stack([table[me] for table in tables]))
    if step.call == "barrier":
        return group.barrier(name=how["name"], async_=True), lambda got: None
    source, target = root, step.other
    if source != target and me == source:
        return group.send(mine, target, tag=number % 2, **how), lambda got: None
    if source != target and me == target:
        out = np.empty(length, stored(dtype))
        return group.recv(out, source, tag=number % 2, **how), lambda got: _equal(out, every[source], what)
    return None


def _equal(got, want, what):
    assert got.tobytes() == want.tobytes(), f"{what}: {got.ravel()[:8]} instead of {want.ravel()[:8]}"
    return got


def _part(got, step, group, counts, seeds):
    whole = np.zeros(step.length, stored(step.dtype))
    # check_combined wants all of it: the other parts come from the exact result, rounded.
    first = sum(counts[: group.rank])
    reference = [values(step.dtype, step.length, *seed) for seed in seeds]
    whole[:] = exact(reference, step.op, step.dtype)
    whole[first : first + counts[group.rank]] = got
    check_combined(whole, step.op, step.dtype, seeds, f"step {step.number}: {step}")


def exact(arrays, op, dtype):
    every = np.stack([wide(part, dtype) for part in arrays])
    if op in ("min", "max"):
        return narrow(every.min(0) if op == "min" else every.max(0), dtype)
    result = (np.prod if op == "product" else np.sum)(every, axis=0, dtype=every.dtype)
    return narrow(average(result, len(arrays)) if op == "average" else result, dtype)


def main(seed, count, transport):
    print(f"seed {seed}", file=sys.stderr)
    digest = Digest()
    with paceline.job.join(transport=transport) as job:
        members, steps = plan(seed, job.size, count)
        groups = {k: job.group(ranks, f"g{k}") for k, ranks in enumerate(members) if job.rank in ranks and k > 0}
        groups[0] = job
        own = np.random.default_rng([seed, job.rank])
        at = 0
        while at < len(steps):
            window = steps[at : at + int(own.integers(1, 40))]
            at += len(window)
            run_window(groups, window, own, digest, members)
        job.barrier()
    tell(digest=digest.text())


def run_window(groups, window, own, digest, members):
    """Begins a window's operations, in order within each group but in any order of groups, and waits in any order."""
    queues = {}
    for step in window:
        if step.group in groups:
            queues.setdefault(step.group, []).append(step)
    begun = []
    while queues:
        key = list(queues)[int(own.integers(len(queues)))]
        step = queues[key].pop(0)
        if not queues[key]:
            del queues[key]
        pair = begin(groups[key], step)
        if pair is not None:
            begun.append((step, *pair))
    results = {}
    for index in own.permutation(len(begun)):
        step, handle, check = begun[index]
        got = handle.wait()
        check(got)
        if step.call == "all_reduce" and len(members[step.group]) == len(members[0]):
            results[step.number] = got
    for number in sorted(results):
        digest.add(results[number])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
