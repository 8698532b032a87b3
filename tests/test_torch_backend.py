"""The torch.distributed backend, in real processes. The ranks run `torch_workers`."""

import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_workers import collectives, groups, handles, random_calls
from torch_workers.launch import run

pytestmark = pytest.mark.process


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_every_collective_on_every_dtype_gives_what_numpy_gives(ranks):
    run(ranks, collectives.everything)


def test_handles_futures_sends_and_refusals():
    run(3, handles.everything)


def test_ranks_that_call_different_things_are_told():
    run(2, handles.mismatches)


def test_groups_meshes_and_functional_collectives():
    run(4, groups.everything)


@pytest.mark.skipif(not hasattr(dist, "_time_estimator"), reason="torch has no time estimator before 2.15")
def test_the_time_estimator_forecasts_nccl():
    run(3, groups.estimates, env={"PACELINE_ESTIMATE_ON": "dgx-h100"})


def test_overlapping_groups():
    run(4, groups.overlapping_groups)


def test_a_group_in_a_job_of_gloo():
    run(3, groups.beside_gloo, default="gloo")


def test_a_group_that_has_a_backend_for_another_device():
    run(3, groups.beside_another_device, default="cpu:paceline,cuda:gloo")


def test_a_hook_in_a_group_whose_backend_for_devices_alone_is_ours():
    run(2, groups.for_devices, default="cpu:gloo,cuda:paceline")


def test_init_and_destroy_again_and_again():
    run(2, groups.lives, default=None)


def test_a_rank_that_does_not_come_is_named():
    run(3, groups.one_is_late, default=None)


@settings(max_examples=5, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1 << 30), ranks=st.integers(2, 4))
def test_random_collectives_on_random_groups(seed, ranks):
    run(ranks, random_calls.play, seed, 40)


def test_sums_are_the_same_bits_on_all_ranks_and_in_every_job():
    assert (
        len({bits for _ in range(2) for bits in run(3, random_calls.all_agree, 8, env={"PACELINE_STRATEGY": "ring"})})
        == 1
    )
