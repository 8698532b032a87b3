"""Operations on named tensors in real processes: any order, joins, mistakes, ranks that end."""

import re
import signal
import sys

import pytest
from job_workers.launch import Ranks, run

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and memfd"),
]


@pytest.mark.parametrize(("size", "threshold"), [(1, 1000), (2, 0), (3, 4000), (4, 1 << 30)])
def test_tensors_come_in_any_order(tmp_path, size, threshold):
    run(tmp_path, size, "coordinator", "in_any_order", size, threshold)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_all_calls(tmp_path, size):
    run(tmp_path, size, "coordinator", "calls")


def test_over_tcp(tmp_path):
    run(tmp_path, 2, "coordinator", "calls", env={"PACELINE_TRANSPORT": "tcp"})


def test_ranks_without_data_join(tmp_path):
    with Ranks(tmp_path, 3, "coordinator", "uneven") as ranks:
        outcomes = ranks.outcomes(40)
    assert all(outcome.said[-1:] == [{"through": True}] for outcome in outcomes.values()), outcomes
    refused = [said["error"] for said in outcomes[2].said if "error" in said]
    calls = ["Allreduce product", "Allgather", "Broadcast", "Broadcast", "Reducescatter sum", "Alltoall"]
    assert len(refused) == 2 * len(calls)
    for text, (name, call) in zip(refused, [*zip("pgbrst", calls, strict=True)] * 2, strict=True):
        assert text.startswith(f"tensor '{name}': {call} is not supported with Join at this time: rank 0 has joined")


def test_mistakes_are_told_to_all_and_the_rest_goes_on(tmp_path):
    with Ranks(tmp_path, 3, "coordinator", "mistakes") as ranks:
        outcomes = ranks.outcomes(40)
    for rank, outcome in outcomes.items():
        said = {entry["what"]: entry for entry in outcome.said if "what" in entry}
        assert outcome.said[-1] == {"through": True}, outcome
        for what, error in (
            (
                "shape",
                "tensor 'w': the shape is [2] on rank 0 and [3] on rank 1; give it the same shape on all ranks: pad",
            ),
            ("dtype", "tensor 'd': the dtype is float32 on rank 0 and int32 on rank 1; convert it to one dtype"),
            ("root", "tensor 'r': the root rank is 0 on rank 0 and 1 on rank 1; give all ranks the same root_rank"),
        ):
            assert said[what]["error"].startswith(error), said[what]
        assert rank == 0 or said["twice"]["error"].startswith("Duplicate tensor name 't': it is in flight")
        assert said["twice at once"]["error"].startswith("Duplicate tensor name 'u': it is in flight")
        assert "has been submitted before" in said["again"]["error"]
        assert said["elements"]["error"].startswith("all_reduce of 'elements': the memory has 3 elements")
        assert "cannot be combined" in said["no op"]["error"]
        assert "complex64 cannot be combined" in said["unknown dtype"]["error"]
        if rank != 1:
            assert re.match(r"tensor 'm' has waited \d\.\d s for rank 1; ranks 0, 2 asked", said["missing"]["error"])
    assert re.search(r"tensor 'm' has waited 0\.\d s for rank 1; .*; missing: rank 1 \(host ", outcomes[0].err)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("SIGKILL", r"rank 1 \(host .*\) died \(.*; 'w' waited for it"),
        ("close", r"rank 1 \(host .*\) has left the job; 'w' waited for it"),
        ("SIGSTOP", r".*waited \d s for rank 1 \(host .*\) in negotiation of .*; rank 1 is silent: stopped"),
    ],
)
def test_a_rank_that_ends_is_named(tmp_path, how, message):
    with Ranks(tmp_path, 3, "coordinator", "lose", how, env={"PACELINE_TIMEOUT": "6"}) as ranks:
        if how == "SIGSTOP":
            for rank in (0, 2):
                ranks.processes[rank].wait(30)
            ranks.processes[1].send_signal(signal.SIGKILL)
        outcomes = ranks.outcomes(30)
    ended = outcomes[1].said[-1]["ends_at"]
    for rank in (0, 2):
        first, again = outcomes[rank].said
        assert re.match(message, first["error"]), first
        assert first["at"] - ended < (10 if how == "SIGSTOP" else 2)
        assert "rank 1" in again["error"]


def test_nothing_is_done_while_there_is_nothing_to_do(tmp_path):
    assert all(said["busy_s"] < 0.02 for said in run(tmp_path, 2, "coordinator", "idle"))
