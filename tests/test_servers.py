"""Parameter servers as processes of their own, started by `paceline run`."""

import json
import os
import re
import signal
import socket
import sys
import threading

import pytest
from cli import begun as start
from job_workers.launch import run as run_ranks
from paceline._core import Engine
from paceline.errors import JobError
from paceline.job.settings import Settings

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and memfd"),
]


def run(*words, env=None):
    process = start(*words, env=env)
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0, out + err
    return [json.loads(line[line.index("{") :]) for line in out.splitlines() if "{" in line], err


WORKER = [sys.executable, "-m", "job_workers.servers"]


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (2, ["--strategy", "ps", "--servers", 1]),
        (3, ["--strategy", "ps", "--servers", 2, "--placement", "even", "--transport", "tcp"]),
        (2, ["--strategy", "ps", "--servers", 3, "--distribution", "block", "--chunk", "64KiB"]),
        (2, ["--strategy", "ps-multicast-aggregation", "--servers", 2]),
        (4, ["--strategy", "sharded-ps", "--servers", 2]),
        (3, ["--strategy", "sharded-ps", "--servers", 3, "--inside", "root", "--transport", "tcp"]),
        (3, ["--strategy", "ps-aggregation", "--servers", 2, "--switch", "--transport", "tcp"]),
        (2, ["--strategy", "ps-multicast-aggregation", "--servers", 1, "--switch"]),
        (3, ["--strategy", "ps-aggregation", "--servers", 2, "--switch", "--chunk", "64KiB"]),
    ],
)
def test_servers_add_up_in_processes_of_their_own(ranks, options):
    said, err = run("-np", ranks, *options, "--", *WORKER, "sums")
    assert len(said) == ranks
    count = options[options.index("--servers") + 1]
    for one in said:
        assert one["size"] == ranks
        assert list(one["servers"]) == [str(server) for server in range(count)]
        assert len(set(one["servers"].values())) == count
    assert not err
    assert not any(os.path.exists(f"/proc/{pid}") for pid in said[0]["servers"].values())  # noqa: PTH110


@pytest.mark.parametrize(
    "options",
    [
        ["--strategy", "ps", "--servers", 2],
        ["--strategy", "ps", "--servers", 3, "--placement", "even", "--transport", "tcp"],
        ["--strategy", "ps-multicast-aggregation", "--servers", 2, "--switch", "--transport", "tcp"],
    ],
)
def test_servers_meet_once_in_a_step(options):
    said, _ = run("-np", 3, *options, "--", *WORKER, "steps")
    assert [one["early"] for one in said] == [False] * 3
    assert sum(one["waited"] for one in said) == 6


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_switch_adds_up_streams_in_little_memory(transport):
    options = ["--strategy", "ps-aggregation", "--switch", "--transport", transport]
    said, _ = run("-np", 3, *options, "--", *WORKER, "stream")
    # 80 MB pass through it twice from each of three; Python itself takes some 30 MB.
    assert all(one["peak"] < 75_000 for one in said), said


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (2, ["tcp", "ps-aggregation", "whole", 4 << 20, 1.5]),
        (2, ["auto", "ps-aggregation", "whole", 10_000_000, 0]),
        (4, ["tcp", "ps-aggregation", "whole", 4 << 20, 1.5]),
        (2, ["shm", "ps-aggregation", "1MiB", 10_000_000, 1.5]),
        (2, ["tcp", "ps-multicast-aggregation", "whole", 4 << 20, 1.5]),
    ],
)
def test_ranks_may_be_worker_server_and_switch_at_once(tmp_path, ranks, words):
    said = run_ranks(tmp_path, ranks, "roles", *words)
    assert all(one["right"] == [True, True] for one in said)


def test_the_switch_that_dies_is_named():
    process = start("-np", 2, "--strategy", "ps-aggregation", "--switch", "--", *WORKER, "lose")
    line = process.stdout.readline()
    victim = json.loads(line[line.index("{") :])["servers"][-1]
    threading.Timer(0.5, os.kill, (victim, signal.SIGKILL)).start()
    out, err = process.communicate(timeout=60)
    errors = [json.loads(one[one.index("{") :])["error"] for one in out.splitlines() if '"error"' in one]
    assert len(errors) == 2 and all(re.search(rf"the switch \(rank 3, .* pid {victim}\) died", e) for e in errors), out
    assert re.search(rf"paceline: error: switch \(host \S+, pid {victim}\) was killed by SIGKILL", err), err


@pytest.mark.parametrize("options", [["--switch"], ["--strategy", "ps", "--switch"]])
def test_a_switch_is_for_strategies_that_have_one(options):
    process = start("-np", 2, *options, "--", "true")
    _, err = process.communicate(timeout=30)
    assert process.returncode == 2 and "--switch is for strategies with a switch" in err


def test_a_script_may_join_again():
    said, _ = run("-np", 2, "--strategy", "ps", "--servers", 2, "--", *WORKER, "again")
    assert len(said) == 4


def test_without_the_strategy_there_are_no_processes():
    said, _ = run("-np", 2, "--strategy", "ring", "--", *WORKER, "sums")
    assert all(one["servers"] == {} for one in said)


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
def test_a_server_that_ends_is_named(how):
    options = ["-np", 2, "--strategy", "ps", "--servers", 2, "--timeout", 3]
    process = start(*options, "--", *WORKER, "lose")
    line = process.stdout.readline()
    victim = json.loads(line[line.index("{") :])["servers"][0]
    threading.Timer(0.5, os.kill, (victim, how)).start()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    errors = [json.loads(one[one.index("{") :])["error"] for one in out.splitlines() if '"error"' in one]
    named = rf"server 0 \(rank 2, host [^ ]+, pid {victim}\)"
    assert len(errors) == 2, out + err
    for error in errors:
        assert re.search(named + (" died" if how == signal.SIGKILL else ".* is silent: stopped"), error), error
        assert "'weights'" in error
    if how == signal.SIGKILL:
        assert re.search(rf"paceline: error: server 0 \(host \S+, pid {victim}\) was killed by SIGKILL", err), err


def failures(*words):
    process = start(*words)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, out + err
    errors = [json.loads(line[line.index("{") :])["error"] for line in out.splitlines() if '"error"' in line]
    assert errors, out + err
    return errors, err


def test_a_server_that_sees_another_shape_is_named_as_one():
    options = ["-np", 2, "--strategy", "ps", "--servers", 2, "--timeout", 5]
    errors, _ = failures(*options, "--", *WORKER, "other_shape")
    whose = r"server \d \(rank [23]\) called all_reduce \(float32\[100[01]\]"
    assert all(re.search(r"^ranks disagree on op 1 of 'weights': ", error) for error in errors), errors
    assert all(re.search(whose, error) for error in errors), errors


def test_what_a_rank_waits_in_instead_is_told():
    # Long enough for the answer of a rank on a busy host.
    options = ["-np", 2, "--strategy", "ps", "--servers", 1, "--timeout", 15]
    errors, err = failures(*options, "--", *WORKER, "other_call")
    assert re.search(
        r"is alive but has (called nothing after op|not called an op yet).* and waits in broadcast \(",
        "".join(errors) + err,
    )


def test_servers_that_do_not_come_are_named_as_such():
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    settings = Settings(strategy="ps", servers=2, server_processes=2, rendezvous=address, start_timeout_s=1)
    with pytest.raises(JobError, match=r"ranks 1, 2 of 3 have not come .*; ranks 1-2 are its 2 parameter servers"):
        Engine.start(0, 3, settings.to_json())


def test_streams_without_sockets_are_refused():
    process = start("-np", 2, "--strategy", "ring", "--streams", 2, "--", *WORKER, "sums")
    out, err = process.communicate(timeout=60)
    assert process.returncode != 0 and "streams: 2 have no effect" in out + err


def test_a_file_of_names_is_refused_where_arrays_have_none(tmp_path):
    table = tmp_path / "placement.json"
    table.write_text('{"weights": 0}')
    options = ["-np", 2, "--strategy", "ps", "--servers", 1, "--placement", table]
    process = start(*options, "--", *WORKER, "sums")
    out, err = process.communicate(timeout=60)
    assert process.returncode != 0 and "the arrays of this job have no names" in out + err


def events(path, category):
    answer = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("cat") == category]
    return [event for event in answer if event["ph"] in ("b", "X")]


@pytest.mark.parametrize(
    ("ranks", "options", "links"),
    [
        # A push of all elements from each worker, a pull to each.
        (2, ["--strategy", "ps", "--servers", 1], {("worker", "server"): 2, ("server", "worker"): 2}),
        # 2 (W - 1) pieces of 1 / W from each of W.
        (3, ["--strategy", "ring"], {("worker", "worker"): 4}),
    ],
)
def test_the_timeline_shows_the_bytes_of_the_strategys_formula(tmp_path, ranks, options, links):
    path = tmp_path / "run.json"
    _, err = run("-np", ranks, *options, "--timeline", path, "--", *WORKER, "one")
    assert f"in {path}: run `paceline doctor" in err
    assert list(tmp_path.iterdir()) == [path]
    moved, arrived = {}, {}
    for message in events(path, "message"):
        ends = message["args"]["from"], message["args"]["to"]
        if message["args"]["bytes"] > 100:
            link = tuple(end.split()[0] for end in ends)
            where = moved if message["tid"] == 1 else arrived
            where[link] = where.get(link, 0) + message["args"]["bytes"]
    assert moved == arrived == {link: times * 2_000_000 for link, times in links.items()}
    (operation,) = {event["name"] for event in events(path, "operation")} - {"all_reduce", "broadcast", "barrier"}
    assert operation == "w"


def test_a_bucket_says_which_server_adds_it_up(tmp_path):
    path = tmp_path / "run.json"
    run("-np", 2, "--strategy", "ps", "--servers", 2, "--timeline", path, "--", *WORKER, "placed")
    large = [message["args"] for message in events(path, "message") if message["args"]["bytes"] > 100]
    assert {end for args in large for end in (args["from"], args["to"])} == {"worker 0", "worker 1", "server 1"}
