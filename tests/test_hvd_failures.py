"""The errors of Horovod's interface, on all ranks, when ranks differ or die."""

import time

import pytest
from hvd_workers import failures
from hvd_workers.launch import RankError, run

pytestmark = pytest.mark.process


def test_ranks_that_ask_for_different_things_are_told_and_go_on():
    run(3, failures.mismatches)


@pytest.mark.parametrize("how", ["dies", "leaves"])
def test_a_rank_that_dies_or_leaves_is_named_within_seconds(how):
    start = time.monotonic()
    if how == "leaves":
        outcomes = run(3, failures.one_dies, how)[:2]
        assert all(seconds < 5 for seconds, _ in outcomes)
        assert all("rank 2" in text and "left" in text for _, text in outcomes), outcomes
    else:
        with pytest.raises(RankError, match="rank 2: ended with exit code -9") as result:
            run(3, failures.one_dies, how)
        assert "rank 0:" not in str(result.value) and "rank 1:" not in str(result.value), result.value
    assert time.monotonic() - start < 20


def test_a_rank_may_stop_for_as_long_as_the_limit_says():
    """The wait for a coordinator's message begins with the silence; it had two thirds of the limit."""
    run(2, failures.one_stops, 4.0, env={"PACELINE_TIMEOUT": "5.5"})
    with pytest.raises(RankError, match="timeout after 3 s without progress"):
        run(2, failures.one_stops, 8.0, env={"PACELINE_TIMEOUT": "3"})


def test_a_tensor_that_one_rank_does_not_ask_for():
    times = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "0.2", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "1"}
    said = run(3, failures.one_is_missing, env=times)
    assert "tensor 'allreduce.lonely' has waited" in said[0] and "rank 2 (host" in said[0]
