"""The plan of an iteration, played by one rank with a clock and exchanges of its own."""

from __future__ import annotations

import json
import threading
import time

import pytest
from paceline._core import Plan, RankGroup
from paceline._internal.clock import Clock
from paceline_lab.replay.player import Player
from paceline_lab.replay.worker_schedule import Factors, WorkerSchedule

MS = 1_000_000


def step(stream, kind, duration_s=0.0, after=()):
    work = {"op": kind, "duration_ps": round(duration_s * 1e12)}
    if kind == "exchange":
        group = {"size": 2, "stride": 1}
        work = {"op": kind, "collective": "all-gather", "group": group, "elements": 8, "dtype": "float32"}
    where = {"stream": stream, "unit": None, "pass": 0, "after": list(after)}
    return {"work": work, **where, "allocates": [], "frees": []}


class Slow:
    """Exchanges that take a given time."""

    def __init__(self, seconds, fails=None):
        self.seconds, self.fails, self.ran, self.lock = seconds, fails, [], threading.Lock()

    def meet(self):
        return time.monotonic_ns() + MS

    def run(self, step):
        if step.number == self.fails:
            raise RuntimeError("the peer has left")
        begin = time.monotonic_ns()
        time.sleep(self.seconds)
        with self.lock:
            self.ran.append((step.number, begin, time.monotonic_ns()))


def play(steps, exchanges, iterations=1, mark=lambda *_: None):
    plan = {"format": "paceline-iteration-plan", "version": 1, "trace": "trace", "sharding": "zero3", "world": 2}
    plan |= {"shard_ranks": 2, "samples": 1, "passes": 1, "units": [], "buffers": [], "resident": []}
    plan = Plan.from_json(json.dumps(plan | {"steps": steps, "has_activations": False, "notes": []}), "plan")
    schedule = WorkerSchedule(plan, (Factors(1.0, 1.0),) * iterations, same_order=True)
    return Player(schedule, exchanges, Clock(), together=True, mark=mark).play()


def test_a_gather_is_hidden_behind_the_computation_before_it():
    marks = []
    steps = [
        step("compute", "forward", 0.08),
        step("all-gather", "exchange"),
        step("compute", "forward", 0.04, [1]),
    ]
    [played] = play(steps, Slow(0.03), mark=lambda *mark: marks.append(mark))
    assert (played.end - played.begin) / 1e9 == pytest.approx(0.12, abs=0.02)
    assert [name for kind, name, *_ in marks if kind == "wait"] == []


def test_what_is_not_hidden_is_waited_for():
    marks = []
    steps = [
        step("compute", "forward", 0.02),
        step("all-gather", "exchange", after=[0]),
        step("compute", "forward", 0.02, [1]),
        step("reduce-scatter", "exchange", after=[2]),
    ]
    exchanges = Slow(0.05)
    played = play(steps, exchanges, iterations=2, mark=lambda *mark: marks.append(mark))
    for one in played:
        assert (one.end - one.begin) / 1e9 == pytest.approx(0.14, abs=0.03)
    waits = [(end - begin) / 1e9 for kind, _, begin, end in marks if kind == "wait"]
    assert waits == pytest.approx([0.05, 0.05], abs=0.02)
    assert [number for number, *_ in exchanges.ran] == [1, 3, 1, 3]


def test_exchanges_of_a_stream_run_one_after_the_other_and_streams_at_once():
    steps = [
        step("all-gather", "exchange"),
        step("all-gather", "exchange"),
        step("reduce-scatter", "exchange"),
        step("compute", "optimizer", 0.0, [0, 1, 2]),
    ]
    exchanges = Slow(0.05)
    [played] = play(steps, exchanges)
    assert (played.end - played.begin) / 1e9 == pytest.approx(0.1, abs=0.03)
    spans = {number: (begin, end) for number, begin, end in exchanges.ran}
    assert spans[1][0] >= spans[0][1] and spans[2][0] < spans[0][1]
    assert min(begin for begin, _ in spans.values()) >= played.begin


@pytest.mark.parametrize("fails", [1, 3])
def test_an_exchange_that_fails_ends_the_rank(fails):
    steps = [
        step("compute", "forward", 0.001),
        step("all-gather", "exchange", after=[0]),
        step("compute", "forward", 0.001, [1]),
        step("reduce-scatter", "exchange", after=[2]),
    ]
    with pytest.raises(RuntimeError, match="the peer has left"):
        play(steps, Slow(0.001, fails))
    assert not [thread for thread in threading.enumerate() if thread.name in ("all-gather", "reduce-scatter")]


def test_groups_of_neighbors_and_of_equal_places():
    assert RankGroup(4, 1).around(6) == [4, 5, 6, 7]
    assert RankGroup(2, 4).around(6) == [2, 6]
    assert RankGroup(8, 1).around(3) == list(range(8))
