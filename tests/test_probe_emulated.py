"""`paceline probe` and `paceline validate --here` on emulated clusters, whose rates are known."""

import json
import re
import sys

import paceline
import pytest
from emulate_workers.here import prepare, skip_where_forbidden
from paceline_lab import emulate

pytestmark = [pytest.mark.process, pytest.mark.timed]

COMMAND = [sys.executable, "-m", "paceline.cli"]
SLOWER = """
from pyroute2 import IPRoute
from pyroute2.netlink.rtnl import TC_H_ROOT
from paceline_lab.emulate import network, plan, shaping
with IPRoute() as links:
    card = network._index(links, plan.CARD)
    links.tc("del", index=card, parent=TC_H_ROOT)
    network.fill_port(links, card, shaping.shape(100e6))
"""


@pytest.fixture(autouse=True)
def possible(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def cluster():
    skip_where_forbidden()
    with emulate.cluster(workers=3, bandwidth_bps=200e6) as result:
        yield result


def ranks(cluster, *words, limit_s=100, **settings):
    """What rank 0 prints, and what it says meanwhile."""
    output = emulate.Collected()
    code = cluster.run([*COMMAND, *map(str, words)], output=output, limit_s=limit_s, **settings)
    assert code == 0, [output.stderr(rank) for rank in range(len(cluster.of_kind("worker")))]
    assert not any(output.stdout(rank) for rank in range(1, len(cluster.of_kind("worker"))))
    return output.stdout(0), output.stderr(0)


def undisturbed(cluster, measure, good, most=5):
    """What is measured, again unless it is good; skips if the network is as bad by the cluster's own check."""
    for turn in range(most):
        result = measure()
        if good(result):
            break
        if turn == most - 1 and not (fidelity := cluster.check(repeats=3)).good:
            pytest.skip(f"this machine is busy: {fidelity.verdict()}")
    return result


def near(rate, wanted):
    return abs(rate / wanted - 1) < 0.03


def close(said):
    return all(abs(row["error"]) < 0.08 for row in said["rows"])


def by_pattern(result):
    return {rate["pattern"]: rate["rate_bps"] for rate in result["rates"]}


def as_set(result):
    rates = by_pattern(result)
    return near(rates["ring"], 200e6) and rates["incast"] == pytest.approx(200e6, rel=0.15)


def test_the_rate_is_found(cluster, tmp_path):
    path = tmp_path / "cluster.json"
    words, progress = ["--quick", "--limit", "60", "--json", "-o", path], []

    def probe():
        out, err = ranks(cluster, "probe", *words)
        progress.append(err)
        return json.loads(out)

    result = undisturbed(cluster, probe, as_set)
    rates = by_pattern(result)
    assert set(rates) == {"ring", "one stream", "both ways", "incast", "1:N", "several connections"}
    assert as_set(result), rates
    assert {(pair["from"], pair["to"]) for pair in result["pairs"]} == {
        (f"worker{a}", f"worker{b}") for a in range(3) for b in range(3) if a != b
    }
    costs = {cost["what"]: cost["s"] for cost in result["costs"]}
    assert 5e-6 < costs["latency between hosts"] < 2e-3
    assert costs["cost of a message"] < 2e-3
    assert result["left_out"] == []
    assert "[1/9] rate between hosts" in progress[0]
    # What it writes is what `simulate` reads.
    simulated = paceline.simulate("allreduce:4MB", path, "ring", workers=3).iteration_s
    assert simulated == pytest.approx(4e6 * 8 * 2 * 2 / 3 / 200e6, rel=0.04)
    fields = json.loads(path.read_text())
    assert fields["gpus_per_node"] == 1
    assert "intra_bandwidth" not in fields
    assert "3 hosts (worker0, worker1 and worker2), 1 rank each; tcp, 1 connection" in fields["provenance"]


@pytest.mark.slow
def test_a_slow_card_is_named(tmp_path):
    with emulate.cluster(workers=3, bandwidth_bps=500e6) as result:
        shaped = result.popen("worker1", [sys.executable, "-c", SLOWER])
        assert shaped.wait(30) == 0
        slow = re.compile(r"host worker1 is slow: its NIC sends (9\d|10\d)(\.\d+)? Mbps \(others: [45]\d\d")

        def good(said):
            return slow.search(said) and said.count("is slow") == 1

        def probe():
            return " ".join(ranks(result, "probe", "--quick", "--limit", "60")[0].split())

        said = undisturbed(result, probe, good)
    assert good(said), said


def test_forecasts_are_compared_with_what_was_probed(cluster):
    words = [
        "--trace",
        "resnet-50",
        "--strategy",
        "ring,ps",
        "--quick",
        "--bucket-size",
        "1MB",
        "--json",
        "--network",
        "fluid",
    ]
    said = undisturbed(cluster, lambda: json.loads(ranks(cluster, "validate", "--here", *words)[0]), close)
    assert [row["strategy"] for row in said["rows"]] == ["ring", "ps"]
    assert close(said), (said["summary"], said["notes"], [row["measured_s"] for row in said["rows"]])
    assert said["skipped"] == []


@pytest.mark.slow
def test_several_ranks_a_host(tmp_path):
    path = tmp_path / "cluster.json"
    with emulate.cluster(workers=2, servers=2, bandwidth_bps=500e6) as result:
        settings = {"ranks_per_host": 2, "strategy": "ps", "servers": 2}
        rates = json.loads(ranks(result, "probe", "--quick", "--json", "-o", path, **settings)[0])["rates"]
        assert {"ring", "all ranks at once", "inside a host"} <= {rate["pattern"] for rate in rates}
        fields = json.loads(path.read_text())
        assert fields["gpus_per_node"] == 2
        assert {"latency", "intra_bandwidth", "intra_latency"} <= set(fields)
        words = ["--cluster", path, "--strategy", "ps,hierarchical", "--trace", "allreduce:8MB", "--json"]
        said = undisturbed(
            result, lambda: json.loads(ranks(result, "validate", "--here", *words, **settings)[0]), close
        )
    assert [(row["strategy"], row["servers"]) for row in said["rows"]] == [("ps", 2), ("hierarchical", 0)]
    assert close(said), (said["summary"], said["notes"], [row["measured_s"] for row in said["rows"]])
