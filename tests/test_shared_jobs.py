"""A fast check of the main promise: the results of real ranks, in jobs that all checks of a kind share.

The same checks run in separate jobs, of more sizes and under more settings, in the tests of `make test-process`.
"""

import sys

import pytest
from hvd_workers import derivatives, movements, norms, optimizers, reductions
from hvd_workers import training as hvd_training
from job_workers import all_reduce, calls
from job_workers.values import DTYPES, LENGTHS, Digest
from shared_jobs import SharedJob, horovod, job, process_group
from torch_workers import collectives, groups, handles, training
from torch_workers.launch import RankError

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and memfd"),
    pytest.mark.xdist_group("shared-jobs"),
]


def shared(member, size, **env):
    """A fixture: a job of this many ranks that lasts as long as this module's tests."""

    @pytest.fixture(scope="module")
    def fixture():
        ranks = SharedJob(member, size, **env)
        yield ranks
        ranks.close()

    return fixture


over_shared_memory = shared(job, 3, PACELINE_TRANSPORT="shm")
over_tcp = shared(job, 2, PACELINE_TRANSPORT="tcp")
under_torch = shared(process_group, 3)
under_horovod = shared(horovod, 2)


def named(checks):
    return pytest.mark.parametrize("check", checks, ids=lambda check: f"{check.__module__}.{check.__name__}")


def sums(joined, strategy):
    digest = Digest()
    all_reduce.by(joined, strategy, LENGTHS, True, digest)
    return digest.text()


def operations(joined, dtype):
    digest = Digest()
    calls.of_dtype(joined, dtype, digest)
    return digest.text()


@pytest.mark.parametrize("strategy", all_reduce.STRATEGIES)
def test_all_reduce_by_every_strategy(over_shared_memory, strategy):
    assert len(set(over_shared_memory.run(sums, strategy))) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_other_operation_on_every_dtype(over_tcp, dtype):
    assert len(set(over_tcp.run(operations, dtype))) == 1


@named(calls.OTHERS)
def test_uneven_parts_transfers_and_handles(over_shared_memory, check):
    over_shared_memory.run(check)


@named([*collectives.ALL, handles.works, handles.futures, handles.point_to_point, groups.many_in_flight, training.ddp])
def test_torch(under_torch, check):
    under_torch.run(check)


@named(
    [
        *[reductions.every_dtype, reductions.factors, reductions.sparse, movements.gathers, movements.broadcasts],
        *[movements.exchanges, derivatives.of_reductions, derivatives.of_exchanges, norms.as_joined],
        *[optimizers.in_place, optimizers.state_of_sgd, hvd_training.plain, hvd_training.accumulated],
    ]
)
def test_horovod(under_horovod, check):
    under_horovod.run(check)


def fails_on_the_last(rank, size):
    assert rank < size - 1, "as asked"


def test_a_check_that_fails_is_told_and_does_not_disturb_the_next(under_torch):
    with pytest.raises(RankError, match=r"(?s)rank 2: .*as asked"):
        under_torch.run(fails_on_the_last)
    under_torch.run(collectives.moves)
