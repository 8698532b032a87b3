"""Elastic jobs of real processes: whoever dies, wherever, the weights are those of a run in which nobody does."""

import functools
import json
import os
import random
import signal
import sys
import threading
import time

import cli
import pytest
from elastic_workers import model
from elastic_workers.launch import finish, run, start

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

# In a ring of three the order of additions depends on what is fused; the default's plan begins steps after a world.
SAME_ORDER = ("--coordinator", "negotiate")


@functools.cache
def expected(steps, ranks):
    """The weights without any deaths: computed for two ranks, whose sums have one order; of a run for more."""
    if ranks == 2:
        return model.expected(steps, ranks)
    return run("-np", str(ranks), *SAME_ORDER, steps=steps).ends[0]["digest"]


def trained(ran, steps, ranks):
    """All ranks have made all steps, once, and have the weights that they would have had anyway."""
    assert ran.code == 0, ran.text
    assert sorted(result["ends"] for result in ran.ends) == list(range(ranks)), ran.text
    assert {(result["step"], result["done"]) for result in ran.ends} == {(steps, steps)}, ran.text
    assert {result["digest"] for result in ran.ends} == {expected(steps, ranks)}, ran.text


def test_a_rank_is_killed_and_the_weights_are_as_without():
    ran = run("-np", "2", steps=30, deaths=[{"worker": 0, "at": "backward", "step": 12}])
    trained(ran, 30, 2)
    assert "slot 0 (host " in ran.text and "was killed by SIGKILL; it is replaced" in ran.text
    assert "continuing with 2 ranks from commit 1" in ran.text
    again = [result for result in ran.worlds if result["step"]]
    # The survivor, which has the commit, has become rank 0; all of its steps but the one under way are kept.
    assert {(result["worker"], result["rank"], result["resets"]) for result in again} == {(1, 0, 1), (2, 1, 0)}
    assert all(12 <= result["step"] <= 13 for result in again)


def test_an_exception_of_the_script_ends_the_job():
    ran = run("-np", "2", steps=30, deaths=[{"worker": 1, "at": "backward", "step": 3, "raise": "no such file"}])
    assert ran.code == 1
    assert "exited with code 1: ValueError: no such file; 1 slot left, and --min-np is 2" in ran.text
    assert "another is started" not in ran.text and len(ran.worlds) == 2


def test_elastic_end_a_replacement_comes_when_training_has_ended():
    """Rank 0 goes on alone, finishes, and saves its model, while the process in place of rank 1 asks for a world."""
    death = {"worker": 1, "at": "backward", "step": 4}
    patient = {"PACELINE_START_TIMEOUT": "200"}
    ran = run("-np", "2", "--min-np", "1", env=patient, steps=5, after=25, deaths=[death])
    assert ran.code == 0, ran.text
    assert [(result["worker"], result["size"], result["step"]) for result in ran.ends] == [(0, 1, 5)], ran.text
    assert "it is replaced" in ran.text and "error" not in ran.text, ran.text


@pytest.mark.slow
@pytest.mark.parametrize(
    "deaths",
    [
        [{"worker": 1, "at": "before init"}],
        [{"worker": 0, "at": "after init"}],
        [{"worker": 0, "at": "before sync"}],
        [{"worker": 1, "at": "after sync"}],
        [{"worker": 0, "at": "before save", "step": 5}],
        [{"worker": 2, "at": "after save", "step": 5}],
        [{"worker": 0, "at": "backward", "step": 5}, {"worker": 2, "at": "backward", "step": 5}],  # two at once
        [{"worker": 0, "at": "backward", "step": 5}, {"worker": 3, "at": "before sync"}],  # its successor, too
        [{"worker": 1, "at": "backward", "step": 5}, {"worker": 3, "at": "after init"}],
        [{"worker": 1, "at": "backward", "step": 5}, {"worker": 0, "at": "before sync", "step": 1}],
        [{"worker": 2, "at": "before save", "step": 20}],  # the last commit of all
    ],
    ids=lambda deaths: ", ".join(f"{death['worker']} {death['at']}" for death in deaths),
)
def test_kills_at_any_point(deaths):
    trained(run("-np", "3", *SAME_ORDER, steps=20, deaths=deaths), 20, 3)


@pytest.mark.slow
def test_commits_that_are_rare_lose_the_steps_since_the_last():
    ran = run("-np", "2", steps=30, every=5, deaths=[{"worker": 1, "at": "backward", "step": 13}])
    trained(ran, 30, 2)
    assert {result["step"] for result in ran.worlds if result["step"]} == {10}


@pytest.mark.slow
def test_ten_kills_in_five_hundred_steps():
    """At moments that nobody has chosen; nothing is left in those that survive."""
    process = start("-np", "3", *SAME_ORDER, steps=500, pause=0.05)
    random_source = random.Random(8)
    seen, lines, killed = {}, [], []
    changed = threading.Condition()

    def read():
        for line in process.stdout:
            with changed:
                lines.append(line)
                if line.startswith("{"):
                    answer = json.loads(line)
                    if "world" in answer:
                        seen[answer["pid"]] = answer
                changed.notify_all()
        with changed:
            process.over = True
            changed.notify_all()

    reader = threading.Thread(target=read)
    reader.start()
    worlds = 0
    while len(killed) < 10:
        worlds += 3
        with changed:  # all three are in a world
            assert changed.wait_for(lambda n=worlds: sum('"world"' in line for line in lines) >= n, 120), "".join(lines)
        time.sleep(random_source.uniform(0, 1.5))
        living = [pid for pid in seen if pid not in killed]
        killed.append(random_source.choice(living[-3:]))
        os.kill(killed[-1], signal.SIGKILL)
    reader.join(240)
    process.wait(60)
    text = "".join(lines)
    answer = [json.loads(line) for line in lines if line.startswith("{")]
    ends = [each for each in answer if "ends" in each]
    assert process.returncode == 0 and text.count("was killed by SIGKILL; it is replaced") == 10, text
    assert {(each["step"], each["done"], each["digest"]) for each in ends} == {(500, 500, expected(500, 3))}, text
    for pid in {each["pid"] for each in answer}:
        held = [(each["files"], each["threads"]) for each in answer if each["pid"] == pid and "world" in each]
        assert len(set(held[1:])) <= 1, (pid, held)


@pytest.mark.slow
def test_a_stopped_rank_is_killed_after_the_limit():
    death = {"worker": 1, "at": "backward", "step": 5, "signal": signal.SIGSTOP}
    ran = run("-np", "2", "--timeout", "3", steps=20, deaths=[death])
    trained(ran, 20, 2)
    assert (
        "the process in slot 1 of localhost has not come back within 13 s after its world ended; it is killed"
        in ran.text
    )


@pytest.mark.slow
def test_all_at_once_is_the_end():
    deaths = [{"worker": worker, "at": "backward", "step": 5} for worker in range(2)]
    ran = run("-np", "2", steps=20, deaths=deaths)
    assert ran.code == 1 and "all ranks that held the last commit have died" in ran.text


@pytest.mark.slow
def test_with_fewer_at_once_and_with_all_when_the_next_has_come():
    death = {"worker": 1, "at": "backward", "step": 5}
    ran = run("-np", "2", "--min-np", "1", steps=200, pause=0.1, deaths=[death])
    assert ran.code == 0, ran.text
    assert [result["size"] for result in ran.ends] == [2, 2], ran.text
    assert [result["world"] for result in ran.worlds if result["worker"] == 0] == [2, 1, 2]
    assert len({result["digest"] for result in ran.ends}) == 1
    assert {result["done"] for result in ran.ends} == {200}, "no step was lost or made twice"


@pytest.mark.slow
def test_the_limit_of_resets_and_a_script_that_always_dies():
    deaths = [{"worker": worker, "at": "backward", "step": 2 + worker} for worker in range(8)]
    ran = run("-np", "2", "--reset-limit", "2", steps=20, deaths=deaths)
    assert ran.code == 1 and "the job has been reset 2 times, which is --reset-limit" in ran.text
    ran = run("-np", "1", steps=20, deaths=[{"worker": worker, "at": "before init"} for worker in range(9)])
    assert ran.code == 1 and "the 5th time without a commit" in ran.text, ran.text


@pytest.mark.slow
def test_a_discovery_script_adds_and_removes_slots(tmp_path):
    offered = tmp_path / "slots"
    offered.write_text("localhost:1")
    process = start(*("-np", "1", "--max-np", "3", "--host-discovery-script", f"cat {offered}"), steps=400, pause=0.05)
    values = []

    def worlds_of(size):
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            line = process.stdout.readline()
            values.append(line)
            if f'"world": {size}' in line:
                return
        raise AssertionError("".join(values))

    worlds_of(1)
    offered.write_text("localhost:2")
    worlds_of(2)
    offered.write_text("localhost:1")
    worlds_of(1)
    ran = finish(process)
    assert ran.code == 0, "".join(values) + ran.text
    assert [(end["size"], end["done"]) for end in ran.ends] == [(1, 400)]


@pytest.mark.slow
@pytest.mark.parametrize("pull", ["step", "layer"])
def test_parameter_servers_are_roles_of_the_ranks(pull):
    options = ("-np", "2", "--strategy", "ps", "--servers", "2", "--pull", pull)
    ran = run(*options, steps=30, deaths=[{"worker": 0, "at": "backward", "step": 12}])
    trained(ran, 30, 2)


@pytest.mark.slow
@pytest.mark.parametrize("coordinator", ["negotiate", "partitioned"])
def test_other_coordinators(coordinator):
    ran = run("-np", "2", "--coordinator", coordinator, steps=30, deaths=[{"worker": 0, "at": "backward", "step": 12}])
    trained(ran, 30, 2)


def test_what_cannot_be_sent_is_named():
    script = (
        "import threading, paceline.torch as hvd; hvd.init();"
        "hvd.elastic.ObjectState(step=0, lock=threading.Lock()).sync()"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    done = cli.ended(sys.executable, "-c", script, env=env, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("the elastic state's lock: lock cannot be sent to other ranks: cannot pickle"), (
        done.stderr
    )
