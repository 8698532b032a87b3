"""What mypy says of users' files: names and modules have types, and a name that does not exist is an error."""

import re
import sys

import cli
import pytest

pytest.importorskip("mypy", reason="needs mypy")


def errors(tmp_path, text):
    """Lines and messages of `mypy --strict`."""
    file = tmp_path / "script.py"
    file.write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(file)]
    done = cli.ended(*command, cwd=tmp_path)
    match = re.findall(r"^script\.py:(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    assert bool(match) == (done.returncode == 1) and done.returncode < 2, done.stdout + done.stderr
    return [(int(line), message) for line, message in match]


@pytest.mark.slow
def test_a_misspelled_name_is_an_error(tmp_path):
    lines = [
        "import paceline",
        "paceline.simulat",
        "paceline.job.joim()",
        "from paceline import load_trase",
        "from paceline.job import Jobb",
        "from paceline import simulate, job",
        "result = simulate('resnet50', workers=8, bandwidth='10Gbps')",
        "result.iteration",
        "seconds: float = result.iteration_s",
        "rank: str = job.join().rank",
        "paceline.UserError, paceline.__version__.upper(), paceline.sweep, paceline.plot",
    ]
    result = errors(tmp_path, "\n".join(lines) + "\n")
    assert [line for line, _ in result] == [2, 3, 4, 5, 8, 10], result
    assert '"simulat"; maybe "simulate"' in result[0][1], result


HOROVODS = """
import paceline.torch.mpi_ops as m
import paceline.torch.functions as f
import paceline.torch.elastic.sampler
from paceline.torch.elastic import TorchState, run
from paceline.torch.elastic.state import TorchState as Same
from paceline.torch.optimizer import DistributedOptimizer
from paceline.torch.sync_batch_norm import SyncBatchNorm
from paceline.torch.compression import Compression
from paceline.common.exceptions import HorovodInternalError
import paceline.tensorflow.mpi_ops
from paceline.tensorflow.keras.callbacks import MetricAverageCallback
from paceline.tensorflow.keras.elastic import KerasState
from paceline.tensorflow.keras import DistributedOptimizer as ForKeras
import torch

def reduced(x: torch.Tensor) -> torch.Tensor:
    f.broadcast_parameters({"x": x}, 0)
    paceline.torch.elastic.sampler.ElasticSampler([1, 2])
    SyncBatchNorm(3)
    return m.allreduce(x, op=m.Sum)

number: int = m.allreduce(torch.ones(3))
m.allredcue
paceline.tensorflow.mpi_ops.allredcue
from paceline.torch.elastic.sampler import Sampler
"""


@pytest.mark.slow
def test_horovods_modules_have_types(tmp_path):
    pytest.importorskip("torch")
    result = errors(tmp_path, HOROVODS)
    wrong = [
        number
        for number, line in enumerate(HOROVODS.splitlines(), 1)
        if line.startswith(("number", "m.", "paceline.t"))
    ]
    assert [line for line, _ in result] == [*wrong, len(HOROVODS.splitlines())], result
