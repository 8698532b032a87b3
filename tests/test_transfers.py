"""What was begun on both sides is completed, whatever the partner does next and however slow the network is."""

import json
import re
import signal
import sys
import time

import pytest
from emulate_workers.here import skip_where_forbidden
from job_workers.launch import Ranks
from paceline_lab import emulate

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and memfd"),
]


def errors(said):
    return [one["error"] for one in said if one.get("error")]


def ended_in(outcome):
    return next(one["ended_in"] for one in outcome.said if "ended_in" in one)


@pytest.mark.parametrize("transport", ["tcp", "shm", "grpc"])
@pytest.mark.parametrize("way", ["send", "async", "anybody"])
def test_what_was_sent_arrives_after_its_sender_has_left(tmp_path, transport, way):
    env = {"PACELINE_TRANSPORT": transport}
    # It has waited for longer than what comes late is waited for after a rank has left.
    with Ranks(tmp_path, 2, "partners", "transfer", 2, way, 2.6, env=env) as ranks:
        outcomes = ranks.outcomes(30)
    assert all(errors(outcomes[rank].said) == [] for rank in (0, 1)), outcomes
    assert "took_s" in outcomes[1].out, outcomes


def test_what_was_sent_arrives_at_a_rank_that_was_stopped_meanwhile(tmp_path):
    env = {"PACELINE_TRANSPORT": "tcp", "PACELINE_TIMEOUT": "20"}
    with Ranks(tmp_path, 2, "partners", "transfer", 1, "send", 1, env=env) as ranks:
        ranks.wait_for(1, "waiting")
        ranks.processes[1].send_signal(signal.SIGSTOP)
        ranks.wait_for(0, "closed_in")
        # Everything is with the system of rank 1, or on its way, and the sender is no more.
        ranks.processes[0].wait(10)
        time.sleep(2.5)
        ranks.processes[1].send_signal(signal.SIGCONT)
        outcomes = ranks.outcomes(30)
    assert errors(outcomes[1].said) == [], outcomes


@pytest.mark.parametrize("transport", ["tcp", "shm"])
@pytest.mark.parametrize("call", ["all_reduce", "broadcast"])
def test_a_collective_is_completed_with_a_rank_that_leaves_without_waiting_for_it(tmp_path, transport, call):
    with Ranks(tmp_path, 3, "partners", "collective", call, 1_000_000, env={"PACELINE_TRANSPORT": transport}) as ranks:
        outcomes = ranks.outcomes(30)
    assert all(errors(outcomes[rank].said) == [] for rank in range(3)), outcomes


@pytest.mark.parametrize("transport", ["tcp", "shm", pytest.param("grpc", marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", ["close", "end", "sys.exit", "exception", "all_reduce"])
def test_what_was_begun_is_completed_though_the_partner_begins_later(tmp_path, transport, how):
    with Ranks(tmp_path, 2, "partners", "begun", 8, how, 3, env={"PACELINE_TRANSPORT": transport}) as ranks:
        outcomes = ranks.outcomes(60)
    assert {"received": 1_000_000} in outcomes[1].said, outcomes
    assert errors(outcomes[1].said) == []
    assert outcomes[0].code == (1 if how == "exception" else 0)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_large_message_arrives_after_a_long_wait_at_its_senders_end(tmp_path, transport):
    with Ranks(tmp_path, 2, "partners", "begun", 100, "end", 15, env={"PACELINE_TRANSPORT": transport}) as ranks:
        outcomes = ranks.outcomes(90)
    assert {"received": 12_500_000} in outcomes[1].said, outcomes
    assert re.search(r"rank 0 has waited \d+ s for rank 1 \(.*\) in send #1 to rank 1 \(", outcomes[0].err)


def test_what_was_to_be_received_is_received_before_a_rank_ends(tmp_path):
    with Ranks(tmp_path, 2, "partners", "receives_and_ends") as ranks:
        outcomes = ranks.outcomes(60)
    assert {"complete": True} in outcomes[0].said, outcomes


def test_ranks_that_end_do_not_wait_for_what_neither_begins(tmp_path):
    with Ranks(tmp_path, 2, "partners", "never_begun", 0) as ranks:
        outcomes = ranks.outcomes(60)
    assert all(ended_in(outcomes[rank]) < 8 for rank in (0, 1)), outcomes


def test_a_rank_at_its_end_waits_within_the_limit_and_says_for_whom(tmp_path):
    with Ranks(tmp_path, 2, "partners", "never_begun", 9, env={"PACELINE_TIMEOUT": "3"}) as ranks:
        outcomes = ranks.outcomes(60)
    assert 2 < ended_in(outcomes[0]) < 15, outcomes
    said = r"rank 0 has waited \d s for rank 1 \(.*\) in send #1 to rank 1 .*; rank 1 is alive but has not received it"
    assert re.search(said, outcomes[0].err), outcomes


def test_groups_made_in_different_orders_are_named_before_the_limit(tmp_path):
    # Ranks that measure strategies wait for each other when they make a group.
    env = {"PACELINE_TIMEOUT": "60", "PACELINE_STRATEGY": ""}
    with Ranks(tmp_path, 2, "partners", "other_orders", env=env) as ranks:
        outcomes = ranks.outcomes(50)
    said = [error for rank in (0, 1) for error in errors(outcomes[rank].said)]
    names = r"rank (\d) is making group [ab] of ranks \[0, 1\], rank \d is making group [ab] of ranks \[0, 1\]"
    assert any(re.search("ranks make groups in different orders: " + names, error) for error in said), outcomes


@pytest.mark.parametrize("transport", ["tcp", pytest.param("shm", marks=pytest.mark.slow)])
def test_a_transfer_that_a_rank_never_sent_is_not_waited_for(tmp_path, transport):
    with Ranks(tmp_path, 2, "partners", "never_sent", env={"PACELINE_TRANSPORT": transport}) as ranks:
        outcomes = ranks.outcomes(30)
    first, second = (next(one for one in outcomes[1].said if one.get("number") == number) for number in (1, 2))
    assert first["kind"] == "none"
    assert re.match(
        r"rank 0 \(.*\) has left the job; rank 1 was waiting for it in recv #\d+ from rank 0 \(", second["error"]
    ), second
    assert second["at"] - second["begin"] < 2


def slow(workers, mbit, kind, *words, servers=0, strategy="ring", limit_s=6, env=None):
    """What the ranks of a job on an emulated cluster said, with a time limit below the duration of a transfer."""
    skip_where_forbidden()
    collected = emulate.Collected()
    environ = {"PACELINE_TIMEOUT": str(limit_s), "OMP_NUM_THREADS": "1", **(env or {})}
    command = [sys.executable, "-m", "job_workers.partners", kind, *map(str, words)]
    with emulate.cluster(workers=workers, servers=servers, bandwidth_bps=mbit * 1e6, realtime=False) as cluster:
        more = {"servers": servers} if servers else {}
        code = cluster.run(command, strategy=strategy, env=environ, output=collected, limit_s=120, **more)
    said = [[json.loads(line) for line in collected.stdout(rank).splitlines()] for rank in range(workers)]
    assert code == 0
    assert [errors(one) for one in said] == [[]] * workers
    return said


@pytest.fixture
def beside_workers(tmp_path, monkeypatch):
    from emulate_workers.here import prepare

    prepare(tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.usefixtures("beside_workers")
class TestSlowNetworks:
    """The limit counts from the last byte that moved."""

    @pytest.mark.parametrize(
        ("way", "transport"), [("send", "tcp"), ("async", "tcp"), ("anybody", "tcp"), ("send", "grpc")]
    )
    def test_a_transfer_longer_than_the_limit(self, way, transport):
        said = slow(2, 8, "transfer", 10, way, env={"PACELINE_TRANSPORT": transport}, limit_s=4)
        assert next(one["took_s"] for one in said[1] if "took_s" in one) > 8

    @pytest.mark.parametrize("transport", ["tcp", "grpc"])
    def test_a_transfer_of_which_a_fragment_takes_longer_than_the_limit(self, transport):
        # 128 KiB at 1 Mbit/s take 1.05 s.
        slow(2, 1, "transfer", 1, env={"PACELINE_TRANSPORT": transport}, limit_s=0.7)

    @pytest.mark.parametrize("way", ["async", "sync"])
    def test_a_transfer_behind_a_large_one_of_another_group(self, way):
        said = slow(2, 2, "behind", 4, way)
        assert max(one["took_s"] for rank in said for one in rank if "took_s" in one) > 12

    def test_a_transfer_through_a_tree(self):
        said = slow(3, 2, "behind", 4, "tree")
        assert max(one["took_s"] for rank in said for one in rank if "took_s" in one) > 12

    def test_a_transfer_to_servers_and_their_start(self):
        slow(2, 2, "behind", 4, "sync", servers=1, strategy="ps")
