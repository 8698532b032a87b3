"""Networks of several switches from Python and the command line: fields, `--degrade`, names of links, advice."""

import json

import paceline
import pytest
from click.testing import CliRunner
from paceline.cli.main import main

LEAVES = {"kind": "leaf-spine", "nodes_per_leaf": 4, "spines": 1, "oversubscription": 8.0}


def _run(*words: str) -> str:
    result = CliRunner().invoke(main, [*words])
    assert result.exit_code == 0, result.output
    return result.output


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
    refused = CliRunner().invoke(main, [*words, "--degrade", "leaf0-spine1:0.5"])
    assert refused.exit_code == 2
    assert "no link 'leaf0-spine1' with 8 workers; it has node0 to node7" in refused.output
    assert "--degrade" in CliRunner().invoke(main, [*words, "--degrade", "node3"]).output


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
        found = paceline.simulate("allreduce:100MB", cluster, strategy="sharp", workers=16, detail=True)
        used = [one.name for one in found.busy or () if "-" in one.name and one.busy_s > 0]
        assert used and found.iteration_s < 0.75 * paceline.simulate("allreduce:100MB", cluster, workers=16).iteration_s
    with pytest.raises(paceline.InvalidArgumentError, match=r"ps-aggregation adds up in one switch, .*; use sharp"):
        paceline.simulate("allreduce:1MB", cluster, strategy="ps-aggregation", workers=4, servers=1)
    with pytest.raises(paceline.InvalidArgumentError, match="sharp needs aggregation in the switch"):
        paceline.simulate("allreduce:1MB", paceline.load_cluster(fabric=LEAVES), strategy="sharp", workers=4)
    for fabric, switch, message in (
        (
            fabrics[1],
            {"multicast": True},
            "multicast is modelled in one switch, racks and leaf-spine fabrics, not in fat-tree",
        ),
        ({"kind": "torus", "dimensions": [4, 4]}, able, r"aggregation is modelled in .* and fat trees, not in torus"),
    ):
        with pytest.raises(paceline.InvalidArgumentError, match=message):
            paceline.load_cluster(fabric=fabric, switch=switch)
