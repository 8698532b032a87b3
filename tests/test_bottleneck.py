"""What bounds an iteration, and the sentence about it: no relief that is tried beats that of a named bottleneck."""

import json
import re

import cli
import paceline
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.catalog.channels import with_channel
from paceline.catalog.strategies import all_strategies, feasible
from paceline.errors import InvalidArgumentError
from paceline.forecast.kinds import Resource
from paceline.forecast.run import result_of
from paceline.forecast.scenario import Scenario
from paceline.forecast.verdict import advice, bottleneck
from paceline.forecast.verdict.bottleneck import MIN_GAIN, reliefs
from paceline.forecast.verdict.bottleneck import bottleneck as largest
from paceline.forecast.verdict.groups import grouped
from paceline.forecast.wording import bottleneck as words
from paceline.forecast.wording import verdict
from paceline.forecast.wording.bottleneck import path, relief


def bound(result, relieved):
    return words.bound(bottleneck.bound(result, relieved))


def effects(result, relieved):
    """Return the gain of each change that helps, by its name, in order."""
    pairs = words.effects(bottleneck.bound(result, relieved).tried)
    return {name: float(gain.removesuffix("x").replace(",", "")) for gain, name in pairs if gain.endswith("x")}


def advise(groups):
    return [verdict.answer(one, groups) for one in advice.advise(groups)]


def fact(answer, label):
    return next(one.sentence for one in answer.facts if one.label == label)


CLUSTERS = st.fixed_dictionaries(
    {
        "bandwidth": st.sampled_from(["1Gbps", "10Gbps", "100Gbps"]),
        "latency": st.sampled_from(["0s", "20us", "2ms"]),
        "message_overhead": st.sampled_from(["0s", "1ms"]),
        "gpus_per_node": st.sampled_from([1, 2, 4]),
        "intra_bandwidth": st.sampled_from(["2Gbps", "300Gbps"]),
    },
    optional={
        "host_bandwidth": st.sampled_from(["3Gbps", "50Gbps"]),
        "reduction_bandwidth": st.sampled_from(["5Gbps", "80Gbps"]),
        "racks": st.just({"nodes_per_rack": 2, "oversubscription": 8.0}),
        "stragglers": st.just([{"rank": 1, "factor": 1.5}]),
    },
)


@settings(max_examples=60, deadline=None)
@given(
    CLUSTERS,
    st.sampled_from([strategy.name for strategy in all_strategies()]),
    st.sampled_from(["resnet-18", "allreduce:10MB/4"]),
)
def test_a_named_bottleneck_is_what_is_worth_relieving(fields, strategy, trace):
    cluster = paceline.load_cluster(None, **fields)
    scenario = Scenario.of(paceline.load_trace(trace), cluster, strategy, 4, bucket_size="4MB")
    result = result_of(scenario)
    relieved = reliefs(scenario, result)
    known = bottleneck.bound(result, relieved)
    by_resource = {one.resource: one.gain for one in relieved}
    named = by_resource[largest(result)]
    assert relieved[0].resource is largest(result)
    if not known.is_known:
        assert max(by_resource.values()) <= MIN_GAIN
        assert words.bound(known) == path(result)
    elif known.is_largest:
        assert named * MIN_GAIN >= max(by_resource.values())
        assert words.bound(known) == path(result)
    else:
        assert max(by_resource.values()) > named
        assert words.bound(known).endswith(f" (largest share: {path(result)})")
    gains = list(effects(result, relieved).values())
    assert gains == sorted(gains, reverse=True)


def test_the_link_inside_the_node_is_relieved_by_name():
    """The sentence that once contradicted itself: bound inside the node, and the bandwidth between nodes doubled."""
    cluster = {"gpus_per_node": 8, "intra_bandwidth": "8Gbps", "bandwidth": "100Gbps"}
    scenario = Scenario.of(
        paceline.load_trace("vgg-16"), paceline.load_cluster(None, **cluster), "hierarchical", 16, bucket_size="25MB"
    )
    result = result_of(scenario)
    relieved = reliefs(scenario, result)
    assert bound(result, relieved).startswith("intra-node links, ")
    name, gain = next(iter(effects(result, relieved).items()))
    assert name == "2x intra-node bandwidth" and gain > 1.5


def test_parameter_servers_are_the_verdict_only_where_they_are_meant():
    trace, cluster = paceline.load_trace("resnet-18"), paceline.load_cluster(None)
    names = ["ring", "tree", "ps-multicast-aggregation"]
    scenarios = [Scenario.of(trace, cluster, name, 8) for name in names]
    results = [result_of(scenario) for scenario in scenarios]
    fastest = min(results, key=lambda result: result.iteration_s)
    [meant] = advise(grouped(scenarios, results))
    assert fact(meant, "Strategy").startswith(f"Strategy: {fastest.strategy} is fastest")
    [answer] = advise(grouped(scenarios, results, requested_extras=frozenset()))
    strategy = fact(answer, "Strategy")
    assert strategy.startswith("Strategy: ring is fastest")
    if fastest.servers:
        needs = "ps-multicast-aggregation, with 1 parameter server, on switches with SHARP and multicast"
        assert needs in fact(answer, "Would help")
        assert "without parameter servers, SHARP or multicast" in strategy


def test_bound_names_the_resource_with_the_largest_share():
    for strategy in feasible(all_strategies(), paceline.load_cluster("p3.16xlarge"))[0]:
        try:
            result = paceline.simulate("resnet-50", "p3.16xlarge", strategy.name, workers=16, bucket_size="25MB")
        except InvalidArgumentError:
            continue
        share = int(re.search(r", (\d+)% of the critical path", path(result))[1])
        assert share >= 100 / 6
        assert json.dumps(result.to_dict())


@pytest.mark.parametrize(("strategy", "is_limited"), [("ring", True), ("halving-doubling", False)])
def test_what_one_connection_carries_can_be_what_bounds(strategy, is_limited):
    cluster = with_channel(paceline.load_cluster(None, bandwidth="100Gbps"), "tcp")
    scenario = Scenario.of(paceline.load_trace("vgg-16"), cluster, strategy, 32, library="ddp")
    result = result_of(scenario)
    relieved = reliefs(scenario, result)
    carried = "the framework's connections (32 Gbps of 100 Gbps, TCP) (largest share: network"
    assert bound(result, relieved).startswith(carried) == is_limited
    assert any(relief(one) == "2x connections between nodes" for one in relieved) == is_limited
    # Inside a node there are none.
    alone = scenario.changed(cluster=paceline.load_cluster(cluster, gpus_per_node=32))
    assert not any("connections" in relief(one) for one in reliefs(alone, result_of(alone)))


@pytest.mark.parametrize(
    ("batch", "named", "first"),
    [
        (1, "network, ", "RDMA instead of TCP"),
        (2, "TCP between nodes largest share: compute, ", "RDMA instead of TCP"),
        (4, "compute, ", "2x faster compute"),
    ],
)
def test_tcp_is_relieved_where_twice_of_its_network_gains_nothing(batch, named, first):
    """Threads of NCCL's sockets limit: neither the rate, nor the library's connections."""
    words = ("simulate", "llama-3-8b", "--gpu", "l40s", "--gpus", 16, "--sharding", "zero3", "--strategy", "native")
    words += ("--batch", batch, "--checkpointing", "full" if batch > 1 else "none")
    answer = cli.facts(cli.printed(*words))
    assert answer["Bottleneck"].startswith(named)
    assert re.match(rf"[\d.]+x {first} ", answer["Would help"]) and "RDMA instead of TCP" in answer["Would help"]
    # What helps most stands first in both answers.
    [rows] = [one["explanation"]["changes"] for one in cli.answer(*words, "--explain")]
    assert [row["what"] for row in rows].count("RDMA instead of TCP") == 1
    assert (rows[0]["what"] == "RDMA instead of TCP") == (first == "RDMA instead of TCP")
    over_rdma = cli.facts(cli.printed(*words, "--channel", "rdma"))
    assert not any("RDMA" in over_rdma[label] for label in ("Bottleneck", "Would help"))


@pytest.mark.parametrize("workers", [1, 2])
def test_one_worker_is_bound_by_computation(workers):
    result = paceline.simulate("resnet-50", workers=workers, bandwidth="100Gbps")
    assert path(result).startswith("compute, ")
    assert path(result) == bound(result, [])


def test_bound_by_is_what_gains_most_when_relieved():
    """Half of the path is computation, and twice the bandwidth gains more than twice the computation."""
    scenario = Scenario.of(
        paceline.load_trace("resnet-50"),
        paceline.load_cluster(None, gpus_per_node=8, bandwidth="10Gbps"),
        "native",
        64,
        library="ddp",
    )
    result = result_of(scenario)
    relieved = reliefs(scenario, result)
    assert largest(result) is Resource.COMPUTE
    largest_share = "compute, 51% of the critical path (slowest GPU)"
    assert bound(result, relieved) == f"network bandwidth (largest share: {largest_share})"
    assert next(iter(effects(result, relieved).items())) == ("2x network bandwidth", 1.34)


def test_links_that_limit_together_are_relieved_together():
    """Inside and between nodes a ring takes as long, so that relieving one of them gains nothing."""
    cluster = paceline.load_cluster(None, gpus_per_node=4, bandwidth="10Gbps", intra_bandwidth="10Gbps", latency="0s")
    scenario = Scenario.of(paceline.load_trace("vgg-16"), cluster, "ring", 8, chunk="per-worker")
    result = result_of(scenario)
    relieved = reliefs(scenario, result)
    gains = {relief(one): one.gain for one in relieved}
    assert max(gains["2x network bandwidth"], gains["2x intra-node bandwidth"]) < 1.05
    assert gains["2x bandwidth inside and between nodes"] > 1.3
    assert bound(result, relieved).startswith("links inside and between nodes together (largest share: ")
    assert next(iter(effects(result, relieved))) == "2x bandwidth inside and between nodes"
    # Where one of them gains, or nothing is exposed, it is not asked.
    wide = Scenario.of(scenario.trace, paceline.load_cluster(cluster, intra_bandwidth="400Gbps"), "ring", 8)
    assert all("between nodes" not in relief(one) for one in reliefs(wide, result_of(wide)))


def test_the_cost_of_a_librarys_messages_is_relieved():
    """On 64 GPUs, a tree has so many messages that what DDP's cost is most of an iteration."""
    job = {"workers": 64, "gpu": "h100", "strategy": "tree"}
    result = paceline.simulate("bert-base", **job)
    assert result.iteration_s > 1.5 * paceline.simulate("bert-base", library="none", **job).iteration_s
    answer = cli.facts(cli.printed("simulate", "bert-base@h100", "--gpus", "64", "--strategy", "tree"))
    assert answer["Bottleneck"].startswith("latency")
    assert re.match(r"[\d.]+x 1/2 latency and per-message cost", answer["Would help"])
