"""Networks of several switches from Python and the command line: fields, `--degrade`, names of links, advice."""

import json

import cli
import paceline
import pytest
from cli import output as _run

LEAVES = {"kind": "leaf-spine", "nodes_per_leaf": 4, "spines": 1, "oversubscription": 8.0}


def test_the_busiest_links_are_named() -> None:
    cluster = paceline.load_cluster(fabric=LEAVES)
    result = paceline.simulate("allreduce:10MB", cluster, strategy="ring", workers=16, network="fluid")
    assert max(result.links, key=lambda link: link.busiest_s).kind == "leaf-spine link"
    assert "leaf-spine link" in [part.part for part in result.critical_path]
    # The uplinks have half the rate of a NIC.
    flat = paceline.simulate("allreduce:10MB", strategy="ring", workers=16, network="fluid")
    assert result.iteration_s / flat.iteration_s == pytest.approx(2, rel=0.05)


def test_slow_links_are_given_by_name() -> None:
    words = ["simulate", "allreduce:10MB", "--workers", "8", "--strategy", "ring", "--json"]
    whole, slow = (json.loads(_run(*words, *more))[0]["iteration_s"] for more in ([], ["--degrade", "node3:0.5"]))
    assert slow / whole == pytest.approx(2, rel=0.15)
    refused = cli.output(*words, "--degrade", "leaf0-spine1:0.5", code=2)
    assert "cluster 'flat' has no link 'leaf0-spine1' with 8 workers" in refused
    assert "--degrade" in cli.call(*words, "--degrade", "node3").output


@pytest.mark.parametrize(
    "name", ["fat-tree-k16", "h100-rails", "leaf-spine-25g", "slingshot-dragonfly", "tpu-v4-torus"]
)
def test_built_in_fabrics_are_used_and_name_their_links(name: str) -> None:
    assert "nodeN" in _run("clusters", name)
    result = paceline.simulate("allreduce:1MB", name, strategy="halving-doubling", workers=64)
    assert result.iteration_s > 0


def test_sums_are_made_in_the_switches_of_a_fabric() -> None:
    able = {"multicast": False, "aggregation": True}
    fabrics = (LEAVES, {"kind": "fat-tree", "radix": 8, "oversubscription": 1.0})
    for fabric in fabrics:
        cluster = paceline.load_cluster(fabric=fabric, switch=able)
        result = paceline.simulate("allreduce:100MB", cluster, strategy="sharp", workers=16, detail=True)
        used = [one.name for one in result.busy or () if "-" in one.name and one.busy_s > 0]
        assert (
            used and result.iteration_s < 0.75 * paceline.simulate("allreduce:100MB", cluster, workers=16).iteration_s
        )
    with pytest.raises(paceline.InvalidArgumentError, match=r"ps-aggregation adds up in one switch, .*; use sharp"):
        paceline.simulate("allreduce:1MB", cluster, strategy="ps-aggregation", workers=4, servers=1)
    with pytest.raises(paceline.InvalidArgumentError, match="sharp needs aggregation in the switch"):
        paceline.simulate("allreduce:1MB", paceline.load_cluster(fabric=LEAVES), strategy="sharp", workers=4)
    for fabric, switch, message in (
        (
            fabrics[1],
            {"multicast": True},
            "multicast is modeled in one switch, racks and leaf-spine fabrics, not in fat-tree",
        ),
        ({"kind": "torus", "dimensions": [4, 4]}, able, r"aggregation is modeled in .* and fat trees, not in torus"),
    ):
        with pytest.raises(paceline.InvalidArgumentError, match=message):
            paceline.load_cluster(fabric=fabric, switch=switch)


def test_hsdp_sums_between_nodes_in_the_switches() -> None:
    words = ["simulate", "llama-3-8b", "--gpu", "h100", "--gpus", "64", "--sharding", "hsdp", "--cluster", "h100-pod"]
    native, sharp = (json.loads(_run(*words, "--strategy", one, "--json"))[0] for one in ("native", "sharp"))
    assert sharp["sharded"]["sharding"] == native["sharded"]["sharding"] == "hsdp:8"
    # Half as much passes a NIC.
    assert native["iteration_s"] * 0.9 < sharp["iteration_s"] < native["iteration_s"]
    for fabric in (LEAVES, {"kind": "fat-tree", "radix": 4, "oversubscription": 1.0}):
        cluster = paceline.load_cluster(
            fabric=fabric, gpus_per_node=4, intra_bandwidth="400Gbps", switch={"multicast": False, "aggregation": True}
        )
        for sharding in ("hsdp", "hsdp:8", "hsdp:2"):
            result = paceline.simulate("gpt2-small", cluster, "sharp", workers=32, sharding=sharding)
            # Of 8 nodes in 2 leaves, a ring passes the slow uplinks 2(N-1)/N times, switches once.
            ring = paceline.simulate("gpt2-small", cluster, "ring", workers=32, sharding=sharding)
            assert 0 < result.iteration_s < ring.iteration_s * 1.05
    with pytest.raises(
        paceline.InvalidArgumentError,
        match=r"try: strategy='ring', halving-doubling, hierarchical or native, or sharding='hsdp'",
    ):
        paceline.simulate("gpt2-small", cluster, "sharp", workers=32, sharding="zero3")


def test_ranks_on_one_node_of_a_fabric_have_no_link_between_nodes_to_relieve() -> None:
    words = ("simulate", "gpt2-small@h100", "--workers", "8", "--gpus-per-node", "8", "--cluster", "fat-tree-k16")
    changes = cli.facts(cli.printed(*words, "--strategy", "native"))["Would help"]
    assert "2x intra-node bandwidth" in changes and "between" not in changes


def test_a_named_schedule_on_gpus_is_not_an_algorithm_of_nccl_and_the_verdict_says_so() -> None:
    for strategy in ("tree", "ring", "halving-doubling"):
        notes = cli.notes(_run("simulate", "gpt2-xl@h100", "--workers", "8", "--strategy", strategy))
        bare = f"{strategy} is a bare schedule: messages alone, without NCCL's channels and kernels; native is NCCL"
        assert bare in notes
    assert "bare schedule" not in _run("simulate", "gpt2-xl@h100", "--workers", "8", "--strategy", "native")
    assert "bare schedule" not in _run("simulate", "resnet-50", "--workers", "8", "--strategy", "ring")
