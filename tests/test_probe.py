"""`paceline probe` and `paceline validate --here`, on one host."""

import json
import os
import sys
from dataclasses import replace
from functools import partial

import cli
import paceline
import pytest
from job_workers.launch import Ranks, clean, end, run
from paceline import cluster_names
from paceline.catalog.strategies import find_strategy
from paceline.job.settings import Settings
from paceline.probe import patterns
from paceline.probe.compression import fit
from paceline.probe.layout import Host, Layout
from paceline.probe.measure import QUICK
from paceline.probe.result import Sample, slope
from paceline.probe.slow import slow
from paceline_lab.validate.cells import Cell
from paceline_lab.validate.here import why_not

pytestmark = pytest.mark.timed

NO_RANK = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK"))
alone = partial(cli.refused, **NO_RANK)

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs memfd")
NO_STRATEGY = {"PACELINE_STRATEGY": ""}


def launch(ranks, *words, options=(), limit_s=100):
    command = ("-np", ranks, "--no-prefix", *options, "--", *cli.PACELINE, *words)
    return cli.launched(*command, timeout=limit_s)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["probe"], "probe: this process was not started as a rank"),
        (
            ["probe", "-o", "c.json"],
            "try: paceline run --hosts node1:1,node2:1 -- paceline probe -o cluster.json (or -np 4",
        ),
        (["probe", "--most", "1KB"], "--most: must be 64KiB-4GiB, not '1KB'"),
        (["probe", "--most", "12"], "--most: '12' has no unit"),
        (["probe", "--repeats", "0"], "--repeats: must be 1-1000, not 0"),
        (["probe", "--limit", "none"], "--limit: must be a number above 0, not 'none'"),
        (["probe", "--limit", "4000"], "must be at most 3600 s, not '4000'"),
        (["validate", "--here"], "validate: this process was not started as a rank"),
        (
            ["validate", "--here", "--workers", "2"],
            "--workers has no effect with --here: the workers are the job's ranks",
        ),
        (["validate", "--here", "--latency", "1us"], "--latency has no effect with --here: the cluster file sets it"),
        (["validate", "--here", "--full"], "--full has no effect with --here"),
        (["validate", "--cluster", "flat"], "--cluster needs --here"),
        (["validate", "--here", "--json", "--csv"], "--json and --csv cannot be combined"),
    ],
)
def test_mistakes_are_named(words, message):
    assert message in alone(*words)


def test_a_job_of_one_rank_is_too_small():
    assert "this job has one rank" in alone("probe", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")


class Job:
    """Ranks on hosts, by name and number."""

    def __init__(self, *hosts, servers=()):
        peers = [{"rank": n, "host": name, "server": None} for n, (name, _) in enumerate(hosts)]
        peers += [{"rank": len(hosts) + n, "host": f"h{host}", "server": n} for n, host in enumerate(servers)]
        self.size = len(hosts)
        self._status = {
            "hosts": [number for _, number in hosts] + list(servers),
            "peers": peers,
            "transports": ["self", *["tcp"] * (len(peers) - 1)],
        }

    def status(self):
        return self._status


def test_hosts_are_found():
    layout = Layout.of(Job(("a", 0), ("b", 2), ("a", 0), ("b", 2), servers=(5, 0)))
    assert layout.hosts == (Host("a", (0, 2)), Host("b", (1, 3)))
    assert layout.ranks_per_host == 2
    assert layout.servers == (2, 0)
    assert layout.describe() == "2 hosts (a and b), 2 ranks each"
    assert [host.name for host in Layout.of(Job(("a", 0), ("a", 1))).hosts] == ["a #1", "a #2"]


def test_hosts_with_different_numbers_of_ranks_are_refused():
    with pytest.raises(
        paceline.InvalidArgumentError,
        match=r"hosts have different numbers of ranks \(a 2, b 1\), and a cluster file has one for all",
    ):
        Layout.of(Job(("a", 0), ("b", 2), ("a", 0)))


@pytest.mark.parametrize("count", [2, 3, 4, 9, 10, 33])
def test_each_host_meets_others(count):
    hosts = [Host(str(number), (2 * number, 2 * number + 1)) for number in range(count)]
    pairs = [pair for distance in (1, *patterns.distances(count)) for pair in patterns.shifted(hosts, distance)]
    assert len(set(pairs)) == len(pairs)
    assert len(pairs) == count * (count - 1) if count <= patterns.ALL_PAIRS else len(pairs) >= 2 * count
    host_of = [rank // 2 for rank in range(2 * count)]
    assert patterns.most_through_one(patterns.shifted(hosts, 1, 2), host_of) == 2
    assert patterns.most_through_one(patterns.incast(hosts), host_of) == count - 1
    assert patterns.most_through_one(patterns.fan_out(hosts), host_of) == count - 1
    assert len(patterns.alone(hosts)) == min(count, 8)
    assert patterns.inside(hosts[1]) == [(2, 3), (3, 2)]


def rates(hosts, slow_out=(), slow_in=()):
    names = "abcdefghij"[:hosts]
    slowed = {(a, b) for a in names for b in names if a in slow_out or b in slow_in}
    return {(a, b): 1e8 if (a, b) in slowed else 5e8 for a in names for b in names if a != b}


def test_slow_hosts_are_named():
    assert slow(rates(4)) == []
    assert slow({}) == []
    (said,) = slow(rates(4, "b", "b"))
    assert said == (
        "host b is slow: its NIC sends 100 Mbps (others: 500 Mbps) and receives 100 Mbps (others: 500 Mbps)"
    )
    (said,) = slow(rates(3, "c"))
    assert said == "host c is slow: its NIC sends 100 Mbps (others: 500 Mbps)"
    # Two hosts: nobody can tell whose link it is.
    (said,) = slow({("a", "b"): 1e8, ("b", "a"): 5e8})
    assert said.startswith("from host a to host b there are 100 Mbps, elsewhere up to 500 Mbps: what a sends or")


def test_what_a_message_costs_is_a_slope():
    assert slope([64, 256, 1024], [0.1 + 3e-6 * count for count in (64, 256, 1024)]) == pytest.approx(3e-6)
    assert Sample((1.0, 4.0, 2.0)).median == 2
    assert Sample((1.0, 4.0, 2.0)).spread == 0.75
    assert Sample((-2.0, -1.0, -3.0)).spread == 0.5


def test_sizes_keep_to_the_budget():
    assert QUICK.size(8e9, 8e9) == QUICK.most_bytes
    assert QUICK.size(8e6, 8e6) == round(1e6 * QUICK.transfer_s)
    assert QUICK.size(8e6, 8e6, flows=4) == round(1e6 * QUICK.transfer_s) // 4
    # A card that is a hundred times slower would take ten seconds for the same.
    assert QUICK.size(8e6, 8e4) == 10_000
    assert QUICK.size(1.0, 1.0) == 1


CELL = Cell("t", find_strategy("ps"), 4, 1, 1e9, 1, 1, 2)


@pytest.mark.parametrize(
    ("cell", "processes", "servers", "reason"),
    [
        (CELL, 0, (), None),
        (replace(CELL, servers=2), 0, (), "a way that no cluster file can express"),
        (replace(CELL, servers=2), 2, (0, 1), None),
        (replace(CELL, servers=2), 2, (2, 3), None),
        (replace(CELL, servers=2), 2, (2, 2), "a way that no cluster file can express"),
        (replace(CELL, strategy=find_strategy("ps-aggregation")), 1, (0,), "acts as the switch has a NIC"),
        (replace(CELL, strategy=find_strategy("ring-multicast"), servers=0), 0, (), "as unicasts: give it --multicast"),
        (replace(CELL, strategy=find_strategy("ring"), servers=0), 0, (), None),
    ],
)
def test_what_is_not_as_simulated_is_left_out(cell, processes, servers, reason):
    layout = Layout((Host("a", (0, 1)), Host("b", (2, 3))), ("tcp",), servers)
    said = why_not(cell, Settings(strategy="ps", server_processes=processes), layout)
    assert (said is None) if reason is None else reason in said


@pytest.mark.process
@LINUX
def test_inside_of_a_host(tmp_path):
    path = tmp_path / "cluster.json"
    ended = launch(2, "probe", "--quick", "--most", "8MiB", "-o", path, "--json")
    assert ended.returncode == 0, ended.stderr
    assert "[1/4] inside a host" in ended.stderr
    answer = json.loads(ended.stdout)
    assert [len(host["ranks"]) for host in answer["hosts"]] == [2]
    assert {rate["pattern"] for rate in answer["rates"]} == {"inside a host"}
    assert answer["rates"][0]["rate_bps"] > 1e8
    assert answer["rates"][0]["repeats"] == QUICK.repeats
    costs = {cost["what"]: cost["s"] for cost in answer["costs"]}
    assert 1e-7 < costs["latency inside a host"] < 0.1
    assert set(costs) == {"latency inside a host", "cost of a message"}
    assert len(answer["machines"]) == 2
    assert all(0 <= one["taken_share"] <= 1 and one["wake_ups"] == 100 for one in answer["machines"])
    fields = json.loads(path.read_text())
    assert fields == answer["cluster"]
    assert fields["gpus_per_node"] == 2
    assert "no network was measured" in fields["provenance"] and fields["bandwidth_measured"] is False
    assert "latency" not in fields  # between hosts: it was not measured
    assert paceline.simulate("allreduce:1MB", path, "ring", workers=2).iteration_s > 0
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.process
@LINUX
def test_what_people_read(tmp_path):
    ended = launch(2, "probe", "--quick", "--limit", "0.001", "--most", "1MiB")
    assert ended.returncode == 0, ended.stderr
    assert ", 2 ranks; shm\n" in ended.stdout
    assert "1 host: no network was measured" in ended.stdout
    assert "- No network was measured, because all ranks are on one host" in ended.stdout
    assert "Not measured, for lack of time: machines" in ended.stdout


@pytest.mark.process
@LINUX
@pytest.mark.parametrize("command", [["probe", "--quick", "-o"], ["validate", "--here", "--plot"]])
def test_a_file_that_cannot_be_written_is_named_once_and_before_anything_is_measured(tmp_path, command):
    ended = launch(2, *command, tmp_path / "nowhere" / "plot.png")
    assert ended.returncode == 1
    assert ended.stderr.count("nowhere does not exist") == 1
    assert "Traceback" not in ended.stderr
    assert "[1/" not in ended.stderr


@pytest.mark.slow
@LINUX
def test_under_torchrun(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "cluster.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "paceline.cli", "probe"]
    ended = cli.ended(*command, "--quick", "-o", path, env=clean(), timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(path.read_text())["gpus_per_node"] == 2


@pytest.mark.process
@LINUX
def test_a_killed_rank_is_named(tmp_path):
    with Ranks(tmp_path, 3, "command", "probe", "-o", tmp_path / "c.json", env=NO_STRATEGY) as ranks:
        ranks.wait_for(0, "[1/", kind="err")
        end(ranks.processes[1])
        outcomes = ranks.outcomes(60)
    assert [outcomes[rank].code for rank in range(3)] == [1, -9, 1]
    for rank in (0, 2):
        last, remedy = outcomes[rank].err.splitlines()[-2:]
        assert last.startswith("paceline: error: ") and remedy.startswith("  try: ")
        assert f"rank 1 (host {os.uname().nodename}, pid {ranks.pid(1)}) died" in last
        assert "Traceback" not in outcomes[rank].err
    assert not (tmp_path / "c.json").exists()


@pytest.mark.process
@LINUX
def test_forecasts_are_compared_here():
    """Computation hides the exchange, which is the same in both; servers are roles of the ranks."""
    words = [
        "validate",
        "--here",
        "--quick",
        "--trace",
        "netop-inception-v3",
        "--shrink",
        "256",
        "--scale",
        "0.3",
        "--json",
    ]
    ended = launch(2, *words, "--strategy", "ps,ring,ring-multicast")
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert [row["strategy"] for row in said["rows"]] == ["ps", "ring"]
    assert [row["servers"] for row in said["rows"]] == [1, 0]
    assert all(row["ranks_per_host"] == 2 and row["repeats"] + row["disturbed"] >= 3 for row in said["rows"])
    # What others do on a busy machine makes it longer, not shorter.
    assert all(row["error"] < 0.08 for row in said["rows"]), said["rows"]
    assert all(row["error"] > -0.08 for row in said["rows"] if row["undisturbed"]), said["rows"]
    assert [one["strategy"] for one in said["skipped"]] == ["ring-multicast"]
    assert said["cluster"]["gpus_per_node"] == 2


@pytest.mark.process
@LINUX
@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ("nowhere.json", "nowhere.json"),
        ("flat", "--cluster: gpus_per_node is 1, and this job has 2 on each host"),
    ],
)
def test_another_cluster_is_refused(tmp_path, cluster, message):
    if cluster not in cluster_names():
        path = tmp_path / cluster
        if cluster == "flat":
            path = tmp_path / "flat.json"
            path.write_text('{"format": "paceline-cluster", "version": 1, "bandwidth": "1Gbps"}')
        cluster = str(path)
    ended = launch(2, "validate", "--here", "--cluster", cluster)
    assert ended.returncode == 1
    assert ended.stderr.count(message) == 1
    assert "Traceback" not in ended.stderr


@pytest.mark.process
@LINUX
def test_clocks_of_several_machines_are_aligned(tmp_path):
    said = run(tmp_path, 3, "clocks")
    assert said[0]["names"] == ["clock 0"]
    assert len(said[0]["errors"]) == 3
    assert all((one["error_s"] == 0) == (one["rank"] == 0) for one in said)
    for one in said:
        # Some microseconds more: the two clocks that are compared were not read at the same moment.
        assert one["wrong_s"] <= one["error_s"] + 0.002
    simulated = paceline.simulate("netop-inception-v3", None, "ring", workers=3, bandwidth="10Tbps").iteration_s
    # A busy machine makes them longer; clocks that were not aligned are days apart.
    assert all(0.9 * simulated < seconds < simulated + 5 for seconds in said[0]["seconds"])


def test_costs_are_fitted_without_negative_ones():
    counts = [[1.0, tensors, elements, 0.0] for tensors in (1, 16) for elements in (1e4, 1e6)]
    true = (2e-5, 1e-6, 3e-9)
    times = [sum(cost * count for cost, count in zip(true, row, strict=False)) for row in counts]
    assert fit(counts, times) == pytest.approx(dict(zip(("bucket_s", "tensor_s", "element_s"), true, strict=True)))
    # What is noise in the others' shadow is 0, and left out.
    assert set(fit(counts, [row[2] * 1e-9 for row in counts])) <= {"bucket_s", "tensor_s", "element_s"}
    assert fit(counts, [0.0] * 4) == {}


@pytest.mark.process
@LINUX
def test_compression_is_measured_and_forecast(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "cluster.json"
    options = ["--quick", "--compression", "powersgd:4,topk:0.01,int8,fp16", "-o", path]
    ended = launch(2, "probe", *options, limit_s=300)
    assert ended.returncode == 0, ended.stderr
    assert "a bucket of 25 MiB" in ended.stdout
    costs = {one["method"]: one for one in json.loads(path.read_text(encoding="utf-8"))["compression_costs"]}
    assert set(costs) == {"powersgd:4", "topk:0.01", "int8", "fp16"}
    assert all(one["compress"]["element_s"] > 0 and "threads" not in one for one in costs.values())
    result = paceline.simulate("resnet-50", str(path), workers=4, bandwidth="1Gbps", compression="int8")
    assert result.notes[-1].endswith("measured on cluster")
    own = costs["int8"]["compress"]["element_s"] + costs["int8"]["between"].get("received_s", 0)
    # Beside 2 x 3/4 bytes an element, a scale of 4 for each 256.
    assert result.bytes_sent_per_worker == pytest.approx(2 * 0.75 * 102.2e6 / 4 * (1 + 4 / 256), rel=0.01)
    assert result.iteration_s > 102.2e6 / 4 * own
