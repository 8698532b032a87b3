"""Every call on every dtype in every memory layout, in real processes, against numpy on logical indices."""

import pytest
from hvd_workers import layouts as hvd_layouts
from hvd_workers.launch import run as run_hvd
from torch_workers import layouts
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
