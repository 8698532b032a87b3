"""gRPC between real processes: the same bits as over TCP; errors name ranks that die, stop or lack the secret."""

import json
import re
import secrets
import signal
import socket
import sys
import threading
from os import kill

import pytest
from cli import begun as launch
from job_workers.launch import Ranks, errors_where_rank_1_is_stopped, outcomes_where_rank_1_forks, run
from job_workers.values import LENGTHS, LONG

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and memfd"),
]

HOST = re.escape(socket.gethostname())
DEATH_S = 2.0
SERVERS = [sys.executable, "-m", "job_workers.servers"]
slow = pytest.mark.slow


def same_everywhere(results):
    assert len({digest for result in results for digest in result["digests"].values()}) == 1, results
    for result in results:
        assert result["before"] == result["after"], result


@pytest.mark.parametrize(
    ("size", "transports", "way"),
    [
        (2, "tcp,grpc,grpc+tcp,tls", "async"),
        pytest.param(3, "tcp,grpc,tls", "sync", marks=slow),
        pytest.param(5, "tcp,grpc", "async", marks=slow),
    ],
)
def test_sums_have_the_bits_that_they_have_over_tcp(tmp_path, size, transports, way):
    lengths = ",".join(map(str, LENGTHS))
    same_everywhere(run(tmp_path, size, "all_reduce", transports, lengths, way))


@pytest.mark.parametrize("transports", [pytest.param("tcp,grpc,tls", marks=slow)])
def test_long_sums_have_the_bits_that_they_have_over_tcp(tmp_path, transports):
    same_everywhere(run(tmp_path, 3, "all_reduce", transports, LONG, "sync"))


@pytest.mark.parametrize(("size", "transport"), [(3, "grpc"), pytest.param(5, "grpc+tcp", marks=slow)])
def test_every_other_operation(tmp_path, size, transport):
    same_everywhere(run(tmp_path, size, "calls", transport))


def ended(process, code=0):
    out, err = process.communicate(timeout=90)
    assert process.returncode == code, out + err
    return [json.loads(line[line.index("{") :]) for line in out.splitlines() if "{" in line], err


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (2, ["--servers", 1]),
        (3, ["--servers", 2, "--placement", "even", "--tls"]),
        (2, ["--servers", 2, "--transport", "grpc+tcp", "--streams", 2]),
    ],
)
def test_servers_are_services(ranks, options):
    words = ["--strategy", "ps", "--transport", "grpc", *options]
    said, err = ended(launch("-np", ranks, *words, "--", *SERVERS, "sums"))
    assert [one["size"] for one in said] == [ranks] * ranks and not err


@pytest.mark.parametrize("options", [["--transport", "grpc"], ["--transport", "grpc+tcp"]])
def test_a_server_that_is_killed_is_named(options):
    options = ["-np", 2, "--strategy", "ps", "--servers", 2, "--timeout", 5, *options]
    process = launch(*options, "--", *SERVERS, "lose")
    line = process.stdout.readline()
    victim = json.loads(line[line.index("{") :])["servers"][0]
    threading.Timer(0.5, kill, (victim, signal.SIGKILL)).start()
    said, err = ended(process, 1)
    errors = [one["error"] for one in said if "error" in one]
    named = rf"server 0 \(rank 2, host {HOST}, pid {victim}\) died \(connection (closed|broke)"
    # One that asks for a sum only afterwards is told that there are no more.
    assert any("'weights'" in error for error in errors), errors
    assert len(errors) == 2 and all(re.search(named, error) for error in errors), errors
    assert re.search(rf"paceline: error: server 0 \(host \S+, pid {victim}\) was killed by SIGKILL", err), err


@pytest.mark.parametrize(
    ("how", "transport", "message"),
    [
        ("SIGKILL", "grpc", r"rank 1 \(host {host}, pid \d+\) died"),
        ("SIGKILL", "grpc+tcp", r"rank 1 \(host {host}, pid \d+\) died"),
        ("close", "grpc", r"rank 1 \(host {host}, pid \d+\) has left the job"),
        pytest.param("exception", "grpc", r"rank 1 \(host {host}, pid \d+\) has left the job", marks=slow),
    ],
)
def test_the_end_of_a_rank_is_seen_within_two_seconds(tmp_path, how, transport, message):
    with Ranks(tmp_path, 3, "failures", "die_while_training", how, env={"PACELINE_TRANSPORT": transport}) as ranks:
        outcomes = ranks.outcomes(40)
    at = next(said["ends_at"] for said in outcomes[1].said if "ends_at" in said)
    for rank in (0, 2):
        first = next(said for said in outcomes[rank].said if "error" in said)
        assert re.match(message.format(host=HOST), first["error"]), first
        assert first["at"] - at < DEATH_S
        assert outcomes[rank].said[-2]["closed_in"] < 2.0
        assert outcomes[rank].code == 0


def test_a_stopped_rank_is_named_at_the_limit(tmp_path):
    env = {"PACELINE_TIMEOUT": "3", "PACELINE_TRANSPORT": "grpc"}
    stall = rf"waited \d s for rank 1 \(host {HOST}, pid \d+\) in .* is silent: stopped.*timeout after 3 s"
    for error in errors_where_rank_1_is_stopped(tmp_path, env):
        assert re.search(stall, error), error


def test_a_forked_child_is_no_rank_and_does_not_hide_a_death(tmp_path):
    outcomes = outcomes_where_rank_1_forks(tmp_path, {"PACELINE_TRANSPORT": "grpc"})
    for rank in (0, 2):
        errors = [said["error"] for said in outcomes[rank].said if said.get("error")]
        assert errors and re.match(r"rank 1 \(.*\) died", errors[0]), outcomes[rank]


@slow
def test_ranks_of_another_secret_are_told_so(tmp_path):
    """The exchange is torch's there, so that gRPC is the first to see the secret."""
    script = tmp_path / "join.py"
    script.write_text(
        "import os, torch.distributed as dist, paceline.torch\n"
        "os.environ['PACELINE_SECRET'] = os.environ['RANK'] * 20\n"
        "dist.init_process_group('paceline')\n"
        "dist.barrier()\n"
    )
    env = {"PACELINE_TRANSPORT": "grpc", "PACELINE_START_TIMEOUT": "5"}
    process = launch("-np", 2, "--grace", 8, "--", sys.executable, script, env=env)
    _, err = ended(process, 1)
    assert "rank 1: rank 0 (127.0.0.1) refused the call: it was a call without the token of this job" in err, err
    assert "PACELINE_SECRET" in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--transport", "grpc", "--streams", 2], "--streams: has no effect with transport grpc"),
        (["--transport", "grpc", "--multicast", "239.77.0.0:47700"], "--multicast: has no effect with transport grpc"),
        (["--transport", "tcp", "--tls"], "--tls: has no effect with transport tcp"),
        (["--no-tls"], "--no-tls: has no effect with transport auto"),
        (["--transport", "grpc+mpi"], "grpc+mpi"),
    ],
)
def test_knobs_without_effect_are_refused(options, said):
    _, err = ended(launch("-np", 2, *options, "--", "true"), 2)
    assert said in err, err


def test_weights_have_the_bits_that_they_have_over_tcp():
    pytest.importorskip("torch", reason="torch is not installed: pip install '.[torch]'")
    from hvd_workers import pulling
    from hvd_workers.launch import run

    weights = set()
    for transport in ("tcp", "grpc"):
        env = {"PACELINE_STRATEGY": "ps", "PACELINE_SERVERS": "2", "PACELINE_TRANSPORT": transport}
        weights |= set(run(2, pulling.digest, env={**env, "PACELINE_SECRET": secrets.token_hex(16)}))
    assert len(weights) == 1
