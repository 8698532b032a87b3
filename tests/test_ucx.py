"""Tensors over UCX between real processes: the bits of TCP; errors name what is missing, and ranks that die."""

import json
import os
import re
import socket
import subprocess
import sys

import pytest
from cli import begun as launch
from job_workers.launch import Ranks, errors_where_rank_1_is_stopped, outcomes_where_rank_1_forks, run
from job_workers.values import LENGTHS
from paceline import _core
from paceline.errors import InvalidArgumentError
from paceline.job.settings import Settings, ucx_package


def missing():
    try:
        _core.ucx_library(os.environ.get("PACELINE_UCX_LIBRARY"), ucx_package())
    except InvalidArgumentError as error:
        return str(error)
    return ""


WHY = missing() if sys.platform.startswith("linux") else "needs Linux"
needs_ucx = pytest.mark.skipif(bool(WHY), reason=WHY)
process = [pytest.mark.process, needs_ucx]
HOST = re.escape(socket.gethostname())
TCP = {"UCX_TLS": "tcp,self"}
SHARED = {}
BOTH = pytest.mark.parametrize("env", [SHARED, TCP], ids=["shared", "tcp"])
RDMA = any(os.scandir("/sys/class/infiniband")) if os.path.isdir("/sys/class/infiniband") else False  # noqa: PTH112


def processes(*marks):
    return lambda test: [test := mark(test) for mark in (*process, *marks)][-1]


def same_everywhere(results):
    assert len({digest for result in results for digest in result["digests"].values()}) == 1, results


# Settings.


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"transport": "tcp", "ucx_library": "/"}, "ucx_library: has no effect with transport tcp"),
        ({"transport": "grpc+ucx", "ucx_library": "/nowhere"}, "no such file or folder '/nowhere'"),
        ({"transport": "grpc+ucx", "streams": 2}, "streams: has no effect with transport grpc+ucx"),
        ({"transport": "grpc+verbs", "single_copy": False}, "single_copy: has no effect with transport grpc+verbs"),
        ({"transport": "grpc+ucx", "multicast": "239.77.0.0:47700"}, "multicast: has no effect"),
        ({"transport": "grpc+ucx", "strategy": "native"}, "native is the all-reduce of a library"),
        ({"transport": "grpc+rdma"}, "grpc combines with tensors over tcp, mpi, ucx, verbs or gdr, not 'rdma'"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, said):
    with pytest.raises(InvalidArgumentError, match=re.escape(said)):
        Settings.from_environment({}, **settings)


def test_the_native_module_is_told_where_the_package_is():
    answer = json.loads(Settings.from_environment({}, transport="grpc+ucx").to_json())
    assert answer["transport"] == "grpc+ucx" and answer["ucx_package"] == ucx_package()
    assert "ucx_package" not in json.loads(Settings.from_environment({}).to_json())


def test_a_library_that_is_none_is_named(tmp_path):
    path = tmp_path / "libucp.so.0"
    path.write_text("nothing")
    code = f"from paceline import _core\n_core.ucx_library({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert f"no UCX that can be used: {path}" in done.stderr, done.stderr


@needs_ucx
@pytest.mark.skipif(RDMA, reason="this machine has an RDMA device")
@pytest.mark.parametrize(
    ("transport", "lacks"),
    [
        ("grpc+verbs", ["an RDMA device"]),
        ("grpc+gdr", ["an RDMA device", "nvidia_peermem"]),
    ],
)
def test_what_a_machine_lacks_is_said_once(transport, lacks):
    process = launch("-np", 2, "--transport", transport, "--", "true")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2 and not out, err
    assert err.count("this machine lacks") == 1 and all(one in err for one in lacks), err
    assert "--transport grpc+ucx" in err.replace("=", " "), err


@needs_ucx
def test_a_choice_of_transports_contradicts_verbs(monkeypatch):
    monkeypatch.setenv("UCX_TLS", "tcp,self")
    with pytest.raises(InvalidArgumentError, match="UCX_TLS=tcp,self also chooses"):
        _core.ucx_library(None, ucx_package(), "grpc+verbs")


# Results.


@processes(BOTH)
def test_sums_have_the_bits_that_they_have_over_tcp(tmp_path, env):
    lengths = ",".join(map(str, [*LENGTHS, 70_001]))
    same_everywhere(run(tmp_path, 2, "all_reduce", "tcp,grpc+ucx", lengths, "async", env=env))


@processes(pytest.mark.slow, BOTH, pytest.mark.parametrize("size", [3, 4]))
def test_sums_of_more_ranks(tmp_path, size, env):
    same_everywhere(run(tmp_path, size, "all_reduce", "tcp,grpc+ucx", "0,1,3,300001", "sync", env=env))


@processes(BOTH)
def test_every_other_operation(tmp_path, env):
    same_everywhere(run(tmp_path, 3, "calls", "grpc+ucx", env=env))


LARGE = """
import os, sys, time
import numpy as np, paceline
with paceline.job.join(transport="grpc+ucx") as job:
    ones = np.full(25_000_000, job.rank + 1, "float32")
    job.all_reduce(ones)
    assert (ones == sum(range(1, job.size + 1))).all()
    for step in range(500):
        one = np.full(1, step + job.rank, "int64")
        job.all_reduce(one)
        assert one[0] == step * job.size + sum(range(job.size))
    ucx = job.status()["ucx"]
    assert ucx["transports"][job.rank] == [] and all(ucx["transports"][1 - job.rank] for _ in [0])
    before = time.process_time()
    time.sleep(2 * job.rank)
    job.barrier()
    waited = time.process_time() - before
    print(job.rank, sorted({one.split("/")[0] for one in ucx["transports"][1 - job.rank]}), f"{waited:.2f}")
"""


@processes(pytest.mark.parametrize(("env", "used"), [(SHARED, "memory"), (TCP, "tcp")], ids=["shared", "tcp"]))
def test_100_megabytes_and_small_ones_and_waiting_does_not_burn_a_core(tmp_path, env, used):
    script = tmp_path / "large.py"
    script.write_text(LARGE)
    process = launch("-np", 2, "--strategy", "ring", "--", sys.executable, script, env=env)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, out + err
    lines = sorted(line.partition("] ")[2] or line for line in out.splitlines())
    assert len(lines) == 2, out
    transports = re.findall(r"'(\w+)'", lines[0])
    assert transports == ["tcp"] if used == "tcp" else not set(transports) & {"tcp"}, out
    # Of the 2 s that rank 0 waits.
    assert float(lines[0].split()[-1]) < 0.5, out


@processes()
def test_servers_are_reached_over_ucx():
    words = ["--strategy", "ps", "--servers", 1, "--transport", "grpc+ucx"]
    process = launch("-np", 2, *words, "--", sys.executable, "-m", "job_workers.servers", "sums")
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0 and not err, out + err
    assert out.count('"size": 2') == 2, out


# Failures.


@processes(
    BOTH,
    pytest.mark.parametrize(
        ("how", "message"),
        [
            ("SIGKILL", r"rank 1 \(host {host}, pid \d+\) died"),
            ("close", r"rank 1 \(host {host}, pid \d+\) has left the job"),
        ],
    ),
)
def test_the_end_of_a_rank_is_seen_within_two_seconds(tmp_path, how, message, env):
    env = {"PACELINE_TRANSPORT": "grpc+ucx", **env}
    with Ranks(tmp_path, 3, "failures", "die_while_training", how, env=env) as ranks:
        outcomes = ranks.outcomes(40)
    at = next(said["ends_at"] for said in outcomes[1].said if "ends_at" in said)
    for rank in (0, 2):
        first = next(said for said in outcomes[rank].said if "error" in said)
        assert re.match(message.format(host=HOST), first["error"]), first
        assert first["at"] - at < 2.0
        assert outcomes[rank].said[-2]["closed_in"] < 3.0
        assert outcomes[rank].code == 0


@processes(BOTH)
def test_a_stopped_rank_is_named_at_the_limit(tmp_path, env):
    env = {"PACELINE_TIMEOUT": "3", "PACELINE_TRANSPORT": "grpc+ucx", **env}
    stall = rf"waited \d s for rank 1 \(host {HOST}, pid \d+\) in .* is silent: stopped.*timeout after 3 s"
    for error in errors_where_rank_1_is_stopped(tmp_path, env):
        assert re.search(stall, error), error


@processes()
def test_different_calls_are_an_error_on_all_ranks(tmp_path):
    env = {"PACELINE_TIMEOUT": "8", "PACELINE_TRANSPORT": "grpc+ucx"}
    with Ranks(tmp_path, 3, "failures", "mismatch", env=env) as ranks:
        outcomes = ranks.outcomes(60)
    for outcome in outcomes.values():
        errors = {said["case"]: said["error"] for said in outcome.said if "case" in said}
        assert "ranks disagree on op 1 of group length" in errors["length"], errors
        assert "float32[11]" in errors["length"] and "float32[10]" in errors["length"], errors
        assert any(said.get("done") for said in outcome.said), outcome


@processes()
def test_a_forked_child_is_no_rank_and_does_not_hide_a_death(tmp_path):
    outcomes = outcomes_where_rank_1_forks(tmp_path, {"PACELINE_TRANSPORT": "grpc+ucx"})
    for rank in (0, 2):
        errors = [said["error"] for said in outcomes[rank].said if said.get("error")]
        assert errors and re.match(r"rank 1 \(.*\) died", errors[0]), outcomes[rank]


@processes()
def test_ranks_without_a_common_transport_are_told_so(tmp_path):
    """Shared memory of one kind on one rank, of another on the other."""
    env = {"PACELINE_TRANSPORT": "grpc+ucx", "PACELINE_START_TIMEOUT": "10"}
    own = {0: {"UCX_TLS": "posix,self"}, 1: {"UCX_TLS": "sysv,self"}}
    with Ranks(tmp_path, 2, "failures", "late", 0, env=env, env_of=own) as ranks:
        outcomes = ranks.outcomes(40)
    errors = [said["error"] for outcome in outcomes.values() for said in outcome.said if said.get("error")]
    unreachable = r"UCX reaches rank \d \(host .*\) by no transport: ucp_ep_create"
    assert any(re.match(unreachable, error) for error in errors), errors
