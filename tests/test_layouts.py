"""Every call on every dtype in every memory layout, in real processes, against numpy on logical indices."""

import sys

import cuda_stand_in
import pytest
from hvd_workers import layouts as hvd_layouts
from hvd_workers.launch import run as run_hvd
from job_workers import layouts as job_layouts
from torch_workers import layouts, on_device
from torch_workers.launch import run

pytestmark = pytest.mark.process


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("ranks", "seed", "share"),
    [(2, 1, 0.2), pytest.param(3, 2, 1, marks=SLOW), pytest.param(2, 3, 1, marks=SLOW)],
)
def test_calls_of_torch(ranks, seed, share):
    run(ranks, layouts.everything, seed, share)


@pytest.mark.parametrize(
    ("ranks", "seed", "share"),
    [(2, 1, 0.1), pytest.param(3, 2, 1, marks=SLOW)],
)
def test_calls_of_horovod(ranks, seed, share):
    run_hvd(ranks, hvd_layouts.everything, seed, share)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the stand-in needs memfd")
@pytest.mark.parametrize(("by", "seed"), [("host", 1), pytest.param("ipc", 2, marks=SLOW)])
def test_tensors_of_a_device(by, seed):
    run(
        2,
        on_device.layouts_of_tensors,
        seed,
        env={"PACELINE_CUDA_LIBRARY": cuda_stand_in.library(), "PACELINE_CUDA": by},
    )


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=SLOW)])
def test_arrays_of_a_job(ranks):
    run_hvd(ranks, job_layouts.everything, init=False)
