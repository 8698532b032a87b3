"""Arrays on a CUDA device, over a stand-in for its driver: real processes, streams that are threads."""

import re
import sys

import cuda_stand_in
import pytest
from hvd_workers import devices
from hvd_workers import launch as hvd_launch
from job_workers.launch import Ranks, run
from paceline.errors import InvalidArgumentError
from paceline.job.settings import Settings
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


def env(by="host", **more):
    return {"PACELINE_CUDA_LIBRARY": cuda_stand_in.library(), "PACELINE_CUDA": by, **more}


both = pytest.mark.parametrize("by", ["host", "ipc"])


@pytest.mark.parametrize(
    ("by", "size", "words", "seed"),
    [
        ("host", 2, ("shm,tcp", "0,3,1000"), 1),
        pytest.param("host", 3, ("tcp,auto", "0,1,1000"), 2, marks=slow),
        pytest.param("host", 4, ("auto,grpc", "1,300001"), 3, marks=slow),
        ("ipc", 2, ("shm", "0,3,1000"), 4),
        ("ipc", 3, ("tcp", "1,1000"), 5),
        pytest.param("ipc", 4, ("auto", "0,1,300001"), 6, marks=slow),
    ],
)
def test_all_reduce_of_every_strategy_dtype_and_op(tmp_path, by, size, words, seed):
    environ = env(by, CUDA_STAND_IN_SEED=str(seed))
    results = run(tmp_path, size, "on_device", "all_reduce", *words, env=environ)
    assert len({digest for result in results for digest in result["digests"].values()}) == 1, results


@both
@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (3, "tcp"), pytest.param(4, "grpc", marks=slow)])
def test_every_other_operation(tmp_path, by, size, transport):
    assert all(result["right"] for result in run(tmp_path, size, "on_device", "calls", transport, env=env(by)))


@both
def test_arrays_that_offer_dlpack_alone(tmp_path, by):
    assert all(result["right"] for result in run(tmp_path, 2, "on_device", "by_dlpack", env=env(by)))


@both
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=slow) for seed in range(2, 8))])
def test_the_order_of_streams_and_calls(tmp_path, by, seed):
    results = run(tmp_path, 2, "on_device", "in_order", by, env=env(by, CUDA_STAND_IN_SEED=str(seed)))
    assert all(result["right"] for result in results)


def test_mistakes_are_named(tmp_path):
    [result] = run(tmp_path, 1, "on_device", "wrong", env=env())
    several, mixed, freed, small, missing = result["said"]
    assert "array[0] is on a device, in stream" in several
    assert "all_gather: array is on a device" in mixed
    assert "out is in host memory" in mixed
    assert "the CUDA driver does not know this memory (was it freed?)" in freed
    assert "int8 is not one of" in small
    assert "out is missing" in missing


@pytest.mark.parametrize("call", [*CALLS[6:9], *(pytest.param(call, marks=slow) for call in CALLS[3:6] + CALLS[9:])])
@pytest.mark.parametrize("status", [2, pytest.param(719, marks=slow)])
def test_a_call_that_fails_is_named_on_every_rank(tmp_path, call, status):
    """Rank 1's driver refuses a call, once or for ever; nobody hangs, and no sum is wrong."""
    which = 1 if call == "cuMemHostAlloc" else 4  # memory is used again
    fault = {1: {"CUDA_STAND_IN_FAULT": f"{call}:{which}:{status}"}}
    results = run(tmp_path, 2, "on_device", "failing", 3000, env=env(), env_of=fault, limit_s=40)
    if results[1]["failed"] is None:
        pytest.skip(f"{call} is called fewer than four times")
    # An error of the context may be seen by another call first.
    assert (call if status == 2 else "CUDA_ERROR_LAUNCH_FAILED") in results[1]["failed"], results
    assert results[0]["failed"], results
    assert re.search(r"rank 1\b", results[0]["failed"]), results


@both
def test_a_device_that_does_not_come_to_an_operation(tmp_path, by):
    zero, one = (result["failed"] for result in run(tmp_path, 2, "on_device", "stuck", env=env(by), limit_s=40))
    assert "cuda:0" in one, one
    assert "has not reached all_reduce of 'weights' within 2 s" in one, one
    assert "rank 1" in zero, zero


@both
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=slow)])
def test_torch_distributed_on_a_device(ranks, by):
    torch_launch.run(ranks, on_device.everything, env=env(by))


@pytest.mark.parametrize("by", ["host", "ipc", "nccl"])
def test_a_stream_does_not_wait_for_operations_that_nobody_waits_for(by):
    torch_launch.run(2, on_device.overlapping, env=by_name(by))


@pytest.mark.parametrize("by", ["host", "ipc", "nccl"])
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=slow)])
def test_the_calls_of_horovod_on_a_device(ranks, by):
    hvd_launch.run(ranks, devices.everything, by, env=nccl() if by == "nccl" else env(by))


@both
def test_horovod_on_a_device_with_a_rank_that_has_joined(by):
    hvd_launch.run(2, devices.joined, env=env(by))


def test_horovod_with_one_rank_whose_tensor_is_on_the_host():
    for said in hvd_launch.run(2, devices.one_on_the_host, env=env("auto")):
        assert "device" in said and "cuda" in said and "cpu" in said, said


@pytest.mark.parametrize("coordinator", ["graph", "nonblocking"])
def test_other_coordinators_on_a_device(coordinator):
    hvd_launch.run(2, devices.everything, "ipc", env=env("ipc", PACELINE_COORDINATOR=coordinator))


def nccl(**more):
    return env("nccl", PACELINE_NCCL_LIBRARY=cuda_stand_in.library(), **more)


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=slow)])
def test_collectives_by_nccl(tmp_path, size):
    record = tmp_path / "calls"
    results = run(tmp_path, size, "on_device", "by_nccl", env=nccl(CUDA_STAND_IN_RECORD=str(record)))
    assert all(result["right"] for result in results)
    calls = record.read_text().split()
    # A communicator for all ranks, and one for the group.
    assert calls.count("ncclGetUniqueId") == 2
    assert calls.count("ncclCommInitRankConfig") == 2 * size
    assert {"ncclAllReduce", "ncclBroadcast", "ncclReduce", "ncclAllGather", "ncclReduceScatter"} <= set(calls)


def by_name(by):
    return nccl() if by == "nccl" else env(by)


every = pytest.mark.parametrize("by", ["host", "ipc", "nccl"])


@every
def test_ranks_that_call_different_things_are_told(tmp_path, by):
    for result in run(tmp_path, 2, "on_device", "differing", env=by_name(by), limit_s=60):
        assert "'weights'" in result["failed"], result
        assert "float32[10]" in result["failed"], result
        assert "float32[11]" in result["failed"], result


@every
def test_a_rank_that_dies(tmp_path, by):
    with Ranks(tmp_path, 3, "on_device", "dying", env=by_name(by)) as ranks:
        outcomes = ranks.outcomes(60)
    assert outcomes[1].code == 7
    for rank in (0, 2):
        assert outcomes[rank].code == 0, outcomes[rank]
        assert "rank 1" in outcomes[rank].said[-1]["failed"], outcomes[rank]


IPC_CALLS = [
    "cuLaunchKernel",
    "cuStreamWaitValue32_v2",
    "cuStreamWriteValue32_v2",
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuEventRecord",
]


@pytest.mark.parametrize("call", [*IPC_CALLS[:1], *(pytest.param(call, marks=slow) for call in IPC_CALLS[1:])])
@pytest.mark.parametrize("status", [2, pytest.param(719, marks=slow)])
def test_a_call_that_fails_in_each_others_memory_is_named(tmp_path, call, status):
    fault = {1: {"CUDA_STAND_IN_FAULT": f"{call}:3:{status}"}}
    # On devices of their own, so that both combine.
    environ = env("ipc", CUDA_STAND_IN_APART="1")
    results = run(tmp_path, 2, "on_device", "failing", 3000, env=environ, env_of=fault, limit_s=40)
    if results[1]["failed"] is None:
        pytest.skip(f"{call} is called fewer than three times")
    assert (call if status == 2 else "CUDA_ERROR_LAUNCH_FAILED") in results[1]["failed"], results
    assert re.search(r"rank 1\b", results[0]["failed"]), results


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ({"CUDA_STAND_IN_UNSHARED": "1"}, "expandable"),
        ({"CUDA_STAND_IN_FAULT": "cuMemHostRegister_v2:1:1"}, "cuMemHostRegister_v2"),
        ({"CUDA_STAND_IN_FAULT": "cuIpcOpenMemHandle_v2:1:205"}, "CUDA_ERROR_MAP_FAILED"),
        ({"CUDA_STAND_IN_FAULT": "cuMemAlloc_v2:2:2"}, "cuMemAlloc_v2"),
    ],
)
def test_ranks_that_do_not_reach_each_others_memory_go_through_the_host(tmp_path, fault, why):
    """One rank's driver refuses: with auto, all go through the host; with ipc, all say why."""
    results = run(tmp_path, 3, "on_device", "shared", env=env("auto"), env_of={1: fault})
    assert all(result["by"] == "host" for result in results), results
    results = run(tmp_path, 3, "on_device", "shared", env=env("ipc"), env_of={1: fault})
    assert all("cannot use each other's memory" in result["failed"] for result in results), results
    assert all(why in result["failed"] for result in results), results
    assert all("rank 1: " in result["failed"] for result in results), results


def test_memory_of_other_ranks_is_used_by_default(tmp_path):
    results = run(tmp_path, 3, "on_device", "shared", env=env("auto"))
    assert all(result["by"] == "ipc" for result in results), results


def auto(**more):
    return env("auto", PACELINE_NCCL_LIBRARY=cuda_stand_in.library(), **{"PACELINE_STRATEGY": "", **more})


APART = {"CUDA_STAND_IN_APART": "1"}


def test_nccl_is_the_default_where_each_rank_has_a_device(tmp_path):
    results = run(tmp_path, 3, "on_device", "shared", env=auto(**APART))
    assert all(result["by"] == "nccl" for result in results), results


@pytest.mark.parametrize(
    "of_one",
    [
        {"PACELINE_NCCL_LIBRARY": "/bin/sh"},
        {"CUDA_STAND_IN_NCCL": "22907"},
        {"CUDA_STAND_IN_FAULT": "ncclGetVersion:1:3"},
    ],
)
def test_nccl_is_no_default_unless_all_ranks_have_the_same(tmp_path, of_one):
    """What one rank lacks decides for all of them, so that none waits in NCCL for another."""
    results = run(tmp_path, 3, "on_device", "shared", env=auto(**APART), env_of={1: of_one})
    assert all(result["by"] == "ipc" for result in results), results


def test_ranks_that_share_a_device_use_each_others_memory(tmp_path):
    results = run(tmp_path, 2, "on_device", "shared", env=auto(PACELINE_VERBOSE="1"))
    assert all(result["by"] == "ipc" for result in results), results


def test_a_strategy_that_is_named_runs_as_it_is(tmp_path):
    results = run(tmp_path, 2, "on_device", "shared", env=auto(PACELINE_STRATEGY="ring", **APART))
    assert all(result["by"] == "ipc" for result in results), results


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=slow)])
def test_torch_on_devices_of_their_own(size):
    """Collectives by NCCL and those that it lacks, mixed, on the same tensors."""
    torch_launch.run(size, on_device.everything, env=auto(**APART))


def test_horovod_on_devices_of_their_own():
    hvd_launch.run(2, devices.everything, "nccl", env=auto(**APART))


@pytest.mark.parametrize("strategy", ["", "ring"])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=slow), pytest.param(9, marks=slow)])
def test_ranks_on_one_device_and_on_several(tmp_path, size, apart, strategy):
    """Without a strategy, one rank of each device combines."""
    devices = {"CUDA_STAND_IN_APART": "1"} if apart else {}
    results = run(tmp_path, size, "on_device", "large", env=env("ipc", PACELINE_STRATEGY=strategy, **devices))
    assert all(result["right"] for result in results), results


@pytest.mark.parametrize("cached", [True, False])
def test_memory_that_comes_and_goes(tmp_path, cached):
    """Allocations that are freed and made anew between operations: what is remembered of them does not outlive them."""
    results = run(tmp_path, 2, "on_device", "changing", env=env("ipc", PACELINE_CUDA_POINTER_CACHE=str(int(cached))))
    for result in results:
        assert result["failed"] is None, results
        known, opened = result["status"]["handles_known"], result["status"]["allocations_open_already"]
        assert (known > 0 and opened > 0) == cached, results


def test_groups_and_streams_at_once(tmp_path):
    """Operations of three groups in three streams of each rank, in the same order, behind work that takes a while."""
    results = run(tmp_path, 3, "on_device", "groups", env=env("ipc"))
    assert all(result["right"] for result in results), results


def test_nccl_that_fails_is_named(tmp_path):
    fault = {1: {"CUDA_STAND_IN_FAULT": "ncclAllReduce:3:3"}}
    results = run(tmp_path, 2, "on_device", "failing", 3000, env=nccl(), env_of=fault, limit_s=40)
    assert "ncclAllReduce failed: internal error" in results[1]["failed"], results
    assert "rank 1" in results[0]["failed"], results


def test_a_library_of_nccl_needs_nccl():
    with pytest.raises(InvalidArgumentError, match="has no effect with cuda ipc"):
        Settings.from_environment({"PACELINE_NCCL_LIBRARY": "/bin/sh", "PACELINE_CUDA": "ipc"})
    assert Settings.from_environment({"PACELINE_NCCL_LIBRARY": "/bin/sh"}).cuda == "auto"
