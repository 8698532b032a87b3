"""Horovod's operations on tensors, in real processes. The ranks run `hvd_workers`."""

import pytest
from hvd_workers import derivatives, elastic_state, movements, reductions
from hvd_workers.launch import run

pytestmark = pytest.mark.process


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_reductions_of_every_dtype_give_what_torch_gives(ranks):
    run(ranks, reductions.everything)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_tensors_and_objects_of_every_dtype_are_moved(ranks):
    run(ranks, movements.everything)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_gradients_are_those_of_horovod(ranks):
    run(ranks, derivatives.everything)


def test_four_ranks_over_tcp_without_a_strategy():
    run(4, movements.everything, env={"PACELINE_STRATEGY": "", "PACELINE_TRANSPORT": "tcp"})


def test_an_elastic_state_keeps_what_it_synchronizes():
    run(2, elastic_state.everything)
