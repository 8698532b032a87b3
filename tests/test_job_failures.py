"""paceline.job in real processes: every rank reports failures in time, and nothing remains."""

import re
import signal
import socket
import sys
import time

import cli
import pytest
from job_workers.launch import Ranks, left_over, outcomes_where_rank_1_forks

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and memfd"),
]

HOST = re.escape(socket.gethostname())
DEATH_S = 2.0


def raised(outcomes, rank, number=0):
    """The errors that a rank reported; the first counts."""
    errors = [said for said in outcomes[rank].said if "error" in said]
    assert errors, f"rank {rank} said nothing: {outcomes[rank]}"
    return errors[number]


def ended_at(outcomes, rank=1):
    return next(said["ends_at"] for said in outcomes[rank].said if "ends_at" in said)


@pytest.mark.parametrize(
    ("how", "code", "message"),
    [
        (
            "SIGKILL",
            -9,
            # A rank may learn of it in an operation, or between two.
            r"rank 1 \(host {host}, pid {pid}\) died \(connection [^;]*\); (rank \d was waiting for it in|so) "
            r"all_reduce of 'layer1.weight' \(float32\[10000\], sum; op 3[01]\)( cannot run)?$",
        ),
        ("_exit", 7, r"rank 1 \(host {host}, pid {pid}\) died"),
        (
            "exit",
            0,
            r"rank 1 \(host {host}, pid {pid}\) has left the job; .* all_reduce of 'layer1.weight' ",
        ),
        ("exception", 1, r"rank 1 \(host {host}, pid {pid}\) has left the job"),
        ("close", 0, r"rank 1 \(host {host}, pid {pid}\) has left the job"),
    ],
)
@pytest.mark.parametrize("transport", ["shm", pytest.param("tcp", marks=pytest.mark.slow)])
def test_the_end_of_a_rank_is_seen_within_two_seconds(tmp_path, how, code, message, transport):
    with Ranks(tmp_path, 3, "failures", "die_while_training", how, env={"PACELINE_TRANSPORT": transport}) as ranks:
        outcomes = ranks.outcomes(30)
        pid = ranks.pid(1)
    assert outcomes[1].code == code, outcomes[1]
    if how == "exception":
        assert "RuntimeError: out of cheese" in outcomes[1].err
    for rank in (0, 2):
        first, again, last = raised(outcomes, rank), raised(outcomes, rank, 1), outcomes[rank].said[-2]
        assert re.match(message.format(host=HOST, pid=pid), first["error"]), first
        assert first["at"] - ended_at(outcomes) < DEATH_S
        assert first["kind"] == again["kind"] == "JobError"
        cause = first["error"].partition("; ")[0]
        # Rank 1 may have completed the 30th before the others, and one of these may have left because of it.
        assert re.match(re.escape(cause) + r"(; rank [02] .*)?; so barrier \(op 3[12]\) cannot run$", again["error"]), (
            again
        )
        assert last["closed_in"] < 2.0
        assert outcomes[rank].code == 0


@pytest.mark.parametrize("how", ["SIGKILL", "close"])
def test_the_end_of_a_rank_whose_memory_others_read(tmp_path, how):
    with Ranks(tmp_path, 3, "failures", "die_while_training", how, 2_000_000) as ranks:
        outcomes = ranks.outcomes(30)
    for rank in (0, 2):
        first = raised(outcomes, rank)
        assert re.match(r"rank 1 \(.*\) (died|has left the job)", first["error"]), first
        assert first["at"] - ended_at(outcomes) < DEATH_S
        assert outcomes[rank].code == 0


def test_what_a_socket_did_not_take_goes_out_while_the_rank_does_something_else(tmp_path):
    with Ranks(tmp_path, 2, "failures", "tail", env={"PACELINE_TRANSPORT": "tcp"}) as ranks:
        outcomes = ranks.outcomes(40)
    took = [said["took_s"] for said in outcomes[1].said if "took_s" in said]
    assert len(took) == 3, outcomes
    assert max(took) < 2, took


def test_a_group_that_a_rank_destroys_too_early(tmp_path):
    with Ranks(tmp_path, 3, "failures", "destroy") as ranks:
        outcomes = ranks.outcomes(30)
    for rank in (1, 2):
        first = raised(outcomes, rank)
        assert "rank 0 has destroyed the communicator while operations were in flight" in first["error"], first
        assert first["at"] - first["begin"] < DEATH_S
    assert all(any(said.get("through") for said in outcome.said) for outcome in outcomes.values())


def test_a_rank_that_dies_before_it_calls(tmp_path):
    with Ranks(tmp_path, 4, "failures", "die_before_calling") as ranks:
        outcomes = ranks.outcomes(30)
    for rank in (0, 2, 3):
        first = raised(outcomes, rank)
        assert re.match(
            rf"rank 1 \(host {HOST}, pid \d+\) died \(.*\); .* broadcast of 'weights' \(float64\[5\], root 1; op 2\)",
            first["error"],
        ), first
        assert first["at"] - ended_at(outcomes) < DEATH_S


def test_a_rank_that_died_before_a_group_is_made(tmp_path):
    with Ranks(tmp_path, 3, "failures", "die_before_a_group_is_made") as ranks:
        outcomes = ranks.outcomes(30)
    for rank in (0, 2):
        first = raised(outcomes, rank)
        assert re.match(
            rf"rank 1 \(host {HOST}, pid \d+\) died \(.*\); .* barrier of 'first' \(op 1 of group new of ranks ",
            first["error"],
        ), first
        assert first["at"] - ended_at(outcomes, rank) < DEATH_S


@pytest.mark.parametrize("transport", [pytest.param("shm", marks=pytest.mark.slow), "tcp"])
def test_a_stopped_rank_is_reported_and_then_an_error(tmp_path, transport):
    env = {"PACELINE_TIMEOUT": "3", "PACELINE_TRANSPORT": transport}
    with Ranks(tmp_path, 3, "failures", "die_while_training", "SIGSTOP", env=env) as ranks:
        for rank in (0, 2):
            ranks.wait_for(rank, '"error"')
        ranks.processes[1].send_signal(signal.SIGKILL)
        outcomes = ranks.outcomes(30)
    stall = rf"waited \d s for rank 1 \(host {HOST}, pid \d+\) in .*; rank 1 is silent: stopped, or its host cannot be "
    for rank in (0, 2):
        first = raised(outcomes, rank)
        assert re.search(stall + r"reached: timeout after 3 s without progress$", first["error"]), first
        assert "'layer1.weight'" in first["error"]
        assert 2.5 < first["at"] - ended_at(outcomes) < 5.5
    # Before: who waits for whom, at least on one rank (the others may wait for one that waits).
    assert any(re.search(r"^paceline: rank \d has " + stall, outcomes[rank].err, re.M) for rank in (0, 2)), outcomes


def test_who_waits_for_a_stopped_rank_elsewhere_is_not_named_beside_it(tmp_path):
    with Ranks(tmp_path, 3, "failures", "stopped_elsewhere", env={"PACELINE_TIMEOUT": "3"}) as ranks:
        ranks.wait_for(0, '"error"')
        ranks.processes[1].send_signal(signal.SIGKILL)
        error = raised(ranks.outcomes(30), 0)["error"]
    assert re.search(
        r"for rank 1 \([^()]*\) in .*; rank 1 is silent: [^;]* cannot be reached: timeout after 3 s", error
    )


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_the_status_of_a_job_that_hangs_is_told_at_once(tmp_path, transport):
    env = {"PACELINE_TIMEOUT": "2", "PACELINE_TRANSPORT": transport}
    with Ranks(tmp_path, 2, "failures", "looked_at", env=env) as ranks:
        ranks.wait_for(0, '"error"')
        ranks.processes[1].send_signal(signal.SIGKILL)
        outcomes = ranks.outcomes(30)
    status = next(said for said in outcomes[0].said if "took_s" in said)
    assert status["took_s"] < 1, status
    assert len(status["in_flight"]) == 1 and 0 < status["sent"] < 40_000_000, status


def test_a_late_rank_is_reported_and_waited_for(tmp_path):
    with Ranks(tmp_path, 3, "failures", "late", "4", env={"PACELINE_TIMEOUT": "6"}) as ranks:
        outcomes = ranks.outcomes(30)
    for rank in (0, 2):
        assert raised(outcomes, rank)["kind"] == "none"
        report = (
            rf"paceline: rank {rank} has waited \d s for rank 1 \(host {HOST}, pid \d+\) in all_reduce of 'counters' "
        )
        report += r"\(int64\[5\], sum; op 1\); rank 1 is alive but has not called an op yet; "
        report += r"the limit is 6 s \(PACELINE_TIMEOUT or timeout=\)\n"
        assert re.search(report, outcomes[rank].err), outcomes[rank]
    assert outcomes[1].err == ""


@pytest.mark.parametrize("calls", [0, 7])
def test_operations_are_counted_as_the_script_counts_them(tmp_path, calls):
    # The ranks measure strategies when they make a group: hundreds of operations that no script has called.
    env = {"PACELINE_TIMEOUT": "2", "PACELINE_STRATEGY": ""}
    with Ranks(tmp_path, 2, "failures", "counted", calls, env=env) as ranks:
        outcomes = ranks.outcomes(60)
    reached = f"has called nothing after op {calls}:" if calls else "has not called an op yet:"
    mine, others = (raised(outcomes, 0, number)["error"] for number in (0, 1))
    assert f" in all_reduce (float32[4], sum; op {calls + 1}); rank 1 is alive but {reached}" in mine
    assert re.search(rf"all_reduce \(float32\[4\], sum; op {calls + 2} of group other of ranks \[0, 1\]\)", others), (
        others
    )


@pytest.mark.slow
def test_a_rank_that_is_too_late(tmp_path):
    with Ranks(tmp_path, 3, "failures", "late", "5", env={"PACELINE_TIMEOUT": "2"}) as ranks:
        outcomes = ranks.outcomes(30)
    for rank in range(3):
        assert "rank 1 is alive but has not called an op yet" in raised(outcomes, rank)["error"], outcomes[rank]


def test_ranks_that_call_different_things_all_say_what(tmp_path):
    with Ranks(tmp_path, 3, "failures", "mismatch", env={"PACELINE_TIMEOUT": "8"}) as ranks:
        outcomes = ranks.outcomes(90)
    expected = {
        "length": ["ranks disagree on op 1 of group length of ranks [0, 1, 2] of 'w': ", "float32[11]", "float32[10]"],
        "dtype": ["int32", "float32"],
        "op": ["max", "sum"],
        "call": ["barrier", "all_reduce"],
        "root": ["root 1", "root 2"],
        "reduce root": ["root 1", "root 2"],
        "counts": ["float64[10]", "float64[9]"],
        "own root": ["ranks disagree on op 1", "broadcast (float32[10], root"],
        "same sum": ["all_gather (float64[12])", "different counts"],
        "scattered": ["float64[4] for rank 1", "float64[5] from rank 0"],
        "long": ["float64[300000]", "float64[299999]"],
        "nothing": ["(float32, sum)", "float32[10]"],
        "strategy": ["different strategies"],
        "transfer": ["float64[3]", "float32[4]"],
    }
    for case, words in expected.items():
        for rank in range(3):
            said = next(said for said in outcomes[rank].said if said.get("case") == case)
            assert said["kind"] in ("JobError", "InvalidArgumentError"), (case, rank, said)
            assert all(word in said["error"] for word in words), (case, rank, said)
            assert re.search(r"rank[s]? \d", said["error"]), (case, rank, said)
            assert said["kind"] == "JobError"
            assert said["at"] - said["begin"] < 5, (case, rank, said)
    assert all(outcome.code == 0 and outcome.said[-1]["error"] == "" for outcome in outcomes.values())


def test_a_forked_child_is_no_rank_and_does_not_hide_a_death(tmp_path):
    outcomes = outcomes_where_rank_1_forks(tmp_path, limit_s=30)
    refusals = [said for said in outcomes[1].said if said.get("child")]
    assert len(refusals) == 2
    assert all("this process was forked from rank 1, and is not itself a rank" in said["error"] for said in refusals)
    for rank in (0, 2):
        first = raised(outcomes, rank)
        assert re.match(r"rank 1 \(.*\) died", first["error"]), first
        assert first["at"] - ended_at(outcomes) < DEATH_S


@pytest.mark.parametrize("way", ["async", "short"])
def test_ctrl_c_ends_a_wait(tmp_path, way):
    with Ranks(tmp_path, 2, "failures", "interrupted", way) as ranks:
        ranks.wait_for(0, "waiting")
        time.sleep(0.3)
        sent = time.monotonic()
        ranks.processes[0].send_signal(signal.SIGINT)
        ranks.wait_for(0, "interrupted_after")
        assert time.monotonic() - sent < 1.0
        outcomes = ranks.outcomes(30)
    for rank in (0, 1):
        said = raised(outcomes, rank)
        assert said["kind"] == ("none" if way == "async" else "JobError"), said
        assert way == "async" or "interrupted" in said["error"]


def test_the_launcher_names_the_rank_that_was_killed():
    worker = (sys.executable, "-m", "job_workers.failures", "die_while_training", "SIGKILL")
    env = {"JOB_TEST_MARK": "killed-under-the-launcher"}
    result = cli.launched("-np", 3, "--strategy", "ring", "--", *worker, env=env)
    assert result.returncode == 1
    pid = re.search(rf"paceline: error: rank 1 \(host {HOST}, pid (\d+)\) was killed by SIGKILL", result.stderr)[1]
    for rank in (0, 2):
        error = (
            rf'\[rank {rank}\] {{"kind": "JobError", "error": "rank 1 \(host {HOST}, pid {pid}\) died .*layer1.weight'
        )
        assert re.search(error, result.stdout), result.stdout
    assert not left_over(env["JOB_TEST_MARK"])
