"""Horovod's environment variables, and names and places, without a job."""

import json
import os

import pytest
from hvd_workers import movements
from hvd_workers.launch import RankError, run
from paceline.errors import InvalidArgumentError
from paceline.hvd.environment import Knobs, timeline_path
from paceline.hvd.partition import Cores, share
from paceline.hvd.world import places
from paceline.job.settings import Settings
from paceline.torch.hvd.grouping import grouped


def test_without_variables_all_is_as_documented():
    assert Knobs.from_environment({}) == Knobs()
    assert Knobs.from_environment(dict.fromkeys(("HOROVOD_CYCLE_TIME", "HOROVOD_AUTOTUNE"), "")) == Knobs()


def test_every_variable_has_its_meaning():
    knobs = Knobs.from_environment(
        {
            "HOROVOD_FUSION_THRESHOLD": "1000",
            "HOROVOD_CYCLE_TIME": "2.5",
            "HOROVOD_CACHE_CAPACITY": "7",
            "HOROVOD_STALL_CHECK_TIME_SECONDS": "30",
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "90",
            "HOROVOD_THREAD_AFFINITY": "0, 0",
            "HOROVOD_HIERARCHICAL_ALLREDUCE": "1",
        }
    )
    assert (knobs.threshold, knobs.cycle_time_s, knobs.capacity) == (1000, 0.0025, 7)
    assert (knobs.warn_after_s, knobs.give_up_after_s, knobs.cores, knobs.hierarchical) == (30.0, 90.0, (0, 0), True)
    assert knobs.core(1, 2) == 0
    with pytest.raises(InvalidArgumentError, match="names 2 cores for 3 local ranks"):
        knobs.core(0, 3)
    never = Knobs.from_environment({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0"})
    assert never.give_up_after_s is None and never.warn_after_s == 60.0
    silent = Knobs.from_environment({"HOROVOD_STALL_CHECK_DISABLE": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0"})
    assert silent.warn_after_s is None and silent.give_up_after_s is None
    assert timeline_path({"HOROVOD_TIMELINE": "/tmp/t.json"}) == "/tmp/t.json" and timeline_path({}) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "64MB"),
        ("HOROVOD_FUSION_THRESHOLD", "-1"),
        ("HOROVOD_FUSION_THRESHOLD", "9" * 30),
        ("HOROVOD_CYCLE_TIME", "-0.5"),
        ("HOROVOD_CYCLE_TIME", "nan"),
        ("HOROVOD_CYCLE_TIME", "1ms"),
        ("HOROVOD_CACHE_CAPACITY", "1.5"),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "soon"),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "0"),
        ("HOROVOD_STALL_CHECK_DISABLE", "yes"),
        ("HOROVOD_THREAD_AFFINITY", "0,x"),
        ("HOROVOD_THREAD_AFFINITY", str(os.cpu_count())),
        ("HOROVOD_HIERARCHICAL_ALLREDUCE", "2"),
        ("HOROVOD_AUTOTUNE", "1"),
        ("HOROVOD_ELASTIC", "1"),
        ("HOROVOD_HIERARCHICAL_ALLGATHER", "1"),
        ("HOROVOD_TORUS_ALLREDUCE", "1"),
        ("HOROVOD_CONTROLLER", "mpi"),
        ("HOROVOD_CPU_OPERATIONS", "gloo"),
        ("HOROVOD_GLOO_IFACE", "eth0"),
    ],
)
def test_what_cannot_be_is_refused_with_its_name_and_a_remedy(name, value):
    with pytest.raises(InvalidArgumentError) as result:
        Knobs.from_environment({name: value})
    text = str(result.value)
    assert text.startswith(f"{name}: ") and value[:80] in text
    assert result.value.remedy.startswith((f"{name}=", f"unset {name}", "PACELINE_"))


def test_a_time_that_has_no_effect_is_refused():
    with pytest.raises(InvalidArgumentError, match="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS: has no effect"):
        Knobs.from_environment({"HOROVOD_STALL_CHECK_DISABLE": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "9"})


def test_variables_of_horovods_build_and_launcher_are_let_be():
    names = ("WITH_PYTORCH", "RANK", "SIZE", "HOSTNAME", "LOG_LEVEL", "MPI_THREADS_DISABLE", "GPU_OPERATIONS")
    assert Knobs.from_environment({f"HOROVOD_{name}": "1" for name in names}) == Knobs()


@pytest.mark.process
def test_ranks_heed_the_variables(tmp_path):
    run(2, movements.barriers, env={"HOROVOD_THREAD_AFFINITY": "0,1", "HOROVOD_HIERARCHICAL_ALLREDUCE": "1"})
    run(2, movements.barriers, env={"HOROVOD_HIERARCHICAL_ALLREDUCE": "1", "PACELINE_STRATEGY": ""})
    with pytest.raises(RankError, match="InvalidArgumentError: HOROVOD_AUTOTUNE: '1' is not supported"):
        run(1, movements.barriers, env={"HOROVOD_AUTOTUNE": "1"})
    with pytest.raises(
        RankError, match="InvalidArgumentError: HOROVOD_THREAD_AFFINITY=0: names 1 cores for 2 local ranks"
    ):
        run(2, movements.barriers, env={"HOROVOD_THREAD_AFFINITY": "0"})
    path = tmp_path / "timeline.json"
    run(2, movements.barriers, env={"HOROVOD_TIMELINE": str(path)})
    assert [entry.name for entry in tmp_path.iterdir()] == ["timeline.json"]
    events = json.loads(path.read_text())["traceEvents"]
    assert {event["pid"] for event in events if event.get("cat") == "tensor"} == {1, 2}


@pytest.mark.process
def test_a_timeline_grows_while_the_job_runs(tmp_path):
    run(2, movements.live_timeline, str(tmp_path / "timeline.json"))
    assert [entry.name for entry in tmp_path.iterdir()] == ["timeline.json"]


def test_places_of_ranks():
    one = [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2)]
    values = [places(rank, one) for rank in range(5)]
    assert [(p.local_rank, p.local_size, p.cross_rank, p.cross_size) for p in values] == [
        (0, 2, 0, 2),
        (1, 2, 0, 2),
        (0, 3, 1, 2),
        (1, 3, 1, 2),
        (2, 3, 0, 1),
    ]
    assert not values[0].homogeneous
    some = [("a", 3), ("a", 1)]  # of a world of some ranks
    assert [places(rank, some).local_rank for rank in range(2)] == [1, 0]
    assert places(1, [("a", None), ("a", 0)]).local_rank == 1


def test_groups_of_parameters():
    words = ["a", "b", "c", "d", "e"]
    assert grouped(2, words) == [("a", "b", "c"), ("d", "e")]
    assert grouped(7, words) == [(word,) for word in words]
    assert grouped([["b", "x"], ["e", "a"]], words) == [("b",), ("e", "a"), ("c",), ("d",)]
    assert grouped(None, words) == []


def test_a_coordinator_has_a_name_and_a_use():
    assert Settings.from_environment({"PACELINE_COORDINATOR": "topo"}).coordinator == "graph"
    assert Settings.from_environment({"PACELINE_COORDINATOR": "negotiate", "PACELINE_STRATEGY": "ps"}).coordinator
    with pytest.raises(InvalidArgumentError, match="try: graph"):
        Settings.from_environment({"PACELINE_COORDINATOR": "grpah"})
    with pytest.raises(InvalidArgumentError, match="graph plans all-reduces among ranks, and ps has servers"):
        Settings.from_environment({"PACELINE_COORDINATOR": "graph", "PACELINE_STRATEGY": "ps"})
    with pytest.raises(InvalidArgumentError, match="coordinator: nonblocking has no effect"):
        Settings.from_environment({"PACELINE_COORDINATOR": "nbcs"}).refuse_coordinator()


def test_cores_are_parted_among_ranks_and_their_threads():
    assert share([0, 1, 2, 3, 8, 9, 10, 11], 1, 2) == Cores(8, (10, 11), (9,))
    assert share([4, 5], 0, 1) == Cores(4, (5,), (5,))
    assert share([0, 1, 2], 2, 3) is None
