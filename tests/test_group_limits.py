"""How long ranks wait for one that pauses, what says so, and how a wait is reported."""

import re
import sys
import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from job_workers.launch import Ranks
from paceline.errors import JobError
from paceline.hvd.environment import Knobs
from paceline.job.settings import Settings
from paceline.job.waiting import WaitReports
from paceline.torch.backend import monitored_barrier
from paceline.torch.backend.group import explicit
from paceline.torch.backend.store_exchange import StoreExchange
from torch_workers import limits
from torch_workers.launch import RankError, run

DEFAULT_S = 1800.0
SHORT_S, PAUSE_S = 9.0, 4.0
"""A limit, and a pause within it that is long enough to be reported: after a third of the limit."""
SHORT = {"PACELINE_TIMEOUT": str(SHORT_S)}


JOINING = "the limit is 6 s (PACELINE_START_TIMEOUT or timeout=)"


@pytest.mark.parametrize(
    ("environ", "keyword", "limit_s", "start_s"),
    [
        ({}, None, DEFAULT_S, DEFAULT_S),
        ({"PACELINE_TIMEOUT": "7"}, None, 7.0, 60.0),
        ({"PACELINE_TIMEOUT": "700"}, None, 700.0, 700.0),
        ({"PACELINE_TIMEOUT": "7"}, 8.0, 8.0, 60.0),
        ({"PACELINE_TIMEOUT": "7", "PACELINE_START_TIMEOUT": "3"}, None, 7.0, 3.0),
        ({"PACELINE_START_TIMEOUT": "3"}, 1801.0, 1801.0, 3.0),
    ],
)
def test_what_is_said_first_holds(environ, keyword, limit_s, start_s):
    settings = Settings.from_environment(environ, timeout_s=keyword)
    assert (settings.timeout_s, settings.start_limit_s) == (limit_s, start_s)


def test_the_default_of_torch_counts_as_not_given():
    assert explicit(dist.constants.default_pg_timeout) is None
    assert explicit(timedelta(seconds=DEFAULT_S)) is None
    assert [explicit(timedelta(seconds=seconds)) for seconds in (5, 1799, 1800.999877)] == [5.0, 1799.0, 1801.0]


def test_horovods_variable_holds_and_without_it_the_limit_if_it_is_longer():
    given = Knobs.from_environment({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "20"})
    never = Knobs.from_environment({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0"})
    for limit_s, default_s in ((5.0, 600.0), (DEFAULT_S, DEFAULT_S)):
        assert (given.give_up_s(limit_s), never.give_up_s(limit_s)) == (20.0, None)
        assert Knobs.from_environment({}).give_up_s(limit_s) == default_s


@pytest.mark.parametrize(("limit_s", "seconds"), [(DEFAULT_S, [10, 20, 40, 80, 160]), (9.0, [3, 6])])
def test_the_distances_of_reports_grow(capsys, limit_s, seconds):
    now = [0]
    reports = WaitReports(limit_s, "timeout=", clock=lambda: now[0])
    for now[0] in range(min(200, int(limit_s))):
        reports.report(lambda waited: f"rank 0 has waited {waited} for rank 1")
    said = [f"paceline: rank 0 has waited {at} s for rank 1; the limit is {limit_s:.0f} s (timeout=)" for at in seconds]
    assert capsys.readouterr().err.splitlines() == said


def test_a_rank_that_comes_late_is_reported_by_the_first_that_waits(capfd):
    store, blobs = dist.HashStore(), {}

    def come(rank, after_s):
        time.sleep(after_s)
        blobs[rank] = StoreExchange(store, rank, 3, 6.0)(b"%d" % rank)

    threads = [threading.Thread(target=come, args=(rank, 2.5 * (rank == 0))) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert blobs == {rank: [b"0", b"1", b"2"] for rank in range(3)}
    said = f"paceline: rank 1 has waited 2 s for rank 0 of 3 to call init_process_group; {JOINING}\n"
    assert capfd.readouterr().err == said


def test_ranks_that_never_come_are_named():
    with pytest.raises(JobError, match=r"rank 1 has waited 0\.2 s for ranks 0, 2 of 3 to call init_process_group"):
        StoreExchange(dist.HashStore(), 1, 3, 0.2)(b"")


class Healthy:
    def check(self):
        pass


def test_a_monitored_barrier_reports_who_is_missing(capfd):
    store = dist.HashStore()
    late = threading.Timer(2.6, monitored_barrier.meet, (store, 2, 3, 6.0, Healthy()), {"every": False})
    here = threading.Thread(target=monitored_barrier.meet, args=(store, 1, 3, 6.0, Healthy()), kwargs={"every": False})
    late.start()
    here.start()
    monitored_barrier.meet(store, 0, 3, 6.0, Healthy(), every=False)
    late.join()
    here.join()
    said = capfd.readouterr().err
    assert (
        "rank 0 has waited 2 s for rank 2 in monitored_barrier; the limit is 6 s (timeout= or PACELINE_TIMEOUT)\n"
        in said
    ), said


def test_a_report_of_a_wait_is_one_write(monkeypatch):
    """So that the lines of several threads do not run into each other."""
    writes = []
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=writes.append))
    reports = WaitReports(6.0, "timeout=", clock=iter([0.0, 3.0, 3.0, 3.0]).__next__)
    reports.report(lambda waited: f"rank 0 has waited {waited} for rank 2")
    assert writes == ["paceline: rank 0 has waited 3 s for rank 2; the limit is 6 s (timeout=)\n"]


EXPLICIT = timedelta(seconds=DEFAULT_S)


@pytest.mark.process
@pytest.mark.parametrize(
    ("timeout", "variable", "limit_s"),
    [
        (None, None, DEFAULT_S),
        (EXPLICIT, None, DEFAULT_S),
        (EXPLICIT, "77", 77.0),
        (timedelta(seconds=1801), "77", 1801.0),
    ],
)
def test_the_limit_of_a_group(timeout, variable, limit_s):
    env = {} if variable is None else {"PACELINE_TIMEOUT": variable}
    assert run(1, limits.limit, "paceline", timeout, default=None, env=env) == [limit_s]


@pytest.mark.process
@pytest.mark.skipif(torch.__version__ < "2.15", reason="PACELINE_AS_GLOO needs torch 2.15")
def test_the_limit_of_a_group_that_asked_for_gloo():
    assert run(1, limits.limit, "gloo", None, default=None) == [DEFAULT_S]


def reports(folder, rank=0):
    said = (folder / f"{rank}.err").read_text()
    return re.findall(
        r"^paceline: (rank \d) has waited (\d+) s for (rank .*); the limit is (\d+) s \(PACELINE_TIMEOUT or .*\)$",
        said,
        re.M,
    )


@pytest.mark.process
@pytest.mark.parametrize(
    "modes",
    [
        ["sleep", "gil", "point-to-point"],
        pytest.param(["stop", "barrier", "object", "new group", "background"], marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("transport", ["shm", pytest.param("tcp", marks=pytest.mark.slow)])
def test_a_pause_within_the_limit_is_waited_for_and_reported(tmp_path, modes, transport):
    env = {**SHORT, "PACELINE_TRANSPORT": transport}
    took = run(2, limits.paused, str(tmp_path), modes, PAUSE_S, env=env)
    assert min(took[0]) > PAUSE_S - 1
    said = reports(tmp_path)
    assert len(said) >= len(modes), said
    for _, waited, who, limit in said:
        assert who.startswith("rank 1 (") and 3 <= int(waited) < SHORT_S and int(limit) == SHORT_S, said


@pytest.mark.process
def test_a_rank_that_is_late_for_init_process_group_is_reported(tmp_path):
    run(2, limits.comes_late, str(tmp_path), 3.0, default=None, env={"PACELINE_START_TIMEOUT": "6"})
    assert f"has waited 2 s for rank 1 of 2 to call init_process_group; {JOINING}" in (tmp_path / "0.err").read_text()


@pytest.mark.process
def test_a_rank_that_is_late_for_the_rendezvous_is_reported(tmp_path):
    env = {"PACELINE_START_TIMEOUT": "3"}
    with Ranks(tmp_path, 3, "starts", "simple", env=env, start=[0, 1]) as ranks:
        outcomes = ranks.outcomes(30)
    said = r"^paceline: rank 0: rank 2 of 3 has not come within 1(\.\d)? s to \S+; the limit is 3 s \(PACELINE_START"
    assert re.search(said, outcomes[0].err, re.M), outcomes[0].err


@pytest.mark.process
def test_the_limit_of_a_subgroup_is_its_own():
    took = run(2, limits.subgroup, timedelta(seconds=3))
    assert 2 < took[0] < 7


@pytest.mark.process
@pytest.mark.parametrize("calls", [0, 5])
def test_operations_are_counted_as_the_script_counts_them(calls):
    error, _ = run(2, limits.counted, calls, env={"PACELINE_TIMEOUT": "2", "PACELINE_STRATEGY": ""})
    reached = f"has called nothing after op {calls}:" if calls else "has not called an op yet:"
    assert f" in all_reduce (float32[3], sum; op {calls + 1}); rank 1 is alive but {reached}" in error


@pytest.mark.process
def test_a_death_is_known_in_seconds_whatever_the_limit():
    with pytest.raises(RankError) as error:
        run(2, limits.dies)
    assert "rank 1: ended with exit code -9" in str(error.value) and "rank 0: " not in str(error.value), error.value


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("timeout_s", [None, DEFAULT_S])
def test_a_pause_of_40_seconds_with_default_settings(tmp_path, timeout_s):
    run(2, limits.pauses_after_init, str(tmp_path), 40, timeout_s=timeout_s)
    assert [int(waited) // 10 for _, waited, _, _ in reports(tmp_path)] == [1, 2]
