"""benches/gpu without a device: what it says there, and what it counts as a failure."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import cuda_stand_in
import pytest

RUN = Path(__file__).resolve().parents[1] / "benches" / "gpu" / "run.py"


def said(library):
    """What `make gpu` says with this driver; it must exit with 77."""
    environ = {**os.environ, "PACELINE_CUDA_LIBRARY": library, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, RUN], env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (77, ""), done.stderr
    return done.stderr.splitlines()


def test_without_a_driver_it_says_so_in_one_line():
    [line] = said("/nowhere/libcuda.so.1")
    assert line.startswith("make gpu: no CUDA device here: /nowhere/libcuda.so.1")


@pytest.mark.process
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the stand-in needs memfd")
def test_without_a_device_that_torch_uses_it_says_so_in_one_line():
    [line] = said(cuda_stand_in.library())
    assert "2 devices, but torch" in line


def test_it_fails_if_a_part_of_ours_fails():
    spec = importlib.util.spec_from_file_location("benches_gpu_run", RUN)
    run = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run)
    good = {
        "correct": [{"code": 0}],
        "faults": [{"right": True}],
        "training": [{"system": "ipc", "code": 0}, {"system": "nccl", "code": 1}],
        "times": {"host": {"code": 0}, "gloo": {"code": 1}},
        "sharded": [{"system": "ipc", "step_ms": 1.0}, {"system": "nccl", "said": "no"}],
        "horovod": {"code": 0},
        "recorded": {"device": {"step_s": 1.0}},
    }
    assert run.failed(good) == []
    bad = {
        "correct": [{"code": 1}],
        "faults": [{"right": False}],
        "training": [{"system": "cpu", "code": 1}],
        "times": {"ipc": {"code": 124}},
        "sharded": [{"system": "host", "said": "no"}],
        "horovod": {"code": 1},
        "recorded": {"device": {"said": "no"}},
    }
    for name, part in bad.items():
        assert run.failed({**good, name: part}) == [name]
