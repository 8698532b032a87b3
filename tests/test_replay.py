"""What a replayed worker waits for, against the simulator; what is measured; real ranks."""

import json
import re
import sys
from collections import Counter
from dataclasses import replace

import cli
import numpy as np
import paceline
import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_workers.launch import TESTS, clean
from paceline._core import Distributed
from paceline._internal.clock import Clock, Lateness
from paceline._internal.load import Load, load
from paceline.forecast.lowering import native
from paceline.forecast.scenario import Scenario
from paceline_lab.replay.asynchronous import steady
from paceline_lab.replay.exchange import JobExchange
from paceline_lab.replay.player import Iteration
from paceline_lab.replay.result import Played, boundary, measured
from paceline_lab.replay.traces import shrunk
from paceline_lab.replay.worker_schedule import BACKGROUND, WorkerSchedule
from validate_workers.virtual import play

pytestmark = pytest.mark.timed

TWO_ORDERS = {
    "format": "paceline-trace",
    "version": 1,
    "name": "two-orders",
    "batch": 1,
    "dtype": "float32",
    "workers": [
        {
            "forward": [
                {"layer": "a", "duration_s": 0.01, "tensors": ["x"]},
                {"layer": "pool", "duration_s": 0.005},
                {"layer": "b", "duration_s": 0.02, "tensors": ["y", "x"]},
            ],
            "gradients": [
                {"tensor": "y", "ready_s": 0.01, "bytes": 1200},
                {"tensor": "x", "ready_s": 0.02, "bytes": 400},
            ],
            "backward_s": 0.025,
            "optimizer_s": 0.004,
        },
        {
            "forward": [{"layer": "a", "duration_s": 0.03, "tensors": ["x", "y"]}],
            "gradients": [
                {"tensor": "x", "ready_s": 0.01, "bytes": 400},
                {"tensor": "y", "ready_s": 0.02, "bytes": 1200},
            ],
        },
    ],
    "variation": {"backward_spread": 0.5},
}


def trace_of(source):
    if isinstance(source, dict):
        return paceline.Trace.from_json(json.dumps(source).encode(), "test")
    return paceline.load_trace(source)


def name_of(value):
    return value["name"] if isinstance(value, dict) and "name" in value else None


def parts_of(trace, strategy, workers, iterations=6, **options):
    scenario = native(Scenario.of(trace, paceline.load_cluster(), strategy, workers, **options))
    return [WorkerSchedule.of(scenario, worker, iterations) for worker in range(workers)]


def played(parts, iterations, limits):
    lists = [
        Played(rank, len(parts), "host", "clock", parts[0].plan.trace, None, limits, tuple(own), 3, 0)
        for rank, own in enumerate(iterations)
    ]
    return [one.seconds for one in measured(lists)]


def replayed(parts, *, barrier, **how):
    plan = parts[0].plan
    limits = boundary(servers=plan.has_servers, exchange_only=plan.exchanges_only, barrier=barrier)
    iterations, log = play(parts, together=limits == "start", barrier=barrier and plan.has_servers, **how)
    return played(parts, iterations, limits), log


@pytest.mark.parametrize(
    "source",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("netop-resnet-101", "netop-inception-v3")),
        "resnet-50",
        TWO_ORDERS,
    ],
    ids=name_of,
)
@pytest.mark.parametrize(
    ("strategy", "barrier", "options"),
    [
        ("ring", True, {}),
        ("ring", False, {}),
        ("ring", True, {"overlap": False, "compute_speedup": 0.5}),
        ("ps", True, {"pull": "layer"}),
        pytest.param("ps", True, {"pull": "step"}, marks=pytest.mark.slow),
        ("ps", False, {"pull": "layer"}),
        ("ps", False, {"pull": "step", "compute_speedup": 4.0}),
    ],
)
def test_an_iteration_is_the_simulators(source, strategy, barrier, options):
    """On a network that costs only time, and the same for every sum, the simulator and the players agree."""
    trace = trace_of(source)
    # A push and a pull; a ring's sum takes hops that do not all wait for the last gradient.
    latency_s = 0.004 if strategy == "ps" else 0.0
    simulated = paceline.simulate(
        trace,
        None,
        strategy,
        workers=4 if strategy == "ps" else 2,
        library="none",
        bandwidth="1000Tbps",
        latency=f"{latency_s:g}s",
        barrier=barrier,
        iterations=3,
        **options,
    )
    parts = parts_of(trace, strategy, simulated.workers, **options)
    times, _ = replayed(parts, barrier=barrier, delay_s=2 * latency_s)
    assert np.mean(times) == pytest.approx(simulated.iteration_s, rel=1e-4)


def test_pulled_layers_wait_for_their_own_tensors_only():
    (part,) = parts_of(trace_of({**TWO_ORDERS, "workers": TWO_ORDERS["workers"][:1]}), "ps", 1)
    _, (log,) = replayed([part], barrier=False, delay_s=0.1)
    first, second = log[:2], log[2:4]
    # y is ready after 10 ms of backward, x after 20; forward: 35 ms and the optimizer's 4, without a wait at first.
    assert first == [(49_000_000, 1), (59_000_000, 0)]
    # x, which `a` needs, comes 100 ms after it was issued; y, which `b` needs, has come before `a` and `pool` are done.
    begin = 59_000_000 + 100_000_000
    assert [time for time, _ in second] == [begin + 49_000_000, begin + 59_000_000]


def test_late_wake_ups_are_made_up_for():
    parts = parts_of(trace_of("resnet-50"), "ring", 2)
    exact, _ = replayed(parts, barrier=True)
    late, _ = replayed(parts, barrier=True, oversleep_s=0.0002)
    assert np.mean(late) == pytest.approx(np.mean(exact), abs=0.0005)


def test_ranks_hand_over_in_one_order():
    parts = parts_of(trace_of(TWO_ORDERS), "ring", 2)
    assert [part.same_order for part in parts] == [False, False]
    _, logs = replayed(parts, barrier=True)
    assert [[bucket for _, bucket in log] for log in logs] == [[1, 0] * 6] * 2
    # The second worker has its own first bucket when it has the second.
    assert [[time for time, _ in log] for log in logs][1][0] == [time for time, _ in logs[1]][1]


def test_bytes_are_divided():
    whole = paceline.load_trace("netop-inception-v3")
    less = shrunk(whole, 8)
    for before, after in zip(whole.workers[0].gradients, less.workers[0].gradients, strict=True):
        assert after.bytes % 4 == 0
        assert abs(after.bytes - before.bytes / 8) <= 4
    [auxiliary] = [entry for entry in less.distribution if entry.bytes is not None]
    assert auxiliary == Distributed("AuxLogits", 8_500_000 // 8)
    with pytest.raises(paceline.InvalidArgumentError, match=r"shrink: must be 1-1000000, not 0\.5"):
        shrunk(less, 0.5)


def iteration(begin, handed, end):
    return Iteration(begin, handed, end, Lateness(3, 1e-5, 2e-4, 3e-4), Load(2, 0.5, 0.25))


@pytest.mark.parametrize(
    ("limits", "seconds"), [("start", [9e-9, 6e-9]), ("end", [12e-9, 6e-9]), ("handed", [11e-9, 5e-9])]
)
def test_what_is_measured(limits, seconds):
    ranks = [
        Played(
            0,
            2,
            "a",
            "c",
            "t",
            "ring",
            limits,
            (iteration(0, 4, 8), iteration(10, 15, 16), iteration(20, 20, 24)),
            1,
            9,
        ),
        Played(
            1,
            2,
            "b",
            "c",
            "t",
            "ring",
            limits,
            (iteration(0, 5, 7), iteration(11, 16, 20), iteration(20, 21, 26)),
            1,
            9,
        ),
    ]
    answer = measured([Played.from_dict(json.loads(json.dumps(rank.to_dict()))) for rank in ranks])
    assert [one.seconds for one in answer] == pytest.approx(seconds)
    assert (answer[0].involuntary_switches, answer[0].cpu_s, answer[0].steal_s, answer[0].late_s) == (
        4,
        1.0,
        0.25,
        2e-4,
    )
    with pytest.raises(paceline.InvalidArgumentError, match="no common clock"):
        measured([ranks[0], replace(ranks[1], clock="another")])


def own(rank, *spans, warmup=0):
    iterations = tuple(iteration(begin, end, end) for begin, end in spans)
    return Played(rank, 2, "a", "c", "t", "async-ps", "own", iterations, warmup, 9)


def test_workers_that_do_not_wait_for_each_other_are_measured_by_their_rates():
    fast = own(0, *((n * 10, n * 10 + 10) for n in range(41)), warmup=1)
    slow = own(1, *((n * 20, n * 20 + 20) for n in range(41)), warmup=1)
    # From 20, when the slow one is warm, to 410, when the fast one has ended, in four windows.
    result = measured([fast, slow])
    assert [one.seconds for one in result] == pytest.approx([2 / (1 / 10e-9 + 1 / 20e-9)] * 4)
    for one in result:
        assert (one.late_s, one.cpu_s, one.steal_s) == pytest.approx((2e-4, 1.0, 0.25))
        assert one.involuntary_switches == 4
    # An iteration counts in a window by how much of it is there.
    uneven = own(0, (0, 10), (10, 20), (20, 60), (60, 70))
    (one,) = measured([uneven, own(1, (0, 40), (40, 80))])
    assert one.seconds == pytest.approx(2 * 70e-9 / (4 + 1.75))
    with pytest.raises(paceline.InvalidArgumentError, match="no time in common"):
        measured([own(0, (0, 10)), own(1, (20, 30))])


@given(
    workers=st.integers(1, 4),
    parts=st.integers(1, 3),
    iterations=st.integers(1, 5),
    first=st.integers(0, 3),
    chance=st.randoms(use_true_random=False),
)
def test_only_gradients_of_the_steady_state_count(workers, parts, iterations, first, chance):
    """A server's order at random, and a direct count of what was applied since each worker's pull."""
    left = {worker: [(it, part) for it in range(iterations) for part in range(parts)] for worker in range(workers)}
    versions, pulled, order = [0] * parts, {worker: [0] * parts for worker in left}, []
    while any(left.values()):
        worker = chance.choice([worker for worker, own in left.items() if own])
        it, part = left[worker].pop(0)
        order.append([part, worker, it, versions[part], pulled[worker][part]])
        versions[part] += 1
        if part == parts - 1:
            pulled[worker] = list(versions)
    all_are_warm = [
        at for at in range(len(order)) if {who for _, who, it, *_ in order[: at + 1] if it >= first} == set(left)
    ]
    last = {who: max(at for at, entry in enumerate(order) if entry[1] == who) for who in left}
    counted = [entry for at, entry in enumerate(order) if at in all_are_warm and at <= min(last.values())]
    assert steady(order, workers, first, iterations) == Counter(entry[3] - entry[4] for entry in counted)


def test_the_clock_is_not_early_and_says_how_late_it_was():
    clock = Clock()
    for _ in range(20):
        moment = clock.now() + 2_000_000
        clock.sleep_until(moment)
        assert clock.now() >= moment
    late = clock.lateness()
    assert late.count == 20
    assert 0 < late.median_s <= late.p99_s <= late.worst_s
    assert clock.lateness().count == 0


def test_load_counts_what_this_process_did():
    before = load()
    sum(range(3_000_000))
    assert load().since(before).cpu_s > 0


class Other:
    """The other rank."""

    rank, size = 1, 2


class Job:
    """Two ranks, of which the other contributes what it should, or not."""

    rank, size = 0, 2

    def __init__(self, plan, wrong=None):
        self.plan, self.wrong, self.seen = plan, wrong, []

    def _begin(self, call, array, given, outputs, *, label, background, bucket, pull_only, step=None):
        other = JobExchange(Other(), self.plan, {})
        (issued,) = (it for it in self.plan.steps if it.stream == BACKGROUND and it.unit == bucket)
        other._give(issued)
        array += other._arrays[issued.number][1]
        if label == self.wrong:
            array[-1] += 1
        self.seen.append((label, bucket, given.elements, step))
        return self

    def done(self):
        return True

    def wait(self):
        pass


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_sums_are_checked(dtype):
    fields = {**TWO_ORDERS, "dtype": dtype}
    (part, _) = parts_of(trace_of(fields), "ps", 2)
    job = Job(part.plan)
    exchange = JobExchange(job, part.plan, {}, barrier=True)
    assert exchange.check() == 2
    element = np.dtype(dtype).itemsize
    assert job.seen == [("y", 1, 1200 // element, (False, 1)), ("x", 0, 400 // element, (True, 0))]
    assert not any(array.any() for arrays in exchange._arrays.values() for array in arrays)
    with pytest.raises(ArithmeticError, match="rank 0 has a wrong result of 'all-reduce x'"):
        JobExchange(Job(part.plan, wrong="x"), part.plan, {}, barrier=False).check()


def launch(*words, ranks=0, options=()):
    command = [sys.executable, "-m"]
    if ranks:
        command += ["paceline.cli", "run", "-np", str(ranks), *options, "--", sys.executable, "-m"]
    command += ["paceline_lab.replay", *words]
    return cli.ended(*command, cwd=TESTS, env=clean(), timeout=90)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["resnet-5"], "unknown trace 'resnet-5'"),
        (["resnet-50", "--scale", "0"], "error: --scale: must be a factor, 0.000001-1000000, not '0'"),
        (["resnet-50", "--shrink", "none"], "--shrink: must be a factor"),
        (["resnet-50", "--shrink", "0.5"], "error: shrink: must be 1-1000000, not 0.5"),
        (["resnet-50", "--pull", "step"], "error: --pull needs parameter servers"),
        (["resnet-18", "--unit", "layer*"], "error: --unit: needs sharding"),
        (["resnet-18", "--sharding", "zero1", "--unit", "layer*"], "error: --unit: has no effect with zero1"),
        (["resnet-18", "--sharding", "zero1", "--pull", "layer"], "--pull: has no effect with sharding"),
        (["allreduce:4KB", "--output", "/nowhere/at/all"], "--output /nowhere/at/all: no such folder"),
    ],
)
def test_mistakes_are_named(words, message):
    ended = launch(*words)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_bucket_is_a_number():
    with (
        paceline.job.join() as job,
        pytest.raises(paceline.InvalidArgumentError, match="bucket: must be 0-4294967295, not -1"),
    ):
        job.all_reduce(np.ones(3), bucket=-1)


@pytest.mark.process
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs memfd")
@pytest.mark.parametrize("options", [["--servers", "2", "--placement", "even"], ["--staleness", "0"]])
def test_servers_apply_the_gradients_of_a_replay(options):
    """Parameters are compared with the sums of what all ranks pushed, before the iterations and after them."""
    words = ["resnet-50", "--shrink", "64", "--iterations", "12", "--warmup", "2", "--json"]
    strategy = ["--no-prefix", "--strategy", "async-ps", "--transport", "tcp"]
    ended = launch(*words, ranks=2, options=[*strategy, *options])
    assert ended.returncode == 0, ended.stdout + ended.stderr
    said = json.loads(ended.stdout)
    assert len(said["iterations"]) == 1
    first, second = said["ranks"]
    assert {rank["sums_checked"] for rank in said["ranks"]} == {2 * 161}
    assert second["staleness"] == []
    counts = dict(first["staleness"])
    assert 161 * 10 < sum(counts.values()) / (2 if "even" in options else 1) <= 161 * 2 * 12
    assert min(counts) >= 0
    if "--staleness" in options:
        assert max(counts) <= 1


@pytest.mark.process
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs memfd")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["resnet-50", "--pull", "layer"], "--pull: has no effect on async-ps"),
        (["resnet-50", "--no-barrier"], "--no-barrier: has no effect on async-ps"),
        (["resnet-50", "--sharding", "zero1"], "a sharded replay has none"),
    ],
)
def test_what_asynchronous_servers_cannot_do_is_refused(words, message):
    ended = launch(*words, ranks=1, options=["--strategy", "async-ps"])
    assert ended.returncode != 0 and message in ended.stderr, ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.process
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs memfd")
@pytest.mark.parametrize(
    ("trace", "strategy", "options"),
    [("resnet-50", "ring", []), ("netop-inception-v3", "ps", ["--servers", "2"])],
)
def test_real_ranks_take_as_long_as_simulated_where_compute_dominates(tmp_path, trace, strategy, options):
    words = [trace, "--shrink", "64", "--scale", "2", "--iterations", "5", "--output", str(tmp_path), "--json"]
    ended = launch(*words, ranks=2, options=["--no-prefix", "--strategy", strategy, "--transport", "tcp", *options])
    assert ended.returncode == 0, ended.stdout + ended.stderr
    said = json.loads(ended.stdout)
    simulated = paceline.simulate(
        shrunk(paceline.load_trace(trace), 64),
        None,
        strategy,
        workers=2,
        library="none",
        servers=2 if strategy == "ps" else None,
        compute_speedup=0.5,
    )
    times = [one["seconds"] for one in said["iterations"]]
    assert len(times) == 5
    assert np.median(times) == pytest.approx(simulated.iteration_s, rel=0.06)
    # Both checks, of every tensor.
    assert [rank["sums_checked"] for rank in said["ranks"]] == [2 * simulated.buckets] * 2
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["replay-rank-0.json", "replay-rank-1.json"]
    assert json.loads((tmp_path / "replay-rank-1.json").read_text()) == said["ranks"][1]


@pytest.mark.process
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs memfd")
@pytest.mark.parametrize(
    ("sharding", "more"),
    [("zero3", []), ("zero2", ["--accumulate", "2"]), ("hsdp:2", []), ("zero1:2", [])],
)
def test_real_ranks_gather_and_scatter_as_simulated(sharding, more):
    words = ["resnet-18", "--shrink", "64", "--scale", "30", "--iterations", "3", "--bucket-size", "100KB", "--json"]
    words += ["--sharding", sharding, *more]
    ended = launch(*words, ranks=4, options=["--no-prefix", "--strategy", "ring", "--transport", "tcp"])
    assert ended.returncode == 0, ended.stdout + ended.stderr
    said = json.loads(ended.stdout)
    options = {"accumulate": 2} if more else {}
    simulated = paceline.simulate(
        shrunk(paceline.load_trace("resnet-18"), 64),
        None,
        "ring",
        workers=4,
        library="none",
        sharding=sharding,
        bucket_size="100KB",
        compute_speedup=1 / 30,
        **options,
    )
    # Two ranks share a core here, and each exchange of a few KB wakes four of them: `paceline validate` measures.
    median = np.median([one["seconds"] for one in said["iterations"]])
    assert 0.98 * simulated.iteration_s < median < 1.6 * simulated.iteration_s
    # Both checks, of every exchange: all ranks have the same plan.
    [checked] = {rank["sums_checked"] for rank in said["ranks"]}
    assert checked >= 2 * simulated.sharded.units


@pytest.mark.process
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs memfd")
@pytest.mark.parametrize("words", [["--compression", "int8"], ["--compression", "topk:0.1", "--sync-every", "3"]])
def test_real_ranks_exchange_what_is_compressed(words):
    common = ["resnet-18", "--shrink", "64", "--scale", "30", "--iterations", "2", "--bucket-size", "100KB", "--json"]
    ended = launch(*common, *words, ranks=2, options=["--no-prefix", "--strategy", "ring", "--transport", "tcp"])
    assert ended.returncode == 0, ended.stdout + ended.stderr
    said = json.loads(ended.stdout)
    options = dict(zip((word.removeprefix("--").replace("-", "_") for word in words[::2]), words[1::2], strict=True))
    every = int(options.pop("sync_every", 1))
    simulated = paceline.simulate(
        shrunk(paceline.load_trace("resnet-18"), 64),
        None,
        "ring",
        workers=2,
        library="none",
        bucket_size="100KB",
        compute_speedup=1 / 30,
        sync_every=every,
        **options,
    )
    # An iteration of a replay is a round.
    median = np.median([one["seconds"] for one in said["iterations"]])
    assert 0.98 * simulated.iteration_s < median / every < 1.6 * simulated.iteration_s
    exchanges = 2 if options["compression"] == "int8" else 1
    assert [rank["sums_checked"] for rank in said["ranks"]] == [2 * exchanges * simulated.buckets] * 2


@pytest.mark.process
def test_what_people_read():
    ended = launch("netop-vgg-16", "--scale", "0.1", "--shrink", "1000", "--iterations", "3")
    assert ended.returncode == 0, ended.stderr
    said = re.search(r"netop-vgg-16, strategies chosen by size, 1 worker: ([\d.]+) ms/iteration\n", ended.stdout)
    assert said, ended.stdout
    assert float(said[1]) >= 19.7  # what it sleeps; on a busy machine it wakes up later
    scaled = "Scaled for a network 100x slower than the intended one: times x 0.1 and bytes / 1000"
    assert scaled in " ".join(ended.stdout.replace("[rank 0]", "").split())
    assert "Notes" not in ended.stdout
