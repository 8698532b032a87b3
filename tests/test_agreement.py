"""Simulated coordinators compared with real processes: messages, cycles, buckets, times."""

import statistics
from functools import partial

import pytest
from hvd_workers import cycles
from hvd_workers.launch import run
from paceline._core import simulate_agreement
from paceline.errors import InvalidArgumentError

pytestmark = pytest.mark.timed

KIB = 1 << 10
MS = 1_000_000
# Other work on the machine may delay a rank past a cycle; a real disagreement recurs every time.
on_a_busy_machine = pytest.mark.flaky(reruns=3)
POLICIES = ["negotiate", "global-sleep", "global-sleep:4", "nonblocking", "partitioned", "graph"]


def simulated(policy, ranks, gradients, steps, **how):
    scenario = {
        "ranks": ranks,
        "policy": policy,
        "steps": steps,
        "gradients": [(size, round(ready * 1e9)) for size, ready in gradients],
        "cycle_time": 5 * MS,
        "threshold": 128 << 20,
        "bucket": (1 << 20, 25 << 20),
        "capacity": 1024,
        "vote": 50_000,
        "tell": 200_000,
        "latency": 30_000,
        "bytes_per_s": 2e9,
        **how,
    }
    return simulate_agreement(**scenario)


@pytest.mark.process
@on_a_busy_machine
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_control_messages_cycles_and_fused_sizes_are_those_of_the_run(policy, ranks):
    """A gradient of another type opens a cycle; 30 ms later all others are ready, and travel in buckets of 100 KiB.

    Ranks do not begin a step at the same moment. A cycle's length makes up for it.
    """
    sizes = [4, 40, 40, 100, 4, 4]
    gradients = [(size * KIB, 0.01 if number else 0.0) for number, size in enumerate(sizes)]
    steps = 6
    forecast = simulated(
        policy,
        ranks,
        gradients,
        steps,
        cycle_time=30 * MS,
        threshold=100 * KIB,
        bucket=(100 * KIB, 100 * KIB),
        apart=1,
        waits=60 * MS,
    )
    env = {
        "PACELINE_COORDINATOR": policy,
        "HOROVOD_CYCLE_TIME": "30",
        "HOROVOD_FUSION_THRESHOLD": str(100 * KIB),
    }
    work = partial(cycles.steps, apart=1, waits=0.06, period=0.1)
    counts = [counted for counted, _ in run(ranks, work, gradients, steps, env=env)]
    buckets = [4 * KIB, 80 * KIB, 100 * KIB, 8 * KIB]
    for counted in counts:
        assert counted["negotiated"] - counted["plans"] == len(forecast.negotiated), (counts, forecast)
        assert counted["planned"] == len(forecast.planned)
        # Ranks request a plan when they reach it, and the first ones vote for it more than once.
        assert forecast.votes <= counted["votes"] <= forecast.votes + counted["plans"] * ranks, (counts, forecast)
        assert forecast.reports <= counted["reports"] <= forecast.reports + counted["plans"] * ranks
        every = {"global-sleep": 1, "global-sleep:4": 4}.get(policy)
        assert counted["sleeps"] == (counted["votes"] // every if every else 0)
        assert forecast.sleeps == (forecast.votes // every if every else 0)
    if policy == "graph":
        # The order of the first step becomes a plan when the second is over.
        assert (forecast.negotiated, forecast.planned) == (buckets * 2, buckets * (steps - 2))
        assert 4 <= forecast.votes <= 5
    else:
        assert forecast.negotiated == buckets * steps
        assert (forecast.votes, forecast.reports) == (2 * steps, 2)


@pytest.mark.process
@on_a_busy_machine
@pytest.mark.parametrize("policy", POLICIES)
def test_times_are_in_proportion(policy):
    """Gradients that arrive one after the other: steps are longer by as much as the simulation says."""
    ratios = []
    for spread in (0.02, 0.06, 0.12):
        gradients = [(64 * KIB, spread * part) for part in (0.25, 0.5, 0.75, 1.0)]
        forecast = simulated(policy, 2, gradients, 8)
        env = {"PACELINE_COORDINATOR": policy, "HOROVOD_CYCLE_TIME": "5"}
        _, took = run(2, cycles.steps, gradients, 8, env=env)[0]
        ratios.append(statistics.median(took[2:]) / (statistics.median(forecast.steps[2:]) * 1e-9))
    assert max(ratios) / min(ratios) < 1.5, ratios


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_scenario_gives_the_same_answer(policy):
    gradients = [(KIB * (1 + number % 7), 0.0003 * number) for number in range(40)]
    first = simulated(policy, 5, gradients, 4)
    assert first == simulated(policy, 5, gradients, 4)
    # Every gradient is summed once per step, in whichever bucket.
    assert sum(first.negotiated) + sum(first.planned) == 4 * sum(size for size, _ in gradients)


def test_a_rarer_common_sleep_is_agreed_on_in_fewer_votes():
    gradients = [(KIB, 0.004 * number) for number in range(12)]
    every = {cycles: simulated(f"gs:{cycles}", 3, gradients, 5) for cycles in (1, 2, 5, 10_000)}
    assert [result.sleeps for result in every.values()] == [result.votes // cycles for cycles, result in every.items()]
    assert every[10_000] == simulated("negotiate", 3, gradients, 5)


def test_a_scenario_that_cannot_be_is_refused():
    with pytest.raises(InvalidArgumentError, match="policy: 'grpah' is unknown"):
        simulated("grpah", 2, [(4, 0.0)], 1)
    with pytest.raises(InvalidArgumentError, match="1 to 64 ranks"):
        simulated("graph", 0, [(4, 0.0)], 1)
