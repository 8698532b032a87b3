"""Jobs on emulated clusters: ranks on separate hosts, parameter servers, failures."""

import concurrent.futures
import json
import os
import sys
from collections import Counter

import pytest
from emulate_workers.here import call, prepare, skip_where_forbidden
from paceline import InvalidArgumentError, JobError, emulate

pytestmark = [pytest.mark.process, pytest.mark.timed]

TRAIN = [sys.executable, "-m", "emulate_workers.train"]


@pytest.fixture(autouse=True)
def possible(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def cluster():
    skip_where_forbidden()
    with emulate.cluster(workers=2, servers=1, bandwidth_bps=500e6) as result:
        yield result


def said(out):
    return sorted((json.loads(line[line.index("{") :]) for line in out.splitlines()), key=lambda one: one["rank"])


@pytest.mark.parametrize(
    ("options", "hosts"),
    [
        (["--strategy", "ring"], {"0": "worker0", "1": "worker1", "2": "worker2"}),
        (["--strategy", "ps"], {"0": "worker0", "1": "worker1", "2": "worker2", "3": "server0"}),
        (
            ["--strategy", "ps-aggregation", "--switch"],
            {"0": "worker0", "1": "worker1", "2": "worker2", "3": "server0", "4": "switch"},
        ),
    ],
)
def test_training(tmp_path, options, hosts):
    code, out, err = call(tmp_path, "run", "--workers", 3, "--bandwidth", "500Mbps", *options, "--", *TRAIN)
    assert code == 0, err
    ranks = said(out)
    assert [one["host"] for one in ranks] == ["worker0", "worker1", "worker2"]
    assert ranks[0]["peers"] == hosts
    assert len({one["digest"] for one in ranks}) == 1
    for one in ranks:
        assert set(one["transports"]) - {None, "self"} == {"tcp"}
        assert one["losses"][1] < one["losses"][0] / 2
    assert not list((tmp_path / "paceline-emulate").iterdir())


def test_ranks_of_a_host_share_memory(cluster):
    collected = emulate.Collected()
    assert cluster.run(TRAIN, ranks_per_host=2, strategy="ring", output=collected) == 0
    ranks = [json.loads(collected.stdout(rank)) for rank in range(4)]
    assert [one["host"] for one in ranks] == ["worker0", "worker0", "worker1", "worker1"]
    for one in ranks:
        assert Counter(one["transports"])["shm"] == 1
        assert Counter(one["transports"])["tcp"] == 2


def test_in_a_thread_that_is_not_the_main_one(cluster):
    collected = emulate.Collected()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        command = [sys.executable, "-c", "import os; print(os.environ['RANK'])"]
        assert pool.submit(cluster.run, command, output=collected, limit_s=60).result(90) == 0
    assert [collected.stdout(rank).strip() for rank in range(2)] == ["0", "1"]


def test_a_failed_rank_is_named(tmp_path):
    words = ["run", "--workers", 2, "--bandwidth", "500Mbps", "--grace", 1, "--", *TRAIN, "fail"]
    code, _, err = call(tmp_path, *words)
    assert code == 1
    assert "paceline: error: rank 1 (host worker1, pid " in err
    assert "exited with code 3" in err
    assert not list((tmp_path / "paceline-emulate").iterdir())


def test_a_missing_command_is_a_mistake(tmp_path):
    code, _, err = call(tmp_path, "run", "--workers", 2, "--bandwidth", "500Mbps", "--", "no-such-command")
    assert code == 2
    assert "there is no command 'no-such-command'" in err


def test_what_ranks_find(cluster):
    collected = emulate.Collected()
    show = "import json,os;scheduling = os.sched_getscheduler(0), os.sched_getparam(0).sched_priority\n"
    show += "print(json.dumps([dict(os.environ), *scheduling]))"
    code = cluster.run([sys.executable, "-c", show], env={"GIVEN": "a b"}, strategy="ps", output=collected)
    assert code == 0
    for rank in range(2):
        environ, policy, priority = json.loads(collected.stdout(rank))
        assert environ["GIVEN"] == "a b"
        assert environ["PACELINE_INTERFACE"] == f"10.77.1.{rank + 1}"
        assert environ["MASTER_ADDR"] == "10.77.1.1"
        assert (environ["RANK"], environ["LOCAL_RANK"], environ["GROUP_RANK"]) == (str(rank), "0", str(rank))
        assert (environ["WORLD_SIZE"], environ["GROUP_WORLD_SIZE"]) == ("2", "2")
        assert environ["PACELINE_RUN_SERVERS"] == "1"
        assert environ["GLOO_SOCKET_IFNAME"] == "eth0"
        assert (policy, priority) == ((os.SCHED_FIFO, 10) if cluster.realtime else (os.SCHED_OTHER, 0))


def test_without_realtime(tmp_path):
    with emulate.cluster(workers=1, bandwidth_bps=1e8, realtime=False) as plain:
        assert not plain.realtime
        policy = "import os,sys;sys.exit(os.sched_getscheduler(0) == os.SCHED_OTHER)"
        assert plain.popen("worker0", [sys.executable, "-c", policy]).wait(20) == 1
        assert plain.run([sys.executable, "-c", policy], output=emulate.Discarded()) == 1


def test_a_job_that_takes_too_long_is_ended(cluster):
    with pytest.raises(JobError, match="did not finish within 1 s"):
        cluster.run(["sleep", "60"], limit_s=1, output=emulate.Discarded())


def test_more_servers_than_hosts(cluster):
    with pytest.raises(InvalidArgumentError, match="2 servers: the cluster has 1 server host"):
        cluster.run(TRAIN, strategy="ps", servers=2)
    with pytest.raises(InvalidArgumentError, match="switch: the cluster has no host for it"):
        cluster.run(TRAIN, strategy="ps-aggregation", switch=True)
    with pytest.raises(InvalidArgumentError, match="must be 1-"):
        cluster.run(TRAIN, ranks_per_host=0)
    with pytest.raises(InvalidArgumentError, match="no command given"):
        cluster.run([])
    with pytest.raises(InvalidArgumentError, match="no host 'worker7' in this cluster\n  try: worker"):
        cluster.popen("worker7", ["true"])
    with pytest.raises(InvalidArgumentError, match="unknown setting 'stratgy'\n  try: strategy"):
        cluster.run(TRAIN, stratgy="ring")
