"""Carries out requests on a rank: transfers, echoes, series of messages. Times are in seconds of its own clock."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paceline.job.arrays import Array, memory
from paceline.probe import machine

if TYPE_CHECKING:
    from paceline.job.job import Job

Answer = dict[str, Any]
_TINY = 8
_WARM = 20
"""Warm-up echoes."""


class RankWorker:
    """One rank's side of every measurement."""

    def __init__(self, ranks: Job) -> None:
        """Start without buffers, which the first transfer allocates."""
        self._ranks = ranks
        self._memory = memoryview(b"")

    def do(self, order: dict[str, Any]) -> Answer:
        """Carry out a request: `do` names one of the methods below, the other fields are its arguments."""
        words = {name: value for name, value in order.items() if name != "do"}
        answer: Answer = getattr(self, order["do"])(**words)
        return answer

    def transfer(self, flows: Sequence[tuple[int, int]], size: int, repeats: int) -> Answer:
        """Send `size` bytes from rank to rank, all flows at once, after one warm-up run.

        Returns, for each flow that ends here, the seconds from the preceding barrier to the last byte.
        """
        mine = self._ranks.rank
        coming = [(number, source) for number, (source, to) in enumerate(flows) if to == mine]
        going = [to for source, to in flows if source == mine]
        space = self._space((len(coming) + bool(going)) * size)
        sent, places = space[:size], [space[(n + bool(going)) * size :][:size] for n in range(len(coming))]
        seconds: dict[int, list[float]] = {number: [] for number, _ in coming}
        for turn in range(repeats + 1):
            self._ranks.barrier(name="the next transfer")
            begin = time.perf_counter()
            arrivals = [
                self._ranks.recv(place, source, async_=True) for place, (_, source) in zip(places, coming, strict=True)
            ]
            departures = [self._ranks.send(sent, to, async_=True) for to in going]
            for arrival, (number, _) in zip(arrivals, coming, strict=True):
                arrival.wait()
                if turn:
                    seconds[number].append(time.perf_counter() - begin)
            for departure in departures:
                departure.wait()
        return {"seconds": {str(number): taken for number, taken in seconds.items()}}

    def echo(self, initiator: int, responder: int, most: int, limit_s: float) -> Answer:
        """Send 8 bytes there and back, up to `most` times or for `limit_s` seconds; return the round trips."""
        note, mine = bytearray(_TINY), self._ranks.rank
        if mine == responder:
            while not note[0]:
                self._ranks.recv(note, initiator)
                self._ranks.send(note, initiator)
        if mine != initiator:
            return {}
        taken: list[float] = []
        until = time.perf_counter() + limit_s
        while not note[0]:
            note[0] = len(taken) + 1 >= most + _WARM or time.perf_counter() > until
            begin = time.perf_counter()
            self._ranks.send(note, responder)
            self._ranks.recv(note, responder)
            taken.append(time.perf_counter() - begin)
        return {"seconds": taken[_WARM:] or taken}

    def messages(self, source: int, to: int, total: int, size: int, repeats: int) -> Answer:
        """Send `total` bytes in messages of `size`, all submitted before the first leaves.

        Returns, at the sender, the seconds until the receiver has confirmed all of them.
        """
        mine, count = self._ranks.rank, total // size
        space = self._space(total) if mine in (source, to) else self._space(0)
        done, taken = bytearray(_TINY), []
        for turn in range(repeats + 1):
            arrivals = []
            if mine == to:
                places = [space[n * size :][:size] for n in range(count)]
                arrivals = [self._ranks.recv(place, source, async_=True) for place in places]
            self._ranks.barrier(name="the next run of messages")
            if mine == source:
                seconds = self._push([space[n * size :][:size] for n in range(count)], to, done)
                taken += [seconds] * bool(turn)
            for arrival in reversed(arrivals):
                arrival.wait()
            if mine == to:
                self._ranks.send(done, source)
        return {"seconds": taken}

    def _push(self, pieces: Sequence[Any], to: int, done: Array) -> float:
        # Without `background` nothing leaves until somebody waits, so Python's time is not included.
        held = [memory(piece, "piece") for piece in pieces]
        departures = [
            self._ranks._begin("send", None, given, None, root=to, tag=0, label="", background=False) for given in held
        ]
        begin = time.perf_counter()
        self._ranks.recv(done, to)
        seconds = time.perf_counter() - begin
        for departure in departures:
            departure.wait()
        return seconds

    def machine(self, seconds: float) -> Answer:
        """Measure late wake-ups and stolen time, on all ranks at once."""
        self._ranks.barrier(name="a look at the machine")
        return machine.look(seconds)

    def compression(self, method: str, repeats: int) -> Answer:
        """Measure what compressing gradients takes, on all ranks at once."""
        from paceline.probe.compression import measure

        self._ranks.barrier(name="compression")
        return measure(method, repeats)

    def _space(self, size: int) -> memoryview:
        if size > self._memory.nbytes:
            self._memory = memoryview(bytearray(b"\1") * size)
        return self._memory
