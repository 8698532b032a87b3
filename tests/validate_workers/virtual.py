"""Players in threads, each with its own clock, and a network that only delays: nothing takes real time."""

import threading

from paceline._internal.clock import Lateness
from paceline_lab.replay.player import Player
from paceline_lab.replay.worker_schedule import BACKGROUND

LIMIT_S = 20


class VirtualClock:
    """Jumps to the end of each sleep, and `oversleep` further."""

    def __init__(self, oversleep=0):
        self.time, self.oversleep = 0, oversleep

    def now(self):
        return self.time

    def sleep_until(self, moment):
        if moment > self.time:
            self.time = moment + self.oversleep

    def lateness(self):
        return Lateness.of([self.oversleep])


class Network:
    """A sum arrives everywhere `delay` after the last worker has issued it; with the barrier, after all are issued."""

    def __init__(self, workers, delay=0, held=()):
        self.workers, self.delay, self.held = workers, delay, held
        self.changed = threading.Condition()
        self.issued = {}
        self.met = {}

    def put(self, table, key, time):
        with self.changed:
            table.setdefault(key, []).append(time)
            self.changed.notify_all()

    def last(self, table, key):
        with self.changed:
            assert self.changed.wait_for(lambda: len(table.get(key, ())) == self.workers, LIMIT_S), (key, table)
            return max(table[key])


class VirtualExchange:
    """A worker's side. It may look ahead: the arrival of a sum is known once all have issued it."""

    def __init__(self, network, clock):
        self.network, self.clock = network, clock
        self.rounds, self.meetings, self.log = {}, 0, []

    def meet(self):
        self.meetings += 1
        self.network.put(self.network.met, self.meetings, self.clock.time)
        return self.network.last(self.network.met, self.meetings)

    def issue(self, step):
        bucket = step.unit
        self.rounds[bucket] = self.rounds.get(bucket, 0) + 1
        self.log.append((self.clock.time, bucket))
        self.network.put(self.network.issued, (bucket, self.rounds[bucket]), self.clock.time)

    def arrival(self, step):
        bucket = step.unit
        keys = [(other, self.rounds[bucket]) for other in self.network.held or (bucket,)]
        return max(self.network.last(self.network.issued, key) for key in keys) + self.network.delay

    def held(self, step):
        return step.unit not in self.rounds or self.arrival(step) <= self.clock.time

    def wait(self, step):
        self.clock.time = max(self.clock.time, self.arrival(step))


def play(parts, *, together, delay_s=0.0, oversleep_s=0.0, barrier=False):
    """The iterations of every worker, and what each issued when."""
    buckets = [step.unit for step in parts[0].plan.steps if step.stream == BACKGROUND]
    network = Network(len(parts), round(delay_s * 1e9), buckets if barrier else ())
    exchanges = [VirtualExchange(network, VirtualClock(round(oversleep_s * 1e9))) for _ in parts]
    iterations = [None] * len(parts)

    def run(rank):
        player = Player(parts[rank], exchanges[rank], exchanges[rank].clock, together=together, mark=lambda *_: None)
        iterations[rank] = player.play()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert all(iterations), "a player did not end"
    return iterations, [exchange.log for exchange in exchanges]
