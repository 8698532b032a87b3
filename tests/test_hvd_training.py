"""Training with Horovod's distributed optimizer, in real processes. The ranks run `hvd_workers`."""

import pytest
from hvd_workers import optimizers, training
from hvd_workers.launch import run

pytestmark = pytest.mark.process


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_training_gives_the_parameters_of_one_process_with_all_batches(ranks):
    run(ranks, training.everything)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_gradients_arguments_and_state_of_optimizers(ranks):
    run(ranks, optimizers.everything)


def test_ranks_with_other_numbers_of_batches_join():
    run(3, training.uneven)


def test_small_buckets_short_memory_and_no_waiting():
    knobs = {"HOROVOD_FUSION_THRESHOLD": "100", "HOROVOD_CACHE_CAPACITY": "3", "HOROVOD_CYCLE_TIME": "0"}
    run(4, training.plain, env=knobs)
    run(2, training.plain, env=dict.fromkeys(knobs, "0"))
