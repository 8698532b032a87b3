"""The backend in scripts as users run them: under torchrun, without an import, and left without an end."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import cli
import pytest
from paceline._internal.ports import free_ports

ROOT = Path(__file__).parents[1]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "--no-python"]


# One process imports torch for them all.
one_process = pytest.mark.xdist_group("torch_scripts")


def torchrun(*command, env=None):
    """Run a command as two ranks; its output."""
    variables = {**os.environ, **(env or {})}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # compiling torch's sources takes longer than all of this
    done = cli.ended(*TORCHRUN, *command, env=variables, timeout=120, cwd=ROOT)
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
    done = cli.ended(*command, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("3.0") == 3


FORKING = """
import json, os, sys, tempfile
import torch.distributed
for line in sys.stdin:
    script, words, environ = json.loads(line)
    out, err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
    if child := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps([code, *(os.pread(file.fileno(), 1 << 20, 0).decode() for file in (out, err))]), flush=True)
        continue
    os.dup2(out.fileno(), 1), os.dup2(err.fileno(), 2)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv[1:] = words
    code = 0
    try:
        exec(compile(script, "<script>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code)
"""
UNSET = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


@pytest.fixture(scope="module")
def run():
    """Runs scripts in processes that have torch, but nothing of Paceline's: returns exit code, output and errors."""
    clean = {name: value for name, value in os.environ.items() if name not in UNSET}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": clean}
    with subprocess.Popen([sys.executable, "-c", FORKING], **pipes) as process:

        def run(script, environ, words=()):
            print(json.dumps([script, words, {**clean, **environ}]), file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())

        yield run
        process.stdin.close()


REGISTERED = """
import os, paceline.torch
print(*(os.environ.get(name, "-") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")))
"""


STEP = {
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "9",
    "SLURM_STEP_NODELIST": "localhost",
}


@one_process
@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"}, "1 3 -"),
        ({"PMI_RANK": "2", "PMI_SIZE": "4"}, "2 4 -"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3", "RANK": "0", "WORLD_SIZE": "1"}, "0 1 -"),
        ({**STEP, "WORLD_SIZE": "3"}, "1 3 -"),
        ({**STEP, "RANK": "1", "LOCAL_RANK": "1"}, "1 3 1"),
        ({**STEP, "RANK": "", "WORLD_SIZE": ""}, "1 3 -"),
        ({"PMI_RANK": "2", "PMI_SIZE": "4", "WORLD_SIZE": "4"}, "2 4 -"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3", "RANK": "1"}, "1 3 -"),
        # Refused when a group is made: see below.
        ({**STEP, "WORLD_SIZE": "8"}, "- 8 -"),
        ({}, "- - -"),
    ],
)
def test_torch_learns_its_rank_from_other_launchers(run, environ, rank):
    assert run(REGISTERED, environ) == [0, f"{rank}\n", ""]


@one_process
@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({**STEP, "WORLD_SIZE": "8"}, r"WORLD_SIZE=8 is set, and Slurm says 3\n  try: unset WORLD_SIZE"),
        ({"PMI_RANK": "2", "PMI_SIZE": "4", "RANK": "0"}, r"RANK=0 is set, and mpiexec \(PMI\) says 2"),
        ({"RANK": "0"}, "RANK=0 is set, and WORLD_SIZE is not"),
    ],
)
def test_variables_that_contradict_a_launcher_are_refused_when_they_are_needed(run, variables, said):
    script = "import torch.distributed as dist, paceline.torch; dist.init_process_group('paceline')"
    code, _, err = run(script, variables)
    assert code == 1
    assert re.search(said, err), err
    assert "Traceback" not in err


WARNED = """
import multiprocessing, sys
def make():
    import torch.distributed as dist, paceline.torch
    dist.init_process_group("gloo")
if sys.argv[1:]:
    one = multiprocessing.get_context("fork").Process(target=make)
    one.start()
    one.join()
    sys.exit(one.exitcode)
make()
"""


@one_process
@pytest.mark.parametrize(
    ("launcher", "words", "said"),
    [
        (STEP, [], "RANK=0 and WORLD_SIZE=1 are set, and Slurm says rank 1 of 3"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, [], r"and mpiexec \(PMI\) says rank 0 of 2"),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "8"}, [], "and mpirun says rank 0 of 8"),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, [], None),
        (STEP | {"LOCAL_RANK": "0"}, [], None),
        # A rank that a task of Slurm has started.
        (STEP, ["starts its ranks"], None),
    ],
)
def test_a_rank_that_differs_from_the_launchers_is_named(run, launcher, words, said):
    environ = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_ports("127.0.0.1", 1)[0]),
    }
    code, _, err = run(WARNED, environ | launcher, words)
    assert code == 0, err
    assert re.search(said, err) if said else "warning: RANK" not in err, err


LISTENS = """
import os, sys, torch.distributed as dist
def listening():
    inodes = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            inodes.add(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            pass
    for table in ("tcp", "tcp6"):
        for line in open(f"/proc/self/net/{table}").readlines()[1:]:
            field = line.split()
            if field[3] == "0A" and f"socket:[{field[9]}]" in inodes:
                yield field[1].split(":")[0]
for backend in ("gloo", "paceline", "gloo"):
    dist.init_process_group(backend)
    dist.barrier()
    if dist.get_rank() == 0:
        print(*listening(), flush=True)
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.mark.process
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
@pytest.mark.parametrize("options", [[], ["--interface", "127.0.0.2"]])
def test_the_store_of_a_job_listens_on_the_address_of_its_ranks_alone(options):
    command = [sys.executable, "-m", "paceline", "run", *options, "-np", "2", "--", sys.executable, "-c", LISTENS]
    done = cli.ended(*command, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    result = done.stdout.split()
    # gloo listens on loopback, too.
    assert result and set(result) <= {"[rank", "0]", "0100007F", "0200007F"}, done.stdout


WORKERS = """
import os, sys, torch, torch.distributed as dist, paceline.torch
from torch.utils.data import DataLoader, TensorDataset

def start(worker):
    store = dist.FileStore(f"{sys.argv[1]}/{os.environ['RANK']}", 2)
    if dist.is_initialized():
        try:
            dist.new_group([0, 1])
        except paceline.JobError as error:
            print(error, flush=True)
    else:
        dist.init_process_group("paceline", store=store, rank=worker, world_size=2)
        one = torch.ones(1)
        dist.all_reduce(one)
        assert float(one) == 2
        print("works in a worker\\n", end="", flush=True)
        dist.destroy_process_group()

if __name__ == "__main__":
    dist.init_process_group("paceline")
    data = TensorDataset(torch.arange(4.0))
    for method in ("fork", "spawn", "forkserver"):
        sum(float(value) for [value] in DataLoader(
            data, num_workers=2, worker_init_fn=start, multiprocessing_context=method))
    one = torch.ones(1)
    dist.all_reduce(one)
    print("ranks", float(one), flush=True)
"""


@pytest.mark.process
@pytest.mark.slow
def test_workers_that_make_a_group_as_the_error_of_forked_ones_says(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(WORKERS)
    command = [sys.executable, "-m", "paceline", "run", "-np", "2", "--", sys.executable, str(script), str(tmp_path)]
    done = cli.ended(*command, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("start it with the 'spawn' or 'forkserver' method") == 4, done.stdout
    assert done.stdout.count("works in a worker") == 8, done.stdout
    assert done.stdout.count("ranks 2.0") == 2, done.stdout


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


@pytest.mark.slow
@one_process
def test_importing_torch_imports_no_more_of_paceline_than_its_entry_point_needs(run):
    _, out, _ = run("import sys; print(*sorted(name for name in sys.modules if 'paceline' in name))", {})
    own = (
        "_internal",
        "_internal.lazy",
        "_internal.operating_system",
        "accelerate_backend",
        "as_gloo",
        "store_address",
    )
    assert out.split() == ["paceline", *(f"paceline.{name}" for name in own)]
