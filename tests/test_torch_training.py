"""Training over the backend in real processes, against one process on the joined batch."""

import pytest
from torch_workers import training
from torch_workers.launch import run

pytestmark = pytest.mark.process


@pytest.mark.parametrize("check", training.ALL, ids=lambda check: check.__name__)
def test_training_is_that_of_one_process(check):
    run(2, check)


def test_ddp_of_three():
    run(3, training.ddp)


def test_a_compiled_model():
    run(2, training.compiled)
