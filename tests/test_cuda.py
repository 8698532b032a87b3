"""Arrays on a CUDA device, over a stand-in for its driver: real processes, streams that are threads."""

import re
import sys

import cuda_stand_in
import pytest
from job_workers.launch import Ranks, run
from torch_workers import launch as torch_launch
from torch_workers import on_device

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the stand-in needs memfd"),
]

slow = pytest.mark.slow
CALLS = [
    "cuInit",
    "cuDeviceGetCount",
    "cuDevicePrimaryCtxRetain",
    "cuStreamCreate",
    "cuEventCreate",
    "cuEventRecord",
    "cuMemHostAlloc",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuStreamWaitEvent",
    "cuLaunchHostFunc",
]


def env(**more):
    return {"PACELINE_CUDA_LIBRARY": cuda_stand_in.library(), **more}


@pytest.mark.parametrize(
    ("size", "transports", "lengths", "seed"),
    [
        (2, "shm,tcp", "0,3,1000", 1),
        pytest.param(3, "tcp,auto", "0,1,1000", 2, marks=slow),
        pytest.param(4, "auto,grpc", "1,300001", 3, marks=slow),
    ],
)
def test_all_reduce_of_every_strategy_dtype_and_op(tmp_path, size, transports, lengths, seed):
    results = run(tmp_path, size, "on_device", "all_reduce", transports, lengths, env=env(CUDA_STAND_IN_SEED=str(seed)))
    assert len({digest for result in results for digest in result["digests"].values()}) == 1, results


@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (3, "tcp"), pytest.param(4, "grpc", marks=slow)])
def test_every_other_operation(tmp_path, size, transport):
    assert all(result["right"] for result in run(tmp_path, size, "on_device", "calls", transport, env=env()))


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=slow) for seed in range(2, 8))])
def test_the_order_of_streams_and_calls(tmp_path, seed):
    results = run(tmp_path, 2, "on_device", "in_order", env=env(CUDA_STAND_IN_SEED=str(seed)))
    assert all(result["right"] for result in results)


def test_mistakes_are_named(tmp_path):
    [result] = run(tmp_path, 1, "on_device", "wrong", env=env())
    several, mixed, freed, small, missing = result["said"]
    assert "array[0] is on a device, in stream" in several
    assert "all_gather: array is on a device" in mixed
    assert "out is in host memory" in mixed
    assert "the CUDA driver does not know this memory; was it freed?" in freed
    assert "int8 is not one of" in small
    assert "give an array for the result" in missing


@pytest.mark.parametrize("call", [*CALLS[6:9], *(pytest.param(call, marks=slow) for call in CALLS[3:6] + CALLS[9:])])
@pytest.mark.parametrize("status", [2, pytest.param(719, marks=slow)])
def test_a_call_that_fails_is_named_on_every_rank(tmp_path, call, status):
    """Rank 1's driver refuses a call, once or for ever; nobody hangs, and no sum is wrong."""
    which = 1 if call == "cuMemHostAlloc" else 4  # memory is used again
    fault = {1: {"CUDA_STAND_IN_FAULT": f"{call}:{which}:{status}"}}
    results = run(tmp_path, 2, "on_device", "failing", 3000, env=env(), env_of=fault, limit_s=40)
    if results[1]["failed"] is None:
        pytest.skip(f"{call} is called fewer than four times")
    assert call in results[1]["failed"], results
    assert results[0]["failed"], results
    assert re.search(r"rank 1\b", results[0]["failed"]), results


def test_a_device_that_does_not_come_to_an_operation(tmp_path):
    zero, one = (result["failed"] for result in run(tmp_path, 2, "on_device", "stuck", env=env(), limit_s=40))
    assert "cuda:0" in one, one
    assert "has not reached all_reduce of 'weights' within 2 s" in one, one
    assert "rank 1" in zero, zero


def test_a_rank_that_dies(tmp_path):
    with Ranks(tmp_path, 2, "on_device", "failing", 30_000_000, env=env()) as ranks:
        ranks.processes[1].kill()
        outcome = ranks.outcomes(60)[0]
    assert outcome.code != 0 or "rank 1" in outcome.said[-1]["failed"], outcome


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=slow)])
def test_torch_distributed_on_a_device(ranks):
    torch_launch.run(ranks, on_device.everything, env=env())
