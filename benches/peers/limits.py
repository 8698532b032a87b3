"""The machine's limits: how fast cores copy and how fast its TCP is, and the shortest time of an all-reduce at each.

**Bytes.** n ranks hold S bytes each, in their own memory; a rank can at best load from everybody's memory and store
into its own. For each element somebody loads n values and stores the sum, and the n - 1 others each load the sum and
store it: 2n - 1 loads and n stores, (3n - 1) S bytes in all. For two ranks: each loads the other's half (S/2) and its
own (S/2), stores the sums (S/2), loads the other's sums (S/2) and stores them (S/2): 5 S.

**Rate.** A copy of b bytes moves 2 b: it loads and stores each. So with c = min(n, cores) cores that copy r bytes per
second each while all copy, T >= (3n - 1) S / (2 c r). r is measured at the same working set, n S / c per core, half of
it source and half destination, because data that fit into caches are copied faster; from 256 KiB on, because less would
come from the core's own L1 cache, where another rank's data never are.

**TCP.** Each rank must send 2 (n - 1) S / n bytes and receive as many (Patarasuk and Yuan 2009). The limit is the time
in which as many processes do that in a ring over loopback, each with one thread, and add nothing: what the system's
copies and calls cost. From 256 KiB on, because the interpreter's own calls take longer than smaller messages.

These are bounds, not forecasts. Additions, cache lines moving from core to core, and ranks waiting for each other count
as free, although they take most of the time below about 256 KiB.
"""

from __future__ import annotations

import multiprocessing
import select
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np
import summary
from paceline._internal.system import cores

_BATCH_S = 0.002
_LEAST_SET = 256 << 10
_WRITE = 512 << 10  # at most, in a call


def copy_rates(sizes: Sequence[int], cores: int, seconds: float = 0.1) -> list[float]:
    """Bytes copied per second by one core while `cores` copy at once, per working set."""
    sizes = [max(size, _LEAST_SET) for size in sizes]
    results = _together(_copy, [(list(sizes), seconds)] * cores)
    return [statistics.mean(each[size] for each in results) for size in sizes]


def _together(target: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Results of `target(barrier, *arguments, result)`, in a process for each of these arguments."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(arguments))
    pipes, workers = [], []
    for own in arguments:
        here, there = context.Pipe(duplex=False)
        worker = context.Process(target=target, args=(barrier, *own, there), daemon=True)
        worker.start()
        there.close()
        pipes.append(here)
        workers.append(worker)
    results = [pipe.recv() for pipe in pipes]
    for worker in workers:
        worker.join()
    return results


def _copy(barrier: Barrier, sizes: list[int], seconds: float, result: Connection) -> None:
    rates: dict[int, float] = {}
    for size in sizes:
        half = size // 2
        source, target = np.ones(half, np.uint8), np.ones(half, np.uint8)
        start = time.perf_counter()
        np.copyto(target, source)
        times = max(1, int(_BATCH_S / (time.perf_counter() - start)))
        barrier.wait(60)
        batches, end = [], time.perf_counter() + seconds
        while len(batches) < 3 or time.perf_counter() < end:
            start = time.perf_counter()
            for _ in range(times):
                np.copyto(target, source)
            batches.append(times * half / (time.perf_counter() - start))
        barrier.wait(60)
        rates[size] = statistics.median(batches)
    result.send(rates)


def measure(sizes: Sequence[int], ranks: int) -> dict[int, float]:
    """For each size the minimum seconds of an all-reduce, at the rate at which the cores copy."""
    copying = min(ranks, cores())
    rates = copy_rates([ranks * size // copying for size in sizes], copying)
    return {size: summary.least_seconds(size, ranks, cores(), rate) for size, rate in zip(sizes, rates, strict=True)}


def tcp_seconds(sizes: Sequence[int], ranks: int, seconds: float = 0.2) -> dict[int, float]:
    """Median seconds in which each of `ranks` processes sends an all-reduce's bytes to the next over loopback."""
    sizes = [size for size in sizes if size >= _LEAST_SET]
    ends: list[list[socket.socket]] = [[] for _ in range(ranks)]
    with socket.create_server(("127.0.0.1", 0), backlog=ranks) as server:
        for rank in range(ranks):
            ends[rank].append(socket.create_connection(server.getsockname()))
            ends[(rank + 1) % ranks].append(server.accept()[0])
    turns = [(size, 2 * (ranks - 1) * size // ranks) for size in sizes]
    # Each has the end to the next rank first: rank 0's other end was accepted last.
    pairs = [tuple(pair if rank == 0 else reversed(pair)) for rank, pair in enumerate(ends)]
    results = _together(_exchange, [(pair, turns, seconds) for pair in pairs])
    for end in (end for pair in ends for end in pair):
        end.close()
    return {size: max(each[size] for each in results) for size in sizes}


def _exchange(
    barrier: Barrier,
    ends: tuple[socket.socket, socket.socket],
    turns: list[tuple[int, int]],
    seconds: float,
    result: Connection,
) -> None:
    to, back = ends
    for end in (to, back):
        end.setblocking(False)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    medians = {}
    for size, total in turns:
        outgoing, incoming = memoryview(bytearray(size)), memoryview(bytearray(size))
        times: list[float] = []
        barrier.wait(60)
        # A number of turns that all know, so that nobody waits for one that has stopped.
        for _ in range(max(3, int(seconds * 1e9 / total))):
            start = time.perf_counter()
            _turn(to, back, outgoing, incoming, total)
            times.append(time.perf_counter() - start)
        medians[size] = statistics.median(times)
    barrier.wait(60)
    result.send(medians)


def _turn(to: socket.socket, back: socket.socket, outgoing: memoryview, incoming: memoryview, total: int) -> None:
    """Send and receive `total` bytes, over and over the same memory; no write passes its end."""
    sent = received = 0
    while sent < total or received < total:
        moved = 0
        if sent < total:
            at = sent % len(outgoing)
            try:
                moved = to.send(outgoing[at : at + min(_WRITE, total - sent)])
                sent += moved
            except BlockingIOError:
                pass
        if received < total:
            at = received % len(incoming)
            try:
                got = back.recv_into(incoming[at : at + min(_WRITE, total - received)])
            except BlockingIOError:
                got = 0
            received += got
            moved += got
        if not moved:
            reading = [back] if received < total else []
            select.select(reading, [to] if sent < total else [], [], 10)
