"""The backend in scripts as users run them: under torchrun, without an import, and left without an end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "--no-python"]


def torchrun(*command, env=None):
    """Run a command as two ranks; its output."""
    variables = {**os.environ, **(env or {})}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # compiling torch's sources takes longer than all of this
    done = subprocess.run(
        [*TORCHRUN, *command], env=variables, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.process
def test_the_example_under_torchrun():
    said = torchrun(sys.executable, "examples/ddp.py", "--steps", "4", "--batch", "8")
    losses = [float(line.split()[-1]) for line in said.splitlines() if line.startswith("step")]
    assert len(losses) == 4
    assert "on 2 ranks; all weights are the same" in said


AGAIN = """
import torch, torch.distributed as dist, paceline.torch
for _ in range(8):
    dist.init_process_group("paceline")
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
print(tensor[0].item())
"""


@pytest.mark.process
def test_a_group_may_be_made_again_under_the_launcher():
    command = [sys.executable, "-m", "paceline", "run", "-np", "3", "--", sys.executable, "-c", AGAIN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("3.0") == 3


REGISTERED = """
import json, os, sys
import torch.distributed
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
for environ in json.loads(sys.argv[1]):
    # torch is imported once; a process registers once, when it imports paceline.torch.
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
        continue
    os.environ.update(environ)
    import paceline.torch
    print(*(os.environ.get(name, "-") for name in names), flush=True)
    os._exit(0)
"""


def test_torch_learns_its_rank_from_other_launchers():
    expected = [
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"}, "1 3 -"),
        ({"PMI_RANK": "2", "PMI_SIZE": "4"}, "2 4 -"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3", "RANK": "0", "WORLD_SIZE": "1"}, "0 1 -"),
        ({}, "- - -"),
    ]
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-c", REGISTERED, json.dumps([environ for environ, _ in expected])]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [told for _, told in expected]


SCRIPT = """
import torch, torch.distributed as dist
{before}
dist.init_process_group("paceline")
tensor = torch.ones(3)
dist.all_reduce(tensor)
future = dist.all_reduce(tensor, async_op=True).get_future()
future.wait()
print("sum %d\\n" % tensor[0], end="", flush=True)
"""


@pytest.mark.process
def test_a_script_that_does_not_end_its_group_ends_well():
    said = torchrun(sys.executable, "-c", SCRIPT.format(before="import paceline.torch"))
    assert said.count("sum 4") == 2
    assert "Error" not in said


@pytest.mark.process
def test_torch_finds_the_backend_by_its_entry_point(tmp_path):
    import torch.distributed

    if not hasattr(torch.distributed.Backend, "_ensure_backend_registered"):
        pytest.skip("this torch has no entry points for backends")
    # The entry points of the installed package; a checkout may have been installed before this one existed.
    info = tmp_path / "paceline_entry-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: paceline_entry\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "[torch.distributed.backends]\npaceline = paceline.torch.backend.register:register\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    said = torchrun(sys.executable, "-c", SCRIPT.format(before=""), env={"PYTHONPATH": path})
    assert said.count("sum 4") == 2


def test_importing_torch_imports_no_more_of_paceline_than_its_entry_point_needs():
    code = "import sys, torch, torch.distributed; print(*sorted(name for name in sys.modules if 'paceline' in name))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == [
        "paceline",
        *(f"paceline.{name}" for name in ("_internal", "_internal.lazy", "accelerate_backend", "as_gloo")),
    ]
