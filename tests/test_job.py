"""paceline.job in real processes: the results of operations."""

import sys

import pytest
from job_workers.launch import run
from job_workers.values import LENGTHS, LONG

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and memfd"),
]


def listed(lengths):
    return ",".join(map(str, lengths))


def same_everywhere(results):
    """All ranks hold the same bits, over whichever transport; nothing is left in them after the job."""
    assert len({digest for result in results for digest in result["digests"].values()}) == 1, results
    for result in results:
        assert result["before"] == result["after"], result


slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("size", "transports", "way"),
    [
        (2, "shm,tcp", "sync"),
        (3, "auto,tcp,tcp", "async"),
        pytest.param(3, "shm,shm", "sync", marks=slow),
        pytest.param(4, "tcp,shm", "async", marks=slow),
        pytest.param(5, "auto,tcp", "async", marks=slow),
        pytest.param(8, "auto,tcp", "async", marks=slow),
    ],
)
def test_all_reduce_of_every_strategy_dtype_and_op(tmp_path, size, transports, way):
    same_everywhere(run(tmp_path, size, "all_reduce", transports, listed(LENGTHS), way))


@pytest.mark.parametrize(
    ("size", "transports"),
    [(2, "tcp,shm,copied"), pytest.param(3, "copied,shm", marks=slow), pytest.param(7, "auto", marks=slow)],
)
def test_all_reduce_of_many_elements(tmp_path, size, transports):
    same_everywhere(run(tmp_path, size, "all_reduce", transports, LONG, "sync"))


@slow
@pytest.mark.parametrize("again", range(4))
def test_many_at_once_do_not_stand_in_each_others_way(tmp_path, again):
    same_everywhere(run(tmp_path, 5, "all_reduce", "tcp", "0,3,300001", "async"))


def test_what_is_wanted_first_may_come_behind_much_that_is_not(tmp_path):
    assert all(result["right"] for result in run(tmp_path, 2, "crowded"))


@pytest.mark.parametrize(
    ("size", "transport"),
    [(2, "shm"), (3, "tcp"), pytest.param(5, "auto", marks=slow), pytest.param(8, "auto", marks=slow)],
)
def test_every_other_operation(tmp_path, size, transport):
    same_everywhere(run(tmp_path, size, "calls", transport))


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=slow) for seed in range(6, 40))])
def test_random_operations_on_random_groups(tmp_path, seed):
    size, transport = 2 + seed % (3 if seed < 6 else 7), ("auto", "tcp")[seed // 3 % 2]
    results = run(tmp_path, size, "groups", seed, 150, transport)
    assert len({result["digest"] for result in results}) == 1
