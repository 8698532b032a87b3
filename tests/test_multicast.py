"""Strategies whose messages to many are multicasts, in real processes over 127.0.0.1."""

import json
import re
import sys

import pytest
from cli import launched as start
from job_workers.launch import Ranks, run

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and memfd"),
]

BYTES = 4_000_000


def group(number):
    """A group that no other test uses at the same time."""
    return f"239.77.3.{number}:{47_700 + number}"


def casting(number, strategy="ring-multicast", **more):
    return {"PACELINE_STRATEGY": strategy, "PACELINE_MULTICAST": group(number), **more}


@pytest.mark.parametrize(
    ("number", "strategy", "ranks", "transport"),
    [
        (1, "ring-multicast", 2, "auto"),
        (2, "ring-multicast", 3, "tcp"),
        (3, "ps-multicast", 3, "auto"),
        pytest.param(4, "ps-multicast-aggregation", 4, "tcp", marks=pytest.mark.slow),
    ],
)
def test_sums_are_those_of_unicasts(tmp_path, number, strategy, ranks, transport):
    env = casting(number, strategy, PACELINE_TRANSPORT=transport)
    with_it = run(tmp_path, ranks, "multicast", "sums", env=env)
    without = run(tmp_path, ranks, "multicast", "sums", env={"PACELINE_STRATEGY": strategy})
    assert len({one["digest"] for one in with_it + without}) == 1
    for one in with_it:
        assert one["choices"][0][1] == f"{strategy}, multicast to {group(number)}"
        assert one["multicast"]["address"] == group(number)
        assert one["multicast"]["datagrams"]["received"] > 0
        assert one["multicast"]["datagrams"]["strangers"] == 0
    for one in without:
        assert one["choices"][0][1] == f"{strategy}, its multicasts as unicasts"
        assert one["multicast"] is None


def test_a_multicast_is_sent_once(tmp_path):
    """In a ring each of W pieces goes W - 1 times to the next, and then once to all, not W - 1 times."""
    for ranks in (3, 4):
        with_it = run(tmp_path, ranks, "multicast", "once", env=casting(5))
        without = run(tmp_path, ranks, "multicast", "once", env={"PACELINE_STRATEGY": "ring-multicast"})
        rounds = 2 * (ranks - 1) / ranks
        for one, other in zip(with_it, without, strict=True):
            assert abs(one["sent"] - BYTES) < 8
            assert abs(other["sent"] - BYTES * rounds) < 8 * ranks
            assert abs(one["received"] - BYTES * rounds) < 8 * ranks


def test_a_network_that_loses_repeats_and_reorders(tmp_path):
    how = json.dumps({"lose": 0.2, "repeat": 0.2, "reorder": 0.2, "seed": 5})
    said = run(tmp_path, 3, "multicast", "once", env=casting(6, PACELINE_RUN_DISTURBANCE=how))
    for one in said:
        assert one["datagrams"]["repaired"] > 0
        assert one["datagrams"]["repeated"] > 0


def test_a_rank_that_is_late_is_waited_for(tmp_path):
    said = run(tmp_path, 3, "multicast", "late", env=casting(7, "ps-multicast"))
    assert all(one["multicast"]["kept"] == one["multicast"]["waiting"] == 0 for one in said)


@pytest.mark.parametrize("strategy", ["ring-multicast", pytest.param("ps-multicast", marks=pytest.mark.slow)])
def test_a_receiver_that_dies_is_named(tmp_path, strategy):
    with Ranks(tmp_path, 3, "multicast", "lose", "SIGKILL", env=casting(8, strategy)) as ranks:
        outcomes, pid = ranks.outcomes(30), ranks.pid(1)
    ended = next(one["ends_at"] for one in outcomes[1].said if "ends_at" in one)
    for rank in (0, 2):
        (error,) = [one for one in outcomes[rank].said if "error" in one]
        assert re.match(rf"rank 1 \(host [^ ]+, pid {pid}\) died", error["error"]), error
        assert error["at"] - ended < 2
        assert outcomes[rank].said[-1]["closed_in"] < 2


def test_ranks_that_were_told_of_different_groups(tmp_path):
    others = {1: {"PACELINE_MULTICAST": group(10)}}
    with Ranks(tmp_path, 2, "multicast", "once", env=casting(9), env_of=others) as ranks:
        outcomes = ranks.outcomes(30)
    for outcome in outcomes.values():
        assert outcome.code != 0
        assert "have different settings" in outcome.err and group(9) in outcome.err and group(10) in outcome.err


def test_servers_of_their_own_send_once_and_the_launcher_says_so(tmp_path):
    timeline = tmp_path / "run.json"
    options = ["-np", 3, "--strategy", "ps-multicast", "--multicast", group(11), "--verbose", "--timeline", timeline]
    done = start(*options, "--", sys.executable, "-m", "job_workers.multicast", "once", 500_000)
    assert done.returncode == 0, done.stderr
    assert f"all-reduces of every size: ps-multicast, multicast to {group(11)}" in done.stderr
    messages = [event for event in json.loads(timeline.read_text())["traceEvents"] if event.get("cat") == "message"]
    large = [
        event["args"] | {"tid": event["tid"]}
        for event in messages
        if event["ph"] == "b" and event["args"]["bytes"] > 100
    ]
    pulled = [one for one in large if one["from"] == "server 0"]
    assert [one["bytes"] for one in pulled if one["tid"] == 1] == [2_000_000], "one is sent"
    assert [one["to"] for one in pulled if one["tid"] == 1] == ["workers"]
    assert sorted(one["to"] for one in pulled if one["tid"] == 2) == ["worker 0", "worker 1", "worker 2"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--strategy", "ring", "--multicast", "239.77.0.0:47700"], ["has no effect on ring", "ring-multicast"]),
        (["--transport", "shm", "--multicast", "239.77.0.0:47700"], ["has no effect with transport shm"]),
        (["--multicast", "10.0.0.1:5"], ["--multicast: '10.0.0.1:5' is not a multicast group", "239.77.0.0:47700"]),
        (["--multicast", "239.77.0.0"], ["--multicast", "a port"]),
    ],
)
def test_what_makes_no_sense_is_refused(options, words):
    done = start("-np", 2, *options, "--", "true")
    assert done.returncode == 2
    assert all(word in done.stderr.replace("\n", " ") for word in words), done.stderr
    assert "Traceback" not in done.stderr
