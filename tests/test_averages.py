"""Averages of float16 that the sum's range is too small for, on real ranks; and results that overlap themselves."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paceline.torch.backend.buffers import overlaps_itself
from torch_workers import averages
from torch_workers.launch import run


@pytest.mark.process
@pytest.mark.parametrize("size", [2, 3, 4])
def test_averages_of_float16_keep_to_the_range(size):
    run(size, averages.average, [3, 7, 5000, 200_000])
    run(size, averages.exact)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ring", "tree", "ps", "halving-doubling", "hierarchical", "ps-aggregation"])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_averages_of_float16_under_every_strategy(strategy, transport):
    run(4, averages.average, [7, 5000, 200_000], env={"PACELINE_STRATEGY": strategy, "PACELINE_TRANSPORT": transport})


@pytest.mark.process
def test_results_that_overlap_themselves_are_refused():
    run(2, averages.overlapping)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 7)), max_size=4))
def test_overlaps_are_those_of_the_offsets(dimensions):
    shape, strides = [n for n, _ in dimensions], [s for _, s in dimensions]
    view = torch.zeros(200).as_strided(shape, strides)
    offsets = [
        sum(i * s for i, s in zip(at, strides, strict=True)) for at in itertools.product(*(range(n) for n in shape))
    ]
    assert overlaps_itself(view) == (len(set(offsets)) < len(offsets))
