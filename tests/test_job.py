"""paceline.job in real processes: what the operations give."""

import sys

import pytest
from job_workers.launch import run
from job_workers.values import LENGTHS

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and memfd")


def listed(lengths):
    return ",".join(map(str, lengths))


def same_everywhere(results):
    """All ranks hold the same bits, over whichever transport; nothing is left in them after the job."""
    assert len({digest for result in results for digest in result["digests"].values()}) == 1, results
    for result in results:
        assert result["before"] == result["after"], result


@pytest.mark.parametrize(("size", "transports"), [(2, "shm,tcp,auto"), (3, "shm,tcp,shm")])
def test_all_reduce_of_every_strategy_dtype_and_op(tmp_path, size, transports):
    same_everywhere(run(tmp_path, size, "all_reduce", transports, listed(LENGTHS)))


@pytest.mark.parametrize(("size", "transport"), [(2, "tcp"), (3, "shm"), (5, "auto")])
def test_every_other_operation(tmp_path, size, transport):
    same_everywhere(run(tmp_path, size, "calls", transport))


@pytest.mark.parametrize("seed", range(8))
def test_random_operations_on_random_groups(tmp_path, seed):
    size, transport = 2 + seed % 4, ("auto", "tcp")[seed % 2]
    results = run(tmp_path, size, "groups", seed, 150, transport)
    assert len({result["digest"] for result in results}) == 1
