"""Laws of slow links: continuous, monotone where routes adapt, and without effect where all of a link is left."""

import itertools
from functools import partial

import cli
import paceline
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.forecast.jobs import model, spec

SHAPES = {
    "leaf-spine": ({"kind": "leaf-spine", "nodes_per_leaf": 4, "spines": 4}, ("leaf0-spine1", "spine1", "leaf1")),
    "oversubscribed": (
        {"kind": "leaf-spine", "nodes_per_leaf": 4, "spines": 2, "oversubscription": 2.0},
        ("leaf1-spine0", "spine0"),
    ),
    "fat-tree": ({"kind": "fat-tree", "radix": 4}, ("edge0-agg1", "agg0-core1", "core0", "agg1")),
    "rails": ({"kind": "rails", "nodes_per_leaf": 2, "spines": 2}, ("leaf0-spine1", "spine0")),
}
BARE = ("ring", "tree", "halving-doubling", "recursive-doubling", "hierarchical", "native")
GPUS = {"gpu": "H100", "gpus_per_node": 8, "intra_bandwidth": "2960Gbps", "bandwidth": "376Gbps", "latency": "2.54us"}
ROUNDING = 1e-6
LEFT = (1.0, 0.999, 0.97, 0.8, 0.71, 0.5, 0.3, 0.11, 0.02)


def fields(shape, routing="adaptive"):
    inside = {"gpus_per_node": 4, "intra_bandwidth": "400Gbps"} if shape == "rails" else {}
    return {**inside, "fabric": {**SHAPES[shape][0], "routing": routing}}


def seconds(cluster, link=None, left=1.0, trace="allreduce:10MB", workers=16, **options):
    slow = {} if link is None else {"degraded": [{"link": link, "factor": left}]}
    return paceline.simulate(trace, paceline.load_cluster(**cluster, **slow), workers=workers, **options).iteration_s


def check_continuous_and_monotone(time, left):
    """One percent less costs between nothing and one percent, wherever it is; less costs no less."""
    healthy = time(1.0)
    assert healthy == pytest.approx(time(None), rel=1e-12)
    earlier = (1.0, healthy)
    for share in left:
        here, less = time(share), time(0.99 * share)
        assert here * (1 - ROUNDING) <= less <= here / 0.99 * (1 + ROUNDING), share
        if share <= earlier[0]:
            assert here >= earlier[1] * (1 - ROUNDING)
            assert here <= earlier[1] * earlier[0] / share * (1 + ROUNDING)
            earlier = (share, here)


@pytest.mark.parametrize(
    ("shape", "strategy", "trace"),
    [
        *((shape, strategy, "allreduce:10MB") for shape, strategy in itertools.product(SHAPES, BARE)),
        *(
            (shape, strategy, "resnet-50")
            for shape, strategy in itertools.product(SHAPES, ("native", "halving-doubling"))
        ),
    ],
)
def test_links_between_switches_are_continuous_and_monotone(shape, strategy, trace):
    link = SHAPES[shape][1][0]
    cluster = fields(shape)

    def time(left):
        return seconds(cluster, None if left is None else link, left, trace, strategy=strategy)

    check_continuous_and_monotone(time, LEFT[::2])
    assert time(0.0) >= time(None) * (1 - ROUNDING)


QUESTIONS = st.fixed_dictionaries(
    {
        "shape": st.sampled_from(sorted(SHAPES)),
        "routing": st.sampled_from(["adaptive", "ecmp"]),
        "which": st.integers(0, 3),
        "left": st.floats(0.02, 1.0),
        "options": st.fixed_dictionaries(
            {
                "strategy": st.sampled_from(BARE),
                "network": st.sampled_from(["fifo", "fluid"]),
                "workers": st.integers(5, 16),
                "trace": st.just("allreduce:3MB"),
            }
        ),
    }
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(QUESTIONS)
def test_slow_links_are_continuous_for_all_routes_and_networks(question):
    shape, routing, left, options = (question[name] for name in ("shape", "routing", "left", "options"))
    links = (*SHAPES[shape][1], "node0")
    cluster, link = fields(shape, routing), links[question["which"] % len(links)]
    try:
        healthy, here = seconds(cluster, **options), seconds(cluster, link, left, **options)
    except paceline.InvalidArgumentError as error:
        assert "no link" in str(error)  # So few nodes have no such switch.
        return
    less = seconds(cluster, link, 0.99 * left, **options)
    assert healthy * (1 - ROUNDING) <= here <= healthy / left * (1 + ROUNDING)
    assert here * (1 - ROUNDING) <= less <= here / 0.99 * (1 + ROUNDING)
    assert seconds(cluster, link, 1.0, **options) == healthy
    if routing == "adaptive" and link != "node0" and not link.startswith(("leaf1", "agg1")):
        assert seconds(cluster, link, 0.0, **options) >= healthy * (1 - ROUNDING)


@pytest.mark.parametrize("sharding", ["none", "zero1", "zero2", "zero3", "hsdp"])
@pytest.mark.parametrize("strategy", ["native", "ring"])
@pytest.mark.parametrize("kind", ["rails", "leaf-spine"])
def test_training_on_gpus_keeps_the_laws(sharding, strategy, kind):
    cluster = {**GPUS, "fabric": {"kind": kind, "nodes_per_leaf": 2, "spines": 2, "routing": "adaptive"}}

    def time(left):
        slow = None if left is None else "leaf0-spine1"
        return seconds(cluster, slow, left, "gpt2-small@h100", workers=32, strategy=strategy, sharding=sharding)

    check_continuous_and_monotone(time, (1.0, 0.6, 0.05))
    assert time(0.0) >= time(None) * (1 - ROUNDING)


@pytest.mark.parametrize("sharding", ["none", "zero3", "hsdp"])
@pytest.mark.parametrize("link", ["leaf0-spine1", "spine0", "leaf0", "node3", "worker3"])
def test_nccl_on_rails_is_continuous_with_the_calibrated_model(sharding, link):
    fabric = paceline.load_cluster("h100-rails").fabric

    def time(left):
        slow = [] if left is None else [{"link": link, "factor": left}]
        degraded = paceline.load_cluster("h100-rails", degraded=slow)
        return paceline.simulate("llama-3-8b@h100", degraded, "native", workers=512, sharding=sharding).iteration_s

    assert fabric.routing == "adaptive"
    check_continuous_and_monotone(time, (1.0, 0.97, 0.5, 0.1, 0.01, 0.001))


@pytest.mark.slow
def test_a_link_among_many_costs_nothing_and_all_of_them_do():
    model = ("simulate", "llama-3-8b", "--gpu", "h100", "--cluster", "h100-rails")
    result = partial(cli.printed, *model, "--strategy", "native", "--sharding", "zero3", "--gpus")
    healthy = cli.facts(result(64))
    assert "376 Gbps per GPU" in healthy["Setup"] and "bps per node" not in healthy["Setup"]
    assert "Slow links" not in healthy
    spread = cli.facts(result(64, "--degrade", "leaf0-spine1:0"))
    assert spread["Slow links"] == "leaf0-spine1 removed: no cost (adaptive routing uses the other links)"
    # Nodes of other leaves, which fewer GPUs would not have.
    assert "longer iterations" in cli.facts(result(384, "--degrade", "leaf0:0.01"))["Slow links"]
    port = cli.notes(result(64, "--degrade", "worker3:0.5"))
    assert any("removed NIC leaves 7/8 of its node's rate, faster" in note for note in port)


def test_where_routes_are_hashed_removing_can_help_and_the_verdict_says_why():
    words = ["simulate", "resnet-50", "--workers", "16", "--strategy", "ring", "--cluster", "fat-tree-k16"]
    for left in ("0.5", "0"):
        notes = cli.notes(cli.printed(*words, "--degrade", f"edge0-agg1:{left}"))
        assert "Routes are hashed (ecmp) and do not avoid a slow link, only a removed one" in notes
        assert "Removing a link chooses routes anew, so iterations may become shorter" in notes


@pytest.mark.parametrize("shape", ["leaf-spine", "fat-tree"])
@pytest.mark.parametrize("routing", ["adaptive", "ecmp"])
def test_a_job_on_a_shared_network_keeps_the_laws(shape, routing):
    job = {"trace": "alexnet", "workers": 12, "strategy": "halving-doubling"}

    def time(left):
        slow = {} if left is None else {"degraded": [{"link": SHAPES[shape][1][0], "factor": left}]}
        mix = spec.mix({"bandwidth": "25Gbps", "iterations": 2, **fields(shape, routing), **slow, "job": [job]}, "jobs")
        return model.simulate_jobs(mix).jobs[0].iteration_s

    check_continuous_and_monotone(time, (1.0, 0.5, 0.06))


def test_several_slow_links_cost_what_the_worst_does_or_more():
    def time(*slow):
        degraded = [{"link": link, "factor": left} for link, left in slow]
        cluster = paceline.load_cluster(**fields("leaf-spine"), degraded=degraded)
        return paceline.simulate("allreduce:10MB", cluster, "recursive-doubling", workers=16).iteration_s

    one, other = ("leaf0-spine1", 0.5), ("leaf0-spine2", 0.3)
    assert time(one, other) >= max(time(one), time(other))
    assert time(one, ("node1", 0.2)) >= max(time(one), time(("node1", 0.2)))
