"""`paceline validate`, and the traffic of strategies on each link, on emulated clusters."""

import json
import subprocess
import sys

import cli
import pytest
from emulate_workers.here import prepare, skip_where_forbidden
from job_workers.launch import TESTS, clean
from paceline.catalog.strategies import find_strategy
from paceline_lab import emulate

pytestmark = [
    pytest.mark.process,
    pytest.mark.timed,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs network namespaces"),
]
WORKERS, SIZE, WITHIN = 4, 4_000_000, 0.08
ATTEMPTS = 3
GROUP = "239.77.0.0:47700"


@pytest.fixture(autouse=True)
def possible(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def cluster():
    skip_where_forbidden()
    with emulate.cluster(workers=WORKERS, servers=1, switch=True, bandwidth_bps=1e9) as result:
        yield result


def validate(*words, limit_s=240):
    command = [sys.executable, "-m", "paceline.cli", "validate", *words]
    return cli.ended(*command, cwd=TESTS, env=clean(), timeout=limit_s)


def rows(strategies, *more):
    words = ["--trace", f"allreduce:{SIZE}B", "--workers", str(WORKERS), "--bandwidth", "500Mbps", "--json"]
    ended = validate(*words, "--strategy", ",".join(strategies), "--repeats", "3", "--no-check", *more)
    assert ended.returncode == 0, ended.stderr
    return {row["strategy"]: row for row in json.loads(ended.stdout)["rows"]}


def test_one_strategy_of_each_kind_takes_as_long_as_simulated():
    """Servers, a switch that adds up, multicast, a ring, exchanges, ranks that share a host."""
    as_long_as_simulated(["ps", "ps-aggregation", "ps-multicast", "ring", "halving-doubling", "hierarchical"])


def test_compressed_exchanges_take_as_long_as_simulated():
    kinds = ["none", "int8", "topk:0.01", "powersgd:4"]
    words = ["--strategy", "ring", "--compression", ",".join(kinds), "--bandwidth", "500Mbps", "--quick", "--json"]
    for _ in range(ATTEMPTS):
        ended = validate(*words, "--no-check")
        assert ended.returncode == 0, ended.stderr
        result = json.loads(ended.stdout)["rows"]
        assert [row["compression"] for row in result] == kinds
        off = {row["compression"]: (row["error"], row["undisturbed"]) for row in result if abs(row["error"]) > WITHIN}
        if not off:
            return
    if not any(undisturbed for _, undisturbed in off.values()):
        pytest.skip(f"the machine's cores were taken by others in all {ATTEMPTS} attempts: {off}")
    raise AssertionError(off)


def test_asynchronous_workers_take_as_long_and_are_as_stale_as_simulated():
    """With a bound of 0, whose steady state is reached at once."""
    words = [
        "--strategy",
        "async-ps",
        "--staleness",
        "0",
        "--workers",
        "2",
        "--servers",
        "1,2",
        "--repeats",
        "2",
        "--json",
    ]
    for _ in range(ATTEMPTS):
        ended = validate(*words, "--network", "fluid", "--no-check")
        assert ended.returncode == 0, ended.stderr
        result = json.loads(ended.stdout)["rows"]
        assert [(row["servers"], row["staleness"]) for row in result] == [(1, 0), (2, 0)]
        # Who is first changes, but one of two always is.
        assert [row["updates"]["measured_most"] for row in result] == [1, 1]
        off = [row for row in result if abs(row["error"]) > WITHIN or row["updates"]["distance"] > WITHIN]
        if not off:
            return
    if not any(row["undisturbed"] for row in off):
        pytest.skip(f"the machine's cores were taken by others in all {ATTEMPTS} attempts: {off}")
    raise AssertionError(off)


def test_switches_of_two_racks_and_between_them_take_nearly_as_long_as_simulated():
    """Two processes for each rack's switch, up and down, and one between the racks; one GPU per host.

    On two cores they take a fifth longer than forecast, for a reason that is not known.
    """
    as_long_as_simulated(["sharp"], "--racks", "2", within=0.3)


def as_long_as_simulated(kinds, *more, within=WITHIN):
    left, tried = kinds, []
    for _ in range(ATTEMPTS):  # other work on this machine is not always noticed in the iteration that it disturbs
        result = rows(left, *more)
        assert list(result) == left
        left = [strategy for strategy in left if abs(result[strategy]["error"]) > within]
        tried += [(strategy, result[strategy]["error"], result[strategy]["undisturbed"]) for strategy in left]
        if not left:
            return
    if not any(undisturbed for strategy, _, undisturbed in tried if strategy in left):
        pytest.skip(f"the machine's cores were taken by others in all {ATTEMPTS} attempts: {tried}")
    raise AssertionError(tried)


def carried(cluster):
    """Bytes that each host's NIC has sent and received so far."""
    result = {}
    for host in cluster.hosts:
        with cluster.popen(host.name, ["cat", "/proc/net/dev"], stdout=subprocess.PIPE, text=True) as process:
            (line,) = [line for line in process.stdout if line.strip().startswith("eth0:")]
        fields = line.split(":")[1].split()
        result[host.name] = (int(fields[8]), int(fields[0]))
    return result


# In units of a gradient's bytes: what a worker sends and receives, what the server does, what the switch does.
ON_LINKS = {
    "ring": ((1.5, 1.5), (0, 0), (0, 0)),
    "recursive-doubling": ((2, 2), (0, 0), (0, 0)),
    "halving-doubling": ((1.5, 1.5), (0, 0), (0, 0)),
    "ring-multicast": ((1, 1.5), (0, 0), (0, 0)),
    "ps": ((1, 1), (4, 4), (0, 0)),
    "ps-multicast": ((1, 1), (1, 4), (0, 0)),
    "ps-aggregation": ((1, 1), (4, 1), (1, 4)),
    "ps-multicast-aggregation": ((1, 1), (1, 1), (1, 4)),
}


@pytest.mark.parametrize("strategy", ON_LINKS)
def test_bytes_on_each_link_are_those_of_the_formula(cluster, strategy):
    """As counted by the NICs themselves: headers and acknowledgments take a few percent."""
    knobs, settings = find_strategy(strategy).knobs, {}
    if "multicast" in knobs:
        settings["multicast"] = GROUP
    if "servers" in knobs:
        settings["servers"] = 1
    if "aggregation" in knobs:
        settings["switch"] = True
    command = [sys.executable, "-m", "paceline_lab.replay", f"allreduce:{SIZE}B", "--iterations", "3", "--warmup", "1"]
    before, collected = carried(cluster), emulate.Collected()
    code = cluster.run(command, strategy=strategy, output=collected, **settings)
    assert code == 0, [collected.stderr(rank) for rank in range(WORKERS)]
    after = carried(cluster)
    exchanges = 3 + 1 + 2  # two more to check the sums
    worker, server, switch = ON_LINKS[strategy]
    for host in cluster.hosts:
        want = {"worker": worker, "server": server, "switch": switch}[host.kind]
        for way in (0, 1):
            units = (after[host.name][way] - before[host.name][way]) / exchanges / SIZE
            least, most = want[way] * 0.99, want[way] * 1.03 + 0.04 * (want[1 - way] + 1)
            assert least <= units <= most, (host.name, ("sent", "received")[way], units, want[way])


def test_datagrams_are_as_long_as_frames_allow(cluster):
    """Emulated links take jumbo frames; a rank that took them for plain Ethernet sent 8 % more bytes."""
    collected = emulate.Collected()
    command = [sys.executable, "-m", "job_workers.multicast", "late"]
    assert cluster.run(command, strategy="ring-multicast", multicast=GROUP, output=collected, limit_s=60) == 0
    assert [answer(collected, rank)[-1]["multicast"]["payload"] for rank in range(WORKERS)] == [8192] * WORKERS


def answer(collected, rank):
    return [json.loads(line[line.index("{") :]) for line in collected.stdout(rank).splitlines() if "{" in line]


def test_a_switch_waits_for_a_slow_worker_in_little_memory(cluster):
    collected = emulate.Collected()
    command = [sys.executable, "-m", "job_workers.servers", "stream"]
    assert cluster.run(command, strategy="ps-aggregation", switch=True, output=collected, limit_s=60) == 0
    for rank in range(WORKERS):
        (said,) = answer(collected, rank)
        assert said["peak"] < 75_000


@pytest.mark.parametrize("strategy", ["ps-aggregation", "ps-multicast-aggregation"])
def test_a_switch_does_not_wait_for_a_dead_worker(cluster, strategy):
    collected = emulate.Collected()
    command = [sys.executable, "-m", "job_workers.servers", "dies"]
    options = {"multicast": GROUP} if "multicast" in strategy else {}
    assert cluster.run(command, strategy=strategy, switch=True, output=collected, limit_s=60, **options) == 1
    (dead,) = answer(collected, 1)
    for rank in (0, 2, 3):
        error = answer(collected, rank)[-1]
        assert error["seconds"] < 5
        assert "rank 1 (host worker1" in error["error"] and f"pid {dead['pid']}) died" in error["error"], error


@pytest.mark.slow
def test_large_messages_take_as_long_as_simulated(tmp_path):
    path = tmp_path / "both.json"
    words = ["--trace", "allreduce:4MB", "--workers", "3", "--bandwidth", "100Mbps", "--repeats", "3", "--json"]
    ended = validate(*words, "--strategy", "ring,ps,ps-aggregation")
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert [row["strategy"] for row in said["rows"]] == ["ring", "ps", "ps-aggregation"]
    # Other work on a busy machine makes it longer, not shorter.
    assert all(-0.15 < row["error"] < 0.03 for row in said["rows"]), said["rows"]
    assert all(abs(row["fidelity"]) < 0.1 for row in said["rows"])
    ended = validate(*words, "--strategy", "ring", "--timeline", str(path), "--no-check")
    assert ended.returncode == 0, ended.stderr
    events = json.loads(path.read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {f"worker {rank}, {how}" for rank in range(3) for how in ("measured", "simulated")} <= names
