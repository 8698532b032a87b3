"""oneCCL as `native` between CPUs: sums of real processes, failures, and what is refused."""

import os
import re
import sys
from pathlib import Path

import cli
import pytest
from paceline import InvalidArgumentError
from paceline.job import oneccl
from paceline.job.settings import Settings
from paceline_lab.bench.environments import folder_of

LIBRARY = Path(os.environ.get("PACELINE_ONECCL_LIBRARY") or folder_of("oneccl") / "lib" / "libccl.so.2")
WORKER = Path(__file__).parent / "job_workers" / "oneccl.py"
needs_oneccl = pytest.mark.skipif(not LIBRARY.exists(), reason="needs oneCCL: paceline bench --install oneccl")


def run(ranks, what):
    own = {"PACELINE_NATIVE": "oneccl", "PACELINE_STRATEGY": "native", "PACELINE_ONECCL_LIBRARY": str(LIBRARY)}
    return cli.program("run", "-np", ranks, "--", sys.executable, WORKER, what, env={**os.environ, **own}, timeout=120)


@pytest.mark.process
@needs_oneccl
@pytest.mark.parametrize("ranks", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_every_type_and_operation(ranks):
    done = run(ranks, "values")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(re.findall(r"rank (\d) right", done.stdout)) == [str(rank) for rank in range(ranks)]


@pytest.mark.process
@needs_oneccl
@pytest.mark.parametrize("when", ["between", "within"])
def test_a_rank_that_is_killed_is_named_and_nobody_waits(when):
    done = run(3, when)
    said = re.findall(r"rank ([02]) after ([\d.]+) s: (rank 1 \([^)]*\) died)", done.stdout)
    # oneCCL may abort a process in a thread of its own before the call returns. The job still names who died first.
    aborted = re.findall(r"^([02]) +killed by SIGABRT", done.stderr, re.MULTILINE) if when == "within" else []
    assert sorted([*(rank for rank, _, _ in said), *aborted]) == ["0", "2"], done.stdout + done.stderr
    assert all(float(seconds) < 10 for _, seconds, _ in said)
    assert "rank 1" in done.stderr and "SIGKILL" in done.stderr


@pytest.mark.process
@needs_oneccl
def test_groups_of_some_ranks_are_told_and_the_job_goes_on():
    done = run(3, "some")
    assert len(re.findall(r"rank [01]: .*runs among all ranks of the job", done.stdout)) == 2, done.stdout + done.stderr
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"PACELINE_NATIVE": "oneccl"}, "has an effect with strategy native only"),
        ({"PACELINE_NATIVE": "oneccl", "PACELINE_STRATEGY": "ring"}, "has an effect with strategy native only"),
        ({"PACELINE_NATIVE": "mlsl", "PACELINE_STRATEGY": "native"}, "oneccl"),
        ({"PACELINE_STRATEGY": "native"}, "which shared memory and TCP do not have"),
        ({"PACELINE_ONECCL_LIBRARY": __file__}, "has no effect without native oneccl"),
        ({"PACELINE_ONECCL_LIBRARY": "/nowhere/libccl.so.2"}, "no such file '/nowhere/libccl.so.2'"),
        (
            {"PACELINE_NATIVE": "oneccl", "PACELINE_STRATEGY": "native", "PACELINE_TRANSPORT": "mpi"},
            "has no effect with transport mpi",
        ),
    ],
)
def test_contradictions_are_refused(environment, says):
    with pytest.raises(InvalidArgumentError) as caught:
        Settings.from_environment(environment)
    assert says in f"{caught.value} {caught.value.remedy}"


def test_its_own_variables_are_set_unless_the_user_has(monkeypatch):
    for variable in ("CCL_PLUGIN", "CCL_KVS_IFACE", "FI_TCP_IFACE", "CCL_PROCESS_LAUNCHER", "CCL_LOG_LEVEL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("CCL_ATL_TRANSPORT", "mpi")
    oneccl.prepare("127.0.0.1")
    assert os.environ["CCL_ATL_TRANSPORT"] == "mpi"
    assert os.environ["CCL_PLUGIN"] == "ONECCL_LEGACY_CPU"
    assert os.environ["CCL_KVS_IFACE"] == os.environ["FI_TCP_IFACE"] == "lo"
    for variable in ("CCL_PLUGIN", "CCL_KVS_IFACE", "FI_TCP_IFACE", "CCL_PROCESS_LAUNCHER", "CCL_LOG_LEVEL"):
        monkeypatch.delenv(variable)
