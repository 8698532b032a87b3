"""`--strategy async-ps`: forecasts of workers that do not wait for each other."""

import json
from functools import partial

import cli
import paceline
import pytest
from paceline.catalog.strategies import all_strategies, find_strategy, registered_strategies

call = partial(cli.call, "simulate")


def forecast(workers, trace="resnet-18", **options):
    """Return the forecast of the bare schedule."""
    return paceline.simulate(trace, None, "async-ps", workers=workers, library="none", **options)


def refused(*words):
    return cli.refused("simulate", *words).removeprefix("paceline: error: ").rstrip()


def test_the_registry_has_it_and_all_stands_for_the_synchronous_ones():
    own = find_strategy("async-ps")
    assert own in registered_strategies()
    assert own not in all_strategies()
    assert {one.name for one in registered_strategies()} == {"async-ps"} | {one.name for one in all_strategies()}
    assert not own.is_synchronous
    assert own.collectives == ()
    assert "staleness" in own.knobs


@pytest.mark.parametrize(
    "options", [{}, {"servers": 3}, {"pull": "step"}, {"placement": "even", "servers": 2}], ids=str
)
def test_one_worker_is_that_of_ps(options):
    alone = forecast(1, **options)
    synchronous = paceline.simulate("resnet-18", None, "ps", workers=1, library="none", **options)
    assert alone.iteration_s == pytest.approx(synchronous.iteration_s)
    assert alone.asynchronous.max_staleness == 0


@pytest.mark.parametrize("distribution", ["round-robin", "block"])
def test_a_bound_of_0_has_the_time_of_ps(distribution):
    options = {"servers": 2, "distribution": distribution, "stragglers": "2:1.5"}
    bound = forecast(6, staleness=0, **options)
    barrier = paceline.simulate("resnet-18", None, "ps", workers=6, library="none", **options)
    assert bound.iteration_s == pytest.approx(barrier.iteration_s, rel=1e-3)
    assert 0 < bound.asynchronous.blocked_s < bound.iteration_s
    assert bound.asynchronous.max_staleness <= 5


def test_gradients_are_pushed_one_by_one_whatever_the_library_fuses():
    for library in ("horovod", "ddp"):
        alone = paceline.simulate("resnet-18", None, "async-ps", workers=2, library=library)
        assert alone.bucket_size is None
        assert alone.buckets == len(paceline.load_trace("resnet-18").workers[0].gradients)
        fused = paceline.simulate("resnet-18", None, "async-ps", workers=2, library=library, bucket_size="25MB")
        assert fused.buckets < alone.buckets


def test_throughput_is_that_of_the_servers_or_of_the_workers():
    slow, fast = forecast(16, bandwidth="5Gbps"), forecast(16, bandwidth="100Tbps")
    once = slow.gradient_bytes * 8 / 5e9
    assert slow.iteration_s == pytest.approx(16 * once, rel=0.05)
    assert slow.samples_per_s == pytest.approx(16 * slow.batch / slow.iteration_s)
    assert fast.iteration_s == pytest.approx(fast.compute_s, rel=1e-3)
    assert slow.iteration_s < paceline.simulate("resnet-18", None, "ps", workers=16, bandwidth="5Gbps").iteration_s


def test_a_slow_worker_holds_others_back_only_by_the_bound():
    free, bound = (forecast(4, bandwidth="10Tbps", stragglers="0:4", staleness=staleness) for staleness in ("none", 1))
    assert free.asynchronous.bound is None
    assert free.asynchronous.blocked_s == 0
    assert free.asynchronous.slowest_s == pytest.approx(4 * free.asynchronous.fastest_s, rel=0.02)
    assert free.asynchronous.max_staleness == 3 * 4  # Each of the others has made four iterations in one of it.
    assert bound.asynchronous.max_staleness <= 3 * 3
    assert bound.asynchronous.blocked_s == pytest.approx(3 / 4 * 3 / 4 * bound.iteration_s, rel=0.1)
    assert bound.iteration_s > 2.5 * free.iteration_s


def test_json_has_the_histogram_and_the_seed_decides():
    words = ("resnet-18", "--strategy", "async-ps", "--workers", 8, "--servers", 2, "--staleness", 3, "--json")
    first, second = call(*words), call(*words)
    assert first.stdout == second.stdout
    [run] = json.loads(first.stdout)
    own = run["asynchronous"]
    counts = dict(own["staleness"])
    total = sum(counts.values())
    assert own["bound"] == 3
    assert own["iterations"] >= 20
    assert max(counts) == own["max_staleness"] <= 7 * 7
    assert own["mean_staleness"] == pytest.approx(sum(it * count for it, count in counts.items()) / total)
    assert sum(count for it, count in counts.items() if it <= own["p90_staleness"]) >= 0.9 * total
    assert any("converge" in note for note in run["notes"])
    ring = call("resnet-18", "--strategy", "ring", "--workers", 2, "--json")
    assert "asynchronous" not in json.loads(ring.stdout)[0]


def test_the_answer_says_how_stale_gradients_are_and_who_waits():
    text = call("resnet-18", "--strategy", "async-ps", "--workers", 8, "--staleness", 2).stdout
    assert "Staleness    mean " in text
    assert "Blocked" in text
    assert "(at most 2 iterations ahead)" in text
    assert "may need more iterations to converge" in text
    free = call("resnet-18", "--strategy", "async-ps", "--workers", 8).stdout
    assert "Staleness" in free
    assert "Blocked" not in free
    table = call("resnet-18", "--strategy", "async-ps,ps", "--workers", "4,8").stdout
    assert "staleness" in table


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--strategy", "ring", "--staleness", 3], "--staleness: has no effect on ring"),
        (["--strategy", "async-ps", "--staleness", -1], "--staleness: must be"),
        (["--strategy", "async-ps", "--no-barrier"], "--no-barrier: async-ps workers never begin together"),
        (["--strategy", "async-ps", "--distribution", "block"], "--distribution: orders what several workers wait for"),
        (["--strategy", "async-ps", "--coordinator", "negotiate"], "--coordinator: agrees on what all ranks exchange"),
        (["--strategy", "async-ps", "--sharding", "zero3"], "async-ps"),
        (["--strategy", "async-ps", "--compression", "int8"], "async-ps"),
        (["--strategy", "async-ps", "--accumulate", 2], "async-ps"),
        (["--strategy", "async-ps", "--sync-every", 2], "async-ps"),
        (["--strategy", "async-ps", "--inside", "root", "--gpus-per-node", 2], "--inside: has no effect on async-ps"),
        (["--strategy", "async-ps-multicast"], "there is no async-ps-multicast: workers pull at different times"),
        (["--strategy", "async-ps-aggregation"], "there is no async-ps-aggregation: a switch that adds waits"),
    ],
    ids=str,
)
def test_what_it_cannot_do_is_refused_with_the_reason(words, reason):
    message = refused("resnet-18", "--workers", 4, *words)
    assert reason in message
    assert "\n  try: " in message


def test_a_collective_has_nothing_to_update():
    assert "async-ps has no sums" in refused("allreduce:1GB", "--workers", 4, "--strategy", "async-ps")
